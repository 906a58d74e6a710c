//! [`Decision`]: what a policy wants, [`TunerInput`]: what it may look at, and [`CostTable`]: NCCL's table, the
//! only way for a decision to reach NCCL.
//!
//! Invariants: an algorithm comes with its protocol or not at all; zero channels cannot be written down; a
//! `CostTable` never turns an entry that NCCL does not offer into one that it might pick, and never writes a
//! negative number (which "disables" up to NCCL 2.30 and *wins* from 2.31 on).

use ringfence_guest::abi;
use std::fmt;
use std::num::NonZeroU32;

macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident: $count:expr; $($(#[$vdoc:meta])* $variant:ident = $value:path, $text:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $value as u8,)* }

        impl $name {
            /// All, by number.
            pub const ALL: [$name; $count as usize] = [$($name::$variant,)*];

            /// The one with NCCL's number `n`.
            #[inline]
            pub const fn new(n: u32) -> Option<$name> {
                match n { $($value => Some($name::$variant),)* _ => None }
            }
            /// NCCL's number.
            #[inline]
            pub const fn number(self) -> u32 {
                self as u32
            }
            /// NCCL's name, as in `NCCL_ALGO` and `NCCL_PROTO`.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
            /// The one with NCCL's name, in any case.
            pub fn parse(name: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|x| x.name().eq_ignore_ascii_case(name))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named_enum! {
    /// NCCL's algorithms.
    Algo: abi::algo::COUNT;
    /// Double binary tree.
    Tree = abi::algo::TREE, "Tree";
    /// Ring.
    Ring = abi::algo::RING, "Ring";
    /// CollNet, direct.
    CollNetDirect = abi::algo::COLLNET_DIRECT, "CollNetDirect";
    /// CollNet, chain.
    CollNetChain = abi::algo::COLLNET_CHAIN, "CollNetChain";
    /// NVLink SHARP.
    Nvls = abi::algo::NVLS, "NVLS";
    /// NVLink SHARP in a node, tree between nodes.
    NvlsTree = abi::algo::NVLS_TREE, "NVLSTree";
    /// Parallel aggregated trees.
    Pat = abi::algo::PAT, "PAT";
}

named_enum! {
    /// NCCL's protocols.
    Proto: abi::proto::COUNT;
    /// Low latency, 8 bytes.
    Ll = abi::proto::LL, "LL";
    /// Low latency, 128 bytes.
    Ll128 = abi::proto::LL128, "LL128";
    /// Simple.
    Simple = abi::proto::SIMPLE, "Simple";
}

/// What a policy wants of one collective. The default wants nothing: NCCL decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Algorithm and protocol.
    pub route: Option<(Algo, Proto)>,
    /// Channels; what is above NCCL's bound is clamped by [`CostTable::apply`].
    pub channels: Option<NonZeroU32>,
}

impl Decision {
    /// No wish: NCCL decides.
    pub const DEFER: Decision = Decision { route: None, channels: None };
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.route {
            Some((a, p)) => write!(f, "{a}/{p}")?,
            None => f.write_str("default")?,
        }
        match self.channels {
            Some(n) => write!(f, " channels={n}"),
            None => Ok(()),
        }
    }
}

/// What does not change during a communicator's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommInfo {
    /// NCCL's communicator id; 0 for tuner v2 to v4, which do not tell it.
    pub comm_id: u64,
    /// Ranks.
    pub n_ranks: u32,
    /// Nodes.
    pub n_nodes: u32,
    /// NVLink domains; 0 where NCCL does not tell.
    pub n_nvl_domains: u32,
    /// Fewest ranks in a NVLink domain; 0 where NCCL does not tell.
    pub min_ranks_per_nvl_domain: u32,
    /// Most ranks in a NVLink domain; 0 where NCCL does not tell.
    pub max_ranks_per_nvl_domain: u32,
    /// Bound on channels, 1 to [`MAX_CHANNELS`].
    pub max_channels: u32,
}

/// NCCL's own bound on channels (`MAXCHANNELS`, NCCL 2.26 and later; 32 before). Above it two paths of NCCL write out of bounds.
pub const MAX_CHANNELS: u32 = 64;

