//! [`Handle`]: what NCCL keeps as an event's or communicator's pointer. It is a number of ours: a tag, a communicator's index and a
//! generation, so that one that is null, stale, doubled, invented or another process's is recognised, never followed.
//!
//! ```text
//! 63..59 tag    58..47 communicator    46..35 operation    34..29 channel    28..0 generation     operations and their kernels
//! 63..59 tag    58..47 communicator    46..0 serial number                                        all other events
//! 63..59 tag    58..47 communicator    46..0 generation                                           communicators
//! 63..59 tag    46..30 slot            29..0 generation                                           pairs of a chain
//! ```
//! A tag is never 0, hence a handle is never null.

use super::event::Kind;

/// Most communicators alive at once in a process.
pub(crate) const MAX_COMMS: usize = 1 << 12;
/// Most operations that a communicator may have open.
pub(crate) const MAX_OPS: usize = 1 << 12;
/// Most channels of NCCL.
pub(crate) const MAX_CHANNELS: u32 = 1 << 6;
/// Most slots of a chain's table.
pub(crate) const MAX_PAIRS: usize = 1 << 17;

const TAG_SHIFT: u32 = 59;
const COMM_SHIFT: u32 = 47;
const OP_SHIFT: u32 = 35;
const CHANNEL_SHIFT: u32 = 29;
const PAIR_SHIFT: u32 = 30;
/// Bits of an operation's generation.
pub(crate) const OP_GENERATION: u64 = (1 << CHANNEL_SHIFT) - 1;
/// Bits of a serial number, and of a communicator's generation.
pub(crate) const SERIAL: u64 = (1 << COMM_SHIFT) - 1;
/// Bits of a pair's generation.
pub(crate) const PAIR_GENERATION: u64 = (1 << PAIR_SHIFT) - 1;

/// Tags 1 to 16 are the kinds of plain events.
const TAG_IGNORED: u64 = 17;
const TAG_FOREIGN: u64 = 18;
const TAG_PAIR: u64 = 19;
const TAG_COMM: u64 = 20;
const TAG_COLL: u64 = 21;
const TAG_P2P: u64 = 22;
const TAG_KERNEL: u64 = 23;

/// What a handle says it is. Whether that is still so, the tables tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handle {
    /// A collective, send or receive that is measured.
    Op { kind: Kind, comm: usize, op: usize, generation: u64 },
    /// The kernel of a measured operation on a channel.
    Kernel { comm: usize, op: usize, channel: u32, generation: u64 },
    /// Any other event.
    Plain { kind: Kind, comm: usize, serial: u64 },
    /// An event that nobody wants; not null, for NCCL would leave out its children.
    Ignored,
    /// An event of another process.
    Foreign,
    /// An event that a downstream profiler knows as well.
    Pair { slot: usize, generation: u64 },
    /// A communicator.
    Comm { comm: usize, generation: u64 },
}

impl Handle {
    /// The number that NCCL gets. Not zero.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        let comm_bits = |comm: usize| (comm as u64) << COMM_SHIFT;
        match self {
            Handle::Op { kind, comm, op, generation } => {
                let tag = if kind == Kind::P2p { TAG_P2P } else { TAG_COLL };
                tag << TAG_SHIFT | comm_bits(comm) | (op as u64) << OP_SHIFT | generation & OP_GENERATION
            }
            Handle::Kernel { comm, op, channel, generation } => {
                TAG_KERNEL << TAG_SHIFT
                    | comm_bits(comm)
                    | (op as u64) << OP_SHIFT
                    | u64::from(channel) << CHANNEL_SHIFT
                    | generation & OP_GENERATION
            }
            Handle::Plain { kind, comm, serial } => {
                (kind as u64 + 1) << TAG_SHIFT | comm_bits(comm) | serial & SERIAL
            }
            Handle::Ignored => TAG_IGNORED << TAG_SHIFT,
            Handle::Foreign => TAG_FOREIGN << TAG_SHIFT,
            Handle::Pair { slot, generation } => {
                TAG_PAIR << TAG_SHIFT | (slot as u64) << PAIR_SHIFT | generation & PAIR_GENERATION
            }
            Handle::Comm { comm, generation } => {
                TAG_COMM << TAG_SHIFT | comm_bits(comm) | generation & SERIAL
            }
        }
    }

    /// Reads a number that NCCL passed; `None` if it cannot be ours.
    #[inline]
    pub(crate) fn of_bits(bits: u64) -> Option<Handle> {
        let comm = (bits >> COMM_SHIFT) as usize & (MAX_COMMS - 1);
        let op = (bits >> OP_SHIFT) as usize & (MAX_OPS - 1);
        let generation = bits & OP_GENERATION;
        Some(match bits >> TAG_SHIFT {
            TAG_COLL => Handle::Op { kind: Kind::Coll, comm, op, generation },
            TAG_P2P => Handle::Op { kind: Kind::P2p, comm, op, generation },
            TAG_KERNEL => {
                let channel = (bits >> CHANNEL_SHIFT) as u32 & (MAX_CHANNELS - 1);
                Handle::Kernel { comm, op, channel, generation }
            }
            TAG_IGNORED => Handle::Ignored,
            TAG_FOREIGN => Handle::Foreign,
            TAG_PAIR => {
                let slot = (bits >> PAIR_SHIFT) as usize & (MAX_PAIRS - 1);
                Handle::Pair { slot, generation: bits & PAIR_GENERATION }
            }
            TAG_COMM => Handle::Comm { comm, generation: bits & SERIAL },
            tag => Handle::Plain {
                kind: Kind::of_number((tag as u32).checked_sub(1)?)?,
                comm,
                serial: bits & SERIAL,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_the_trip_and_differ_by_kind() {
        let mut all = vec![
            Handle::Ignored,
            Handle::Foreign,
            Handle::Pair { slot: 0, generation: 0 },
            Handle::Pair { slot: MAX_PAIRS - 1, generation: PAIR_GENERATION },
            Handle::Comm { comm: 0, generation: 0 },
            Handle::Comm { comm: MAX_COMMS - 1, generation: SERIAL },
        ];
        for (comm, op, channel, generation) in [(0, 0, 0, 0), (4095, 4095, 63, OP_GENERATION), (7, 9, 11, 13)]
        {
            all.push(Handle::Op { kind: Kind::Coll, comm, op, generation });
            all.push(Handle::Op { kind: Kind::P2p, comm, op, generation });
            all.push(Handle::Kernel { comm, op, channel, generation });
            all.extend(Kind::ALL.map(|kind| Handle::Plain { kind, comm, serial: generation }));
        }
        let mut seen = std::collections::BTreeSet::new();
        for handle in all {
            assert_ne!(handle.bits(), 0);
            assert_eq!(Handle::of_bits(handle.bits()), Some(handle));
            assert!(seen.insert(handle.bits()), "{handle:?} is not the only one");
        }
    }

    #[test]
    fn null_and_pointers_are_no_handles() {
        for bits in [0, 1, 4096, 0x7fff_ffff_f000, u64::MAX, 24 << TAG_SHIFT] {
            assert_eq!(Handle::of_bits(bits), None, "{bits:#x}");
        }
    }
}
