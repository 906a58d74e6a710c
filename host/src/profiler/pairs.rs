//! [`Pairs`]: which of our handles goes with which handle of the downstream profiler.
//!
//! A child may arrive long after its parent has stopped, so an entry stays until its ring comes round. Events that have children live in
//! a ring of their own: the many steps and kernels do not push them out. Entries are read under a sequence lock: a reader that meets a
//! writer finds nothing, and waits for nobody.

use super::event::Kind;
use super::handle::{Handle, PAIR_GENERATION};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Entries for events with children.
const PARENTS: usize = 1 << 14;
/// Entries for all others.
const LEAVES: usize = 1 << 16;
/// Entries tried for a new pair.
const TRIES: usize = 4;

const PHASES: u64 = 3;
const FILLING: u64 = 1;
const OPEN: u64 = 2;
const STOPPED: u64 = 3;

/// Both sides of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Our handle.
    pub(crate) ours: u64,
    /// The downstream profiler's; 0 if it left it null.
    pub(crate) theirs: usize,
    /// Our handle of the communicator.
    pub(crate) context: u64,
}

#[derive(Debug, Default)]
struct Entry {
    /// Generation and phase.
    state: AtomicU64,
    ours: AtomicU64,
    theirs: AtomicU64,
    context: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pairs {
    entries: Box<[Entry]>,
    next_parent: AtomicU64,
    next_leaf: AtomicU64,
}

/// A new pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paired {
    pub(crate) handle: Handle,
    /// It pushed out a pair that had not stopped.
    pub(crate) lost: bool,
}

impl Pairs {
    pub(crate) fn new() -> Pairs {
        Pairs {
            entries: (0..PARENTS + LEAVES).map(|_| Entry::default()).collect(),
            next_parent: AtomicU64::new(0),
            next_leaf: AtomicU64::new(0),
        }
    }

    /// Keeps a pair; `None` if other threads were filling every entry that was tried.
    pub(crate) fn insert(&self, kind: Kind, pair: &Pair) -> Option<Paired> {
        for _ in 0..TRIES {
            let slot = self.next(kind);
            let entry = &self.entries[slot];
            let old = entry.state.load(Ordering::Relaxed);
            let generation = (old >> 2).wrapping_add(1) & PAIR_GENERATION;
            let filling = generation << 2 | FILLING;
            if old & PHASES == FILLING
                || entry.state.compare_exchange(old, filling, Ordering::AcqRel, Ordering::Relaxed).is_err()
            {
                continue;
            }
            // A reader that sees one of the new words below must see the phase above as well.
            fence(Ordering::Release);
            entry.ours.store(pair.ours, Ordering::Relaxed);
            entry.theirs.store(pair.theirs as u64, Ordering::Relaxed);
            entry.context.store(pair.context, Ordering::Relaxed);
            entry.state.store(generation << 2 | OPEN, Ordering::Release);
            return Some(Paired { handle: Handle::Pair { slot, generation }, lost: old & PHASES == OPEN });
        }
        None
    }

    fn next(&self, kind: Kind) -> usize {
        let has_children = !matches!(
            kind,
            Kind::ProxyStep
                | Kind::ProxyCtrl
                | Kind::KernelCh
                | Kind::NetPlugin
                | Kind::CeSync
                | Kind::CeBatch
                | Kind::KernelPhase
                | Kind::KernelLaunch
        );
        match has_children {
            true => (self.next_parent.fetch_add(1, Ordering::Relaxed) % PARENTS as u64) as usize,
            false => PARENTS + (self.next_leaf.fetch_add(1, Ordering::Relaxed) % LEAVES as u64) as usize,
        }
    }

    /// The pair of a handle, and whether it has stopped; `None` if it is not there any more.
    pub(crate) fn get(&self, slot: usize, generation: u64) -> Option<(Pair, bool)> {
        let entry = self.entries.get(slot)?;
        let state = entry.state.load(Ordering::Acquire);
        let phase = state & PHASES;
        if state >> 2 != generation || (phase != OPEN && phase != STOPPED) {
            return None;
        }
        let pair = Pair {
            ours: entry.ours.load(Ordering::Relaxed),
            theirs: entry.theirs.load(Ordering::Relaxed) as usize,
            context: entry.context.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        let same = entry.state.load(Ordering::Relaxed) >> 2 == generation;
        same.then_some((pair, phase == STOPPED))
    }

    /// Marks a pair as stopped. True for the first who does.
    pub(crate) fn stop(&self, slot: usize, generation: u64) -> bool {
        let Some(entry) = self.entries.get(slot) else { return false };
        let (open, stopped) = (generation << 2 | OPEN, generation << 2 | STOPPED);
        entry.state.compare_exchange(open, stopped, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(n: u64) -> Pair {
        Pair { ours: n, theirs: n as usize * 3, context: n * 7 }
    }

    fn parts(paired: Option<Paired>) -> (usize, u64) {
        match paired.unwrap().handle {
            Handle::Pair { slot, generation } => (slot, generation),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pair_is_found_until_its_ring_comes_round() {
        let pairs = Pairs::new();
        let (slot, generation) = parts(pairs.insert(Kind::Coll, &pair(5)));
        assert_eq!(pairs.get(slot, generation), Some((pair(5), false)));
        assert!(pairs.stop(slot, generation) && !pairs.stop(slot, generation));
        for n in 0..LEAVES as u64 {
            assert_eq!(pairs.insert(Kind::ProxyStep, &pair(n)).map(|p| p.lost), Some(false));
        }
        assert_eq!(pairs.get(slot, generation), Some((pair(5), true)), "steps push out no parent");
        assert_eq!(pairs.insert(Kind::ProxyStep, &pair(1)).map(|p| p.lost), Some(true));
        for n in 0..PARENTS as u64 {
            assert_eq!(pairs.insert(Kind::Coll, &pair(n)).map(|p| p.lost), Some(false));
        }
        assert_eq!(pairs.get(slot, generation), None);
        assert!(!pairs.stop(slot, generation) && !pairs.stop(usize::MAX, 1));
        assert_eq!(pairs.get(usize::MAX, 1), None);
    }

    #[test]
    fn readers_see_whole_pairs_or_none() {
        let pairs = Pairs::new();
        let first = parts(pairs.insert(Kind::Coll, &pair(1)));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..PARENTS as u64 * 8 {
                    pairs.insert(Kind::Coll, &pair(n));
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                for generation in 1..9 {
                    if let Some((got, _)) = pairs.get(first.0, generation) {
                        assert_eq!(got, pair(got.ours));
                    }
                }
            }
        });
    }
}