/// Inputs of one decision.
#[derive(Clone, Copy, Debug)]
pub struct TunerInput<'a> {
    /// The communicator.
    pub comm: &'a CommInfo,
    /// `ncclFunc_t`.
    pub func: u32,
    /// Bytes of the collective.
    pub n_bytes: u64,
    /// `numPipeOps`.
    pub num_pipe_ops: u32,
    /// Buffers are registered. Rank-local.
    pub reg_buff: bool,
    /// Calls of `getCollInfo` on this communicator before this one.
    pub call_seq: u64,
    /// NCCL's costs, from [`CostTable::costs`].
    pub costs: Costs<'a>,
}

/// A look at a cost table.
#[derive(Clone, Copy, Debug)]
pub struct Costs<'a> {
    values: &'a [f32],
    algos: u32,
    protos: u32,
}

/// NCCL offers an entry if its estimate is a number from 0 up: -1 means "not available"; other negative numbers
/// and NaN never come from NCCL, and are taken for the same.
#[inline]
fn offered(cost: f32) -> bool {
    cost >= 0.0
}

impl<'a> Costs<'a> {
    /// Rows, as NCCL passed them.
    #[inline]
    pub fn num_algo(&self) -> u32 {
        self.algos
    }
    /// Columns, as NCCL passed them.
    #[inline]
    pub fn num_proto(&self) -> u32 {
        self.protos
    }

    /// The entries, row by row.
    pub(crate) fn values(&self) -> &'a [f32] {
        self.values
    }

    #[inline]
    fn index(&self, algo: Algo, proto: Proto) -> Option<usize> {
        index(self.algos, self.protos, algo, proto)
    }

    /// NCCL's estimate in microseconds; `None` where the pair is not available.
    #[inline]
    pub fn micros(&self, algo: Algo, proto: Proto) -> Option<f32> {
        let cost = *self.values.get(self.index(algo, proto)?)?;
        offered(cost).then_some(cost)
    }

    /// Bit `algo * 3 + proto` is set where the pair is available.
    pub fn available(&self) -> u32 {
        let mut mask = 0;
        self.each_pair(|bit, cost| mask |= u32::from(offered(cost)) << bit);
        mask
    }

    /// The estimates in nanoseconds as a policy sees them: stride 3, [`abi::UNSET`] where not available.
    /// Estimates that do not fit are [`abi::UNSET`]` - 1`.
    pub fn nanos(&self) -> [u32; PAIRS] {
        let mut out = [abi::UNSET; PAIRS];
        self.each_pair(|bit, cost| {
            if offered(cost) {
                // `as` saturates, and `min` keeps the largest value apart from UNSET.
                out[bit] = ((f64::from(cost) * 1000.0) as u32).min(abi::UNSET - 1);
            }
        });
        out
    }

    /// Calls `f(algo * 3 + proto, cost)` for each pair that both NCCL and this ABI know.
    #[inline]
    fn each_pair(&self, mut f: impl FnMut(usize, f32)) {
        let protos = self.protos as usize;
        for (a, row) in self.values.chunks_exact(protos).take(ALGOS).enumerate() {
            for (p, cost) in row.iter().take(PROTOS).enumerate() {
                f(a * PROTOS + p, *cost);
            }
        }
    }
}

const ALGOS: usize = abi::algo::COUNT as usize;
const PROTOS: usize = abi::proto::COUNT as usize;
/// Pairs of algorithm and protocol in the ABI.
pub const PAIRS: usize = ALGOS * PROTOS;

#[inline]
fn index(algos: u32, protos: u32, algo: Algo, proto: Proto) -> Option<usize> {
    let (a, p) = (algo.number(), proto.number());
    (a < algos && p < protos).then_some((a * protos + p) as usize)
}

/// Entries at 0.
#[inline(always)]
fn zeros(values: &[f32]) -> u32 {
    values.iter().fold(0, |n, cost| n + u32::from(*cost == 0.0))
}

/// NCCL's cost table of one collective: `numAlgo` rows of `numProto` floats, in microseconds.
#[derive(Debug)]
pub struct CostTable<'a> {
    values: &'a mut [f32],
    algos: u32,
    protos: u32,
}

/// What of a decision reached NCCL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The pair that NCCL will now pick; `None` if none was wanted, or it is not available.
    pub route: Option<(Algo, Proto)>,
    /// The value for NCCL's `nChannels`, 1 to `max_channels`; `None`: leave it 0.
    pub channels: Option<NonZeroU32>,
}

