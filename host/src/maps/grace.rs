//! [`Grace`]: when the place of a deleted entry may be used again: not while a policy may hold a pointer to it.
//!
//! # The rule
//! A policy gets a pointer to a value in a look-up, and holds it until its call returns; never longer, since the verifier keeps pointers
//! out of maps and contexts. So a place that is freed is handed out again only when **every call that was under way when it was
//! freed has returned**, the call that freed it included.
//!
//! # How it is kept
//! By epochs (Fraser, "Practical lock freedom", 2004). There is one counter for the process. Each instance whose policy looks up in a
//! hash is a *reader*: on entry it notes the epoch in a word of its own, on return it clears it. The epoch goes from `e` to `e + 1` only when
//! no reader is inside with an epoch other than `e`. A freed place is stamped with the epoch, and may be used again two epochs
//! later: a call that could have found it has an epoch up to the stamp, and keeps the counter from getting there.
//!
//! For that, a reader's note must be visible before its look-ups read anything, which takes a full fence (5 ns). It is paid only
//! where it is needed: by the first look-up of a call in a map from which somebody deletes ([`Grace::settle`]; which maps those are,
//! [`HashIndex::reclaims`](super::hash::HashIndex::reclaims) says). A map turns into one off the decision path, when a policy that can
//! delete is instantiated or the host deletes: then the fence is forced upon all threads at once (`membarrier`), so that a call under
//! way which looked up without one has its note visible. Where that system call is missing, all look-ups in hashes pay.
//!
//! A call that takes long delays the reuse of places and nothing else: nobody waits. A map has a fixed number of spare places
//! ([`MapLayout::places`](ringfence_translator::MapLayout)); when all of them wait, an insertion gives up with `-EBUSY`.

use super::sync::{AtomicBool, AtomicU32, AtomicU64, fence_on, store_fence};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Epochs from freeing a place to its next use.
const DELAY: u64 = 2;
/// Of a reader's word: it is inside.
const INSIDE: u64 = 1;

/// A reader's note. A cache line of its own: each is written at every call of its instance.
#[derive(Debug)]
#[repr(align(64))]
struct Reader {
    /// `epoch << 1 | INSIDE`; 0 outside.
    note: AtomicU64,
    taken: AtomicBool,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Grace {
    epoch: AtomicU64,
    readers: Box<[Reader]>,
    /// No reader at or beyond this was ever taken.
    high: AtomicU32,
}

impl Grace {
    /// For so many readers at a time.
    pub(super) fn new(readers: usize) -> Grace {
        let reader = || Reader { note: AtomicU64::new(0), taken: AtomicBool::new(false) };
        // Epochs start such that no stamp is mistaken for an old one.
        Grace {
            epoch: AtomicU64::new(DELAY),
            readers: (0..readers).map(|_| reader()).collect(),
            high: AtomicU32::new(0),
        }
    }

    /// A reader's number; `None` if all are taken.
    pub(super) fn join(&self) -> Option<u32> {
        let free = |r: &Reader| !r.taken.load(Relaxed) && !r.taken.swap(true, AcqRel);
        let number = self.readers.iter().position(free)? as u32;
        self.high.fetch_max(number + 1, SeqCst);
        Some(number)
    }

    /// Gives the number back.
    pub(super) fn leave(&self, reader: u32) {
        if let Some(r) = self.readers.get(reader as usize) {
            r.note.store(0, Release);
            r.taken.store(false, Release);
        }
    }

    /// A call begins. What it looks up before [`Grace::settle`] may be found by nobody who frees.
    #[inline]
    pub(super) fn enter(&self, reader: u32) {
        if let Some(r) = self.readers.get(reader as usize) {
            // Release: whoever sees this note of a later call knows that the earlier one is over.
            r.note.store(self.epoch.load(Relaxed) << 1 | INSIDE, Release);
        }
    }

    /// Makes the note visible to everybody before the look-ups that follow.
    #[inline]
    pub(super) fn settle(&self, reader: u32) {
        if let Some(r) = self.readers.get(reader as usize) {
            store_fence(&r.note, r.note.load(Relaxed));
        }
    }

    /// The call is over; it holds no pointer any more.
    #[inline]
    pub(super) fn exit(&self, reader: u32) {
        if let Some(r) = self.readers.get(reader as usize) {
            r.note.store(0, Release);
        }
    }

    /// The stamp of a place that no look-up can find any more, from now on. `held` is the lock of its map.
    #[inline]
    pub(super) fn stamp(&self, held: &AtomicBool) -> u64 {
        fence_on(held);
        self.epoch.load(Relaxed)
    }

    /// May a place of that stamp be used again?
    #[inline]
    pub(super) fn is_over(&self, stamp: u64) -> bool {
        stamp + DELAY <= self.epoch.load(Acquire)
    }

    /// Moves the epoch on, unless a reader is inside since an earlier one.
    pub(super) fn advance(&self, held: &AtomicBool) {
        let epoch = self.epoch.load(Acquire);
        fence_on(held);
        let count = self.high.load(Relaxed) as usize;
        let late = |r: &Reader| {
            let note = r.note.load(Acquire);
            note & INSIDE != 0 && note >> 1 != epoch
        };
        if !self.readers.iter().take(count).any(late) {
            // Another thread may have moved it on as well.
            let _ = self.epoch.compare_exchange(epoch, epoch + 1, AcqRel, Acquire);
        }
    }
}
