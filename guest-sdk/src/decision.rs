//! [`Func`], [`Algo`], [`Proto`]: NCCL's enumerations; [`Decision`]: what a policy asks for; [`Verdict`]: what it returns.

use crate::abi::{UNSET, algo, func, proto};
use core::num::NonZeroU32;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)* }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// The one of that number, if this ABI knows it.
            #[inline(always)]
            pub const fn from_raw(raw: u32) -> Option<$name> {
                match raw {
                    $(v if v == $value => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// Its number.
            #[inline(always)]
            pub const fn raw(self) -> u32 {
                self as u32
            }
        }
    };
}

numbered! {
    /// A collective.
    Func {
        /// `ncclBroadcast`
        Broadcast = func::BROADCAST,
        /// `ncclReduce`
        Reduce = func::REDUCE,
        /// `ncclAllGather`
        AllGather = func::ALL_GATHER,
        /// `ncclReduceScatter`
        ReduceScatter = func::REDUCE_SCATTER,
        /// `ncclAllReduce`
        AllReduce = func::ALL_REDUCE,
    }
}

numbered! {
    /// An algorithm.
    Algo {
        /// Two trees.
        Tree = algo::TREE,
        /// A ring.
        Ring = algo::RING,
        /// CollNet, each rank to the network.
        CollNetDirect = algo::COLLNET_DIRECT,
        /// CollNet along a chain.
        CollNetChain = algo::COLLNET_CHAIN,
        /// NVLink SHARP.
        Nvls = algo::NVLS,
        /// NVLink SHARP in a node, trees between nodes.
        NvlsTree = algo::NVLS_TREE,
        /// Parallel aggregated trees.
        Pat = algo::PAT,
    }
}

numbered! {
    /// A protocol.
    Proto {
        /// Low latency: a flag in every eight bytes.
        Ll = proto::LL,
        /// Low latency: a flag in every 128 bytes.
        Ll128 = proto::LL128,
        /// Whole chunks.
        Simple = proto::SIMPLE,
    }
}

/// A decision: an algorithm and a protocol, or neither; channels, or NCCL's own number of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Algorithm and protocol. They count together or not at all, hence one field.
    pub route: Option<(Algo, Proto)>,
    /// Channels; `None` leaves the number to NCCL. The host lowers it to `max_channels`.
    pub channels: Option<NonZeroU32>,
}

impl Decision {
    /// Everything is left to NCCL.
    pub const DEFER: Decision = Decision { route: None, channels: None };

    /// From the context's decision fields; half a route, or numbers out of range, count as none.
    #[inline(always)]
    pub const fn from_raw(algo: u32, proto: u32, channels: u32) -> Decision {
        let route = match (Algo::from_raw(algo), Proto::from_raw(proto)) {
            (Some(a), Some(p)) => Some((a, p)),
            _ => None,
        };
        Decision { route, channels: NonZeroU32::new(channels) }
    }

    /// Algorithm, protocol and channels as the context's decision fields hold them.
    #[inline(always)]
    pub const fn to_raw(self) -> (u32, u32, u32) {
        let (algo, proto) = match self.route {
            Some((a, p)) => (a.raw(), p.raw()),
            None => (UNSET, UNSET),
        };
        let channels = match self.channels {
            Some(n) => n.get(),
            None => 0,
        };
        (algo, proto, channels)
    }
}

/// What a policy returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Verdict {
    /// Hand in the context's decision fields as they now are.
    Submit = 0,
    /// Leave the decision so far as it was, whatever was written.
    Keep = 1,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_stop_at_the_count() {
        for (i, a) in Algo::ALL.iter().enumerate() {
            assert_eq!((a.raw() as usize, Algo::from_raw(a.raw())), (i, Some(*a)));
        }
        for (i, p) in Proto::ALL.iter().enumerate() {
            assert_eq!((p.raw() as usize, Proto::from_raw(p.raw())), (i, Some(*p)));
        }
        for (i, f) in Func::ALL.iter().enumerate() {
            assert_eq!((f.raw() as usize, Func::from_raw(f.raw())), (i, Some(*f)));
        }
        assert_eq!(Algo::ALL.len() as u32, algo::COUNT);
        assert_eq!(Proto::ALL.len() as u32, proto::COUNT);
        for raw in [algo::COUNT, UNSET] {
            assert_eq!((Algo::from_raw(raw), Proto::from_raw(raw), Func::from_raw(raw)), (None, None, None));
        }
    }

    #[test]
    fn half_a_route_is_none() {
        for (algo, proto) in [(1, UNSET), (UNSET, 2), (7, 2), (1, 3), (UNSET, UNSET)] {
            assert_eq!(Decision::from_raw(algo, proto, 0), Decision::DEFER);
        }
        assert_eq!(Decision::DEFER.to_raw(), (UNSET, UNSET, 0));
    }

    #[test]
    fn decisions_round_trip() {
        for &a in Algo::ALL {
            for &p in Proto::ALL {
                for channels in [0, 1, 32, u32::MAX] {
                    let d = Decision { route: Some((a, p)), channels: NonZeroU32::new(channels) };
                    let (ra, rp, rc) = d.to_raw();
                    assert_eq!((rc, Decision::from_raw(ra, rp, rc)), (channels, d));
                }
            }
        }
    }
}