impl<'a> CostTable<'a> {
    /// A view of NCCL's table, whose row stride is `num_proto`. `None` if the counts are zero or `values` has
    /// not exactly `num_algo * num_proto` entries.
    #[inline]
    pub fn new(values: &'a mut [f32], num_algo: u32, num_proto: u32) -> Option<CostTable<'a>> {
        let cells = u64::from(num_algo) * u64::from(num_proto);
        (cells != 0 && cells == values.len() as u64).then_some(CostTable {
            values,
            algos: num_algo,
            protos: num_proto,
        })
    }

    /// The table for reading.
    #[inline]
    pub fn costs(&self) -> Costs<'_> {
        Costs { values: self.values, algos: self.algos, protos: self.protos }
    }

    /// Makes NCCL prefer the decision's route, and bounds its channels to 1..=`max_channels` (itself at most
    /// [`MAX_CHANNELS`]). A route that is not available is dropped whole; the channels count on their own.
    #[inline]
    pub fn apply(&mut self, decision: Decision, max_channels: u32) -> Applied {
        let limit = max_channels.clamp(1, MAX_CHANNELS);
        Applied {
            route: decision.route.filter(|(algo, proto)| self.prefer(*algo, *proto)),
            channels: decision.channels.and_then(|n| NonZeroU32::new(n.get().min(limit))),
        }
    }

    /// Takes over the costs of another table of the same size, for entries that are available and that it gives a cost from 0 up.
    pub(crate) fn replace_offered(&mut self, costs: &[f32]) {
        for (mine, other) in self.values.iter_mut().zip(costs) {
            if offered(*mine) && offered(*other) {
                *mine = *other;
            }
        }
    }

    /// Gives an available entry the cost 0, and makes sure that it is the only one at or below 0: NCCL takes the
    /// smallest, and of equals the first (up to 2.30) or one that depends on its list (2.31 and later). Another
    /// available entry at 0 (NCCL's estimate was 0, or an earlier tuner's mark) is raised to the smallest normal
    /// float, so it still comes before all others. Entries that are not available are never written, whatever they hold.
    #[inline]
    fn prefer(&mut self, algo: Algo, proto: Proto) -> bool {
        let Some(chosen) = index(self.algos, self.protos, algo, proto) else { return false };
        if !self.values.get(chosen).copied().is_some_and(offered) {
            return false;
        }
        // Counted first, without a branch; the usual answer is that no other entry is at 0. NCCL's table has one size
        // for years: knowing it, the compiler makes six vector compares of the loop.
        let zeros = match <&[f32; PAIRS]>::try_from(&*self.values) {
            Ok(whole) => zeros(whole),
            Err(_) => zeros(self.values),
        };
        if zeros > u32::from(self.values[chosen] == 0.0) {
            self.raise_zeros();
        }
        self.values[chosen] = 0.0;
        true
    }

