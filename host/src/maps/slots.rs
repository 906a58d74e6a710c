//! [`RankSlots`]: which slot of per-CPU maps a rank has. [`RankSlot`] is one rank's, as long as somebody keeps it.
//!
//! Where the kernel has a copy of each value for each processor, we have one for each *rank* of the process: a communicator of NCCL's
//! has one. All policies of a rank see the same slot, on whichever hook and thread they run. A rank is never in two tuner calls at once, but
//! its profiler may be called beside its tuner: counters that both change need atomics, as they do in arrays.
//!
//! There are [`PERCPU_SLOTS`] slots. A new rank gets the lowest of those with the fewest ranks, so that ranks share a slot only
//! when there are more of them; then they count together, and need atomics. A slot's contents stay when its rank is gone and the next one gets it,
//! as a processor's stay when a task is: what is added up over all slots remains right.

use ringfence_translator::limits::PERCPU_SLOTS;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Who has which; one for a registry.
#[derive(Debug, Default)]
pub(crate) struct RankSlots {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Ranks by slot; a slot beyond the end has none.
    ranks: Vec<u32>,
    known: HashMap<u64, Weak<RankSlot>>,
}

/// A rank's slot.
#[derive(Debug)]
pub(crate) struct RankSlot {
    number: u32,
    all: Arc<RankSlots>,
}

impl RankSlots {
    /// The slot of a communicator: the one that it has, or a new one.
    pub(crate) fn of(self: &Arc<RankSlots>, communicator: u64) -> Arc<RankSlot> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.known.retain(|_, one| one.strong_count() > 0);
        if let Some(one) = inner.known.get(&communicator).and_then(Weak::upgrade) {
            return one;
        }
        let slot = inner.take();
        let one = Arc::new(RankSlot { number: slot, all: Arc::clone(self) });
        inner.known.insert(communicator, Arc::downgrade(&one));
        one
    }
}

impl Inner {
    fn take(&mut self) -> u32 {
        let fewest = (0..).zip(&self.ranks).min_by_key(|(slot, n)| (**n, *slot)).map(|(slot, n)| (slot, *n));
        let slot = match fewest {
            Some((slot, ranks)) if ranks == 0 || self.ranks.len() as u32 >= PERCPU_SLOTS => slot,
            _ => {
                self.ranks.push(0);
                self.ranks.len() as u32 - 1
            }
        };
        if let Some(ranks) = self.ranks.get_mut(slot as usize) {
            *ranks += 1;
        }
        slot
    }
}

impl RankSlot {
    /// Number of the slot, below [`PERCPU_SLOTS`].
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for RankSlot {
    fn drop(&mut self) {
        let mut inner = self.all.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ranks) = inner.ranks.get_mut(self.number as usize) {
            *ranks -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_slots_of_their_own_until_there_are_none() {
        let slots = Arc::new(RankSlots::default());
        let all: Vec<Arc<RankSlot>> = (0..u64::from(PERCPU_SLOTS)).map(|c| slots.of(c)).collect();
        assert!((0..).zip(&all).all(|(slot, one)| one.number() == slot));
        assert!(Arc::ptr_eq(&slots.of(5), &all[5]), "a rank keeps its slot");
        // One too many shares, and again the one with the fewest.
        let more = [slots.of(1000), slots.of(1001)];
        assert_eq!(more.iter().map(|s| s.number()).collect::<Vec<_>>(), [0, 1]);
        let mut all = all;
        drop(all.remove(7));
        assert_eq!(slots.of(1002).number(), 7);
        drop((all, more));
        assert_eq!(slots.of(5).number(), 0, "a slot that was given up is another's");
    }

    #[test]
    fn a_slot_may_be_given_up_while_others_are_taken() {
        let slots = Arc::new(RankSlots::default());
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let slots = &slots;
                s.spawn(move || (0..500).for_each(|i| drop(slots.of(t * 3 + i % 3))));
            }
        });
        let inner = slots.inner.lock().unwrap();
        assert!(inner.ranks.iter().all(|n| *n == 0), "{:?}", inner.ranks);
    }
}