    /// Gives entries at 0 the smallest normal float.
    #[cold]
    fn raise_zeros(&mut self) {
        for cost in self.values.iter_mut().filter(|cost| **cost == 0.0) {
            *cost = f32::MIN_POSITIVE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How NCCL up to 2.30 picks: the smallest that is not negative, the first of equals.
    fn pick_old(values: &[f32]) -> Option<usize> {
        let mut best = None;
        let mut least = f32::MAX;
        for (i, v) in values.iter().enumerate() {
            if *v >= 0.0 && *v < least {
                (least, best) = (*v, Some(i));
            }
        }
        best
    }

    /// How NCCL from 2.31 on picks among the entries that were available: the smallest, negative or not. Which of
    /// equals is not known, so here the last.
    fn pick_new(before: &[f32], values: &[f32]) -> Option<usize> {
        let listed = (0..values.len()).filter(|i| before[*i] >= 0.0);
        listed.reduce(|best, i| if values[i] <= values[best] { i } else { best })
    }

    fn random(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    fn random_cost(seed: &mut u64) -> f32 {
        match random(seed) % 8 {
            0 | 1 => -1.0,
            2 => 0.0,
            3 => f32::NAN,
            4 => -0.0,
            5 => f32::INFINITY,
            _ => (random(seed) % 1000) as f32 / 8.0,
        }
    }

    /// Whatever the table and the wish: an applied route is what both generations of NCCL pick; entries that were not
    /// available are bit for bit the same; nothing negative is written; a dropped route changes nothing.
    #[test]
    fn apply_keeps_its_promises() {
        let mut seed = 7;
        for _ in 0..50_000 {
            let (algos, protos) = (1 + random(&mut seed) as u32 % 8, 1 + random(&mut seed) as u32 % 4);
            let before: Vec<f32> = (0..algos * protos).map(|_| random_cost(&mut seed)).collect();
            let mut after = before.clone();
            let algo = Algo::ALL[random(&mut seed) as usize % 7];
            let proto = Proto::ALL[random(&mut seed) as usize % 3];
            let wish = Decision {
                route: Some((algo, proto)),
                channels: NonZeroU32::new(random(&mut seed) as u32 % 200),
            };
            let max = random(&mut seed) as u32 % 80;
            let mut table = CostTable::new(&mut after, algos, protos).unwrap();
            let available = table.costs().micros(algo, proto).is_some();
            let applied = table.apply(wish, max);

            assert_eq!(applied.route.is_some(), available);
            for (b, a) in before.iter().zip(&after) {
                assert!(
                    if *b >= 0.0 { *a >= 0.0 } else { a.to_bits() == b.to_bits() },
                    "{before:?} {after:?}"
                );
            }
            match applied.route {
                Some(route) => {
                    let chosen = Some((algo.number() * protos + proto.number()) as usize);
                    assert_eq!((route, pick_old(&after)), ((algo, proto), chosen));
                    assert_eq!(pick_new(&before, &after), chosen);
                }
                None => assert!(before.iter().zip(&after).all(|(b, a)| b.to_bits() == a.to_bits())),
            }
            let want = wish.channels.map(|n| n.get().min(max.clamp(1, MAX_CHANNELS)));
            assert_eq!(applied.channels.map(NonZeroU32::get), want);
        }
    }

    #[test]
    fn the_row_stride_is_nccls() {
        // Four columns: Ring/LL is entry 4, not 3.
        let mut values = vec![5.0; 8];
        let mut table = CostTable::new(&mut values, 2, 4).unwrap();
        assert_eq!(table.costs().available(), 0b111_111);
        table.apply(Decision { route: Some((Algo::Ring, Proto::Ll)), channels: None }, 1);
        assert_eq!(values.iter().position(|v| *v == 0.0), Some(4));
    }

    #[test]
    fn tables_of_the_wrong_size_are_none() {
        for (len, algos, protos) in [(0, 0, 3), (21, 7, 0), (20, 7, 3), (22, 7, 3), (1, u32::MAX, u32::MAX)] {
            assert!(CostTable::new(&mut vec![0.0; len], algos, protos).is_none(), "{len} {algos} {protos}");
        }
    }

    #[test]
    fn costs_in_nanoseconds() {
        let mut values = [-1.0, f32::NAN, 0.0, 1.5, 1e30, f32::INFINITY];
        let table = CostTable::new(&mut values, 2, 3).unwrap();
        let want = [abi::UNSET, abi::UNSET, 0, 1500, abi::UNSET - 1, abi::UNSET - 1];
        assert_eq!(table.costs().nanos()[..6], want);
        assert!(table.costs().nanos()[6..].iter().all(|n| *n == abi::UNSET));
        assert_eq!(table.costs().available(), 0b111_100);
    }

    #[test]
    fn names_and_numbers() {
        for a in Algo::ALL {
            assert_eq!((Algo::new(a.number()), Algo::parse(a.name())), (Some(a), Some(a)));
        }
        for p in Proto::ALL {
            assert_eq!((Proto::new(p.number()), Proto::parse(p.name())), (Some(p), Some(p)));
        }
        assert_eq!(
            (Algo::new(7), Proto::new(3), Algo::parse("nvlstree")),
            (None, None, Some(Algo::NvlsTree))
        );
        let d = Decision { route: Some((Algo::Ring, Proto::Ll128)), channels: NonZeroU32::new(4) };
        assert_eq!(
            (d.to_string(), Decision::DEFER.to_string()),
            ("Ring/LL128 channels=4".into(), "default".into())
        );
    }
}
