//! [`HashIndex`]: keys and buckets of a hash map. Values are elsewhere; a key's *place* is the number of its value.
//!
//! Buckets head chains of places. A bucket is one atomic word: the first place of its chain, and a version that every
//! change of the chain raises. A lookup reads the bucket, walks the chain, and reads the bucket again: an unchanged version
//! proves that the chain was whole all the while. Changes are made under one try-lock for the map.
//!
//! # Why lookups are right
//! Only two things could mislead a walk: a link that changes, and a place that is freed and filled with another key.
//! Filling happens after freeing (in lock order), freeing raises the version of the chain that the walk is on, and a
//! release fence stands between the raising and any later filling (`fill`). If the walk saw anything of the filling, its acquire fence
//! makes the second look at the bucket see the raised version (Boehm, "Can seqlocks get along with programming language
//! memory models?", 2012), and the lookup starts over.
//!
//! # Places
//! There are more places than entries. One that is freed waits until no call can hold a pointer to it ([`Grace`]), and those that
//! wait are used again in the order of their freeing. `E2BIG` says that the map is full; `EBUSY` that it is not, but no place is free yet.
//!
//! # Least recently used
//! A full LRU hash evicts by second chance ("clock"): each place has a mark, which a look-up by a policy sets; a hand goes round the
//! places, takes marks away, and evicts the first entry without one. So an entry that was looked up since the hand's last pass
//! outlives those that were not. After [`MAX_SPARED`] entries with marks the hand gives up and evicts the first of them, which bounds the time
//! of an insertion. That is as close to LRU as the kernel's map, which keeps such marks on an active and an inactive list and looks at
//! 128 entries at most (kernel/bpf/bpf_lru_list.c): neither knows in which order entries with a mark were used. A new entry has no mark. The
//! host's own look-ups set none, so that a dump spares nothing, as in the kernel.

use super::grace::Grace;
use super::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU32, AtomicU64, FIND_RETRIES, LOCK_SPINS, fence, spin_loop,
};
use super::{Errno, MAX_KEY_WORDS, UpdateMode};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Links are places + 1, so that zeroed memory means "no place".
const NONE: u32 = 0;
/// Entries with marks that the hand passes over in a row.
const MAX_SPARED: u32 = 64;

/// Keys, buckets and free places of a hash map of fixed capacity.
#[derive(Debug)]
pub(super) struct HashIndex {
    /// `version << 32 | link`; the count is a power of two.
    buckets: Box<[AtomicU64]>,
    /// Link to the next place in the chain, by place.
    next: Box<[AtomicU32]>,
    /// Keys as zero-padded words, by place.
    keys: Box<[AtomicU64]>,
    key_words: usize,
    /// Entries at most; there are more places.
    max_entries: u32,
    /// Ring of freed places, as long as a power of two. Written only under the lock.
    freed: Box<[AtomicU32]>,
    /// When each was freed, in epochs.
    stamps: Box<[AtomicU64]>,
    /// Places freed and taken again so far, modulo 2^32; the difference is the number of freed places.
    freed_in: AtomicU32,
    freed_out: AtomicU32,
    /// Places never used yet begin here.
    fresh: AtomicU32,
    len: AtomicU32,
    lock: AtomicBool,
    grace: Arc<Grace>,
    /// Somebody deletes, so look-ups of policies need [`Grace::settle`].
    reclaims: AtomicBool,
    clock: Option<Clock>,
}

/// What an LRU hash knows of its places.
#[derive(Debug)]
struct Clock {
    /// Looked up since the hand passed. May be set for a place that was just freed, which does no harm.
    marks: Box<[AtomicU8]>,
    /// Holds an entry. Under the lock.
    live: Box<[AtomicBool]>,
    /// The place that is looked at next. Under the lock.
    hand: AtomicU32,
}

impl Clock {
    #[inline]
    fn mark(&self, place: u32) {
        if let Some(mark) = self.marks.get(place as usize)
            && mark.load(Relaxed) == 0
        {
            mark.store(1, Relaxed);
        }
    }

    fn set(&self, place: u32, live: bool) {
        if let (Some(mark), Some(cell)) = (self.marks.get(place as usize), self.live.get(place as usize)) {
            mark.store(0, Relaxed);
            cell.store(live, Relaxed);
        }
    }

    /// The entry to evict, among the first `used` places.
    fn victim(&self, used: u32) -> Option<u32> {
        let (mut first, mut spared) = (None, 0);
        for _ in 0..used {
            let place = self.hand.load(Relaxed);
            self.hand.store(if place + 1 < used { place + 1 } else { 0 }, Relaxed);
            let at = place as usize;
            let (Some(mark), true) = (self.marks.get(at), self.live.get(at).is_some_and(|l| l.load(Relaxed)))
            else {
                continue;
            };
            if mark.load(Relaxed) == 0 {
                return Some(place);
            }
            mark.store(0, Relaxed);
            first = first.or(Some(place));
            spared += 1;
            if spared == MAX_SPARED {
                break;
            }
        }
        first
    }
}

/// Shape of an index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of a key.
    pub(super) key_size: u32,
    /// Entries at most.
    pub(super) max_entries: u32,
    /// Places, no fewer than entries.
    pub(super) places: u32,
    /// Makes room when it is full.
    pub(super) lru: bool,
}

impl Shape {
    /// Bytes that such an index takes.
    pub(super) fn bytes(self) -> u64 {
        let (ring, places) = (power(self.places) as u64, u64::from(self.places));
        let clock = if self.lru { 2 * places } else { 0 };
        8 * power(self.max_entries) as u64
            + 12 * ring
            + places * (4 + 8 * key_words(self.key_size) as u64)
            + clock
    }
}

fn power(n: u32) -> usize {
    (n as usize).next_power_of_two()
}

/// Zeros. (Loom's atomics have no `Default`.)
fn zeros<T>(n: usize, zero: impl Fn() -> T) -> Box<[T]> {
    (0..n).map(|_| zero()).collect()
}

fn key_words(key_size: u32) -> usize {
    key_size.div_ceil(8) as usize
}

/// What a walk along a chain found.
struct Found {
    place: u32,
    /// The place before it in the chain, if any.
    before: Option<u32>,
}

/// Releases the lock.
struct Locked<'a>(&'a AtomicBool);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl HashIndex {
    /// An index, all free. Its shape is checked by the caller.
    pub(super) fn new(shape: Shape, grace: Arc<Grace>) -> HashIndex {
        let (n, key_words) = (shape.places as usize, key_words(shape.key_size));
        let words = |n| zeros(n, || AtomicU32::new(0));
        let clock = || Clock {
            marks: zeros(n, || AtomicU8::new(0)),
            live: zeros(n, || AtomicBool::new(false)),
            hand: AtomicU32::new(0),
        };
        HashIndex {
            buckets: zeros(power(shape.max_entries), || AtomicU64::new(0)),
            next: words(n),
            keys: zeros(n * key_words, || AtomicU64::new(0)),
            key_words,
            max_entries: shape.max_entries,
            freed: words(power(shape.places)),
            stamps: zeros(power(shape.places), || AtomicU64::new(0)),
            freed_in: AtomicU32::new(0),
            freed_out: AtomicU32::new(0),
            fresh: AtomicU32::new(0),
            len: AtomicU32::new(0),
            lock: AtomicBool::new(false),
            grace,
            // It evicts, from the start.
            reclaims: AtomicBool::new(shape.lru),
            clock: shape.lru.then(clock),
        }
    }

    /// Must a policy's call be known to [`Grace`] before it looks up here?
    #[inline]
    pub(super) fn reclaims(&self) -> bool {
        self.reclaims.load(Relaxed)
    }

    /// From now on look-ups do so. The caller forces a fence upon all threads before it frees anything.
    pub(super) fn reclaim(&self) {
        self.reclaims.store(true, Release);
    }

    /// Notes that a policy looked up what is at that place.
    #[inline]
    pub(super) fn mark(&self, place: u32) {
        if let Some(clock) = &self.clock {
            clock.mark(place);
        }
    }

    /// Keys in use.
    pub(super) fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }

    /// The words at a place, in use or not; `None` beyond the last.
    pub(super) fn key(&self, place: u32) -> Option<Vec<u64>> {
        let at = place as usize * self.key_words;
        Some(self.keys.get(at..at + self.key_words)?.iter().map(|w| w.load(Relaxed)).collect())
    }

    /// The first place from `from` on that holds a key, which goes to `words`; and how many places were looked at. Entries that come
    /// or go meanwhile may be missing.
    pub(super) fn next_from(&self, from: u32, words: &mut [u64; MAX_KEY_WORDS]) -> (Option<u32>, u32) {
        let used = (self.fresh.load(Acquire) as usize).min(self.next.len()) as u32;
        for place in from..used {
            let at = place as usize * self.key_words;
            let Some(key) = self.keys.get(at..at + self.key_words) else { break };
            words.iter_mut().zip(key).for_each(|(to, word)| *to = word.load(Relaxed));
            // What a lookup finds in this place is an entry, and its key was read whole.
            if words.get(..self.key_words).is_some_and(|key| self.find(key) == Ok(Some(place))) {
                return (Some(place), place - from + 1);
            }
        }
        (None, used.saturating_sub(from))
    }

    /// The place of a key; `BUSY` if writers kept changing its chain, and the lock's holder is scheduled out.
    #[inline]
    pub(super) fn find(&self, key: &[u64]) -> Result<Option<u32>, Errno> {
        let bucket = self.bucket(key);
        for _ in 0..FIND_RETRIES {
            let before = bucket.load(Acquire);
            let found = self.walk(before as u32, key);
            fence(Acquire);
            if bucket.load(Relaxed) == before {
                return Ok(found.map(|f| f.place));
            }
            spin_loop();
        }
        self.find_locked(key)
    }

    /// A lookup for when writers keep changing the chain.
    #[cold]
    fn find_locked(&self, key: &[u64]) -> Result<Option<u32>, Errno> {
        let _lock = self.lock()?;
        Ok(self.walk(self.bucket(key).load(Relaxed) as u32, key).map(|f| f.place))
    }

    /// Inserts or updates: finds or takes a place, calls `put(place, is_new)` to write the value, then makes a new key visible.
    #[inline]
    pub(super) fn upsert(
        &self,
        key: &[u64],
        mode: UpdateMode,
        put: impl FnOnce(u32, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let bucket = self.bucket(key);
        let _lock = self.lock()?;
        match (self.walk(bucket.load(Relaxed) as u32, key), mode) {
            (Some(_), UpdateMode::NoExist) => Err(Errno::EXIST),
            (None, UpdateMode::Exist) => Err(Errno::NOENT),
            (Some(found), _) => {
                self.mark(found.place);
                put(found.place, false)
            }
            (None, _) => {
                let place = self.room()?;
                // Making room may have changed the chain.
                let head = bucket.load(Relaxed);
                self.fill(place, key, head as u32);
                let written = put(place, true);
                if written.is_err() {
                    self.give(place);
                    return written;
                }
                if let Some(clock) = &self.clock {
                    clock.set(place, true);
                }
                publish(bucket, head, place + 1);
                self.len.store(self.len() + 1, Relaxed);
                Ok(())
            }
        }
    }

    /// Removes a key.
    #[inline]
    pub(super) fn remove(&self, key: &[u64]) -> Result<(), Errno> {
        let _lock = self.lock()?;
        self.unlink(key).ok_or(Errno::NOENT)
    }

    /// Takes a key out of its chain and frees its place. Under the lock.
    fn unlink(&self, key: &[u64]) -> Option<()> {
        let bucket = self.bucket(key);
        let head = bucket.load(Relaxed);
        let found = self.walk(head as u32, key)?;
        let rest = self.next_of(found.place);
        match found.before {
            None => publish(bucket, head, rest),
            Some(before) => {
                if let Some(link) = self.next.get(before as usize) {
                    link.store(rest, Release);
                }
                publish(bucket, head, head as u32);
            }
        }
        if let Some(clock) = &self.clock {
            clock.set(found.place, false);
        }
        self.give(found.place);
        self.len.store(self.len() - 1, Relaxed);
        Some(())
    }

    /// A place for one more entry. Under the lock.
    fn room(&self) -> Result<u32, Errno> {
        let full = self.len() >= self.max_entries;
        if full && self.clock.is_none() {
            return Err(Errno::TOO_BIG);
        }
        // First the place, so that nothing is evicted in vain.
        let place = self.take().ok_or(Errno::BUSY)?;
        if full && self.evict().is_none() {
            self.give(place);
            return Err(Errno::BUSY);
        }
        Ok(place)
    }

    /// Under the lock.
    fn evict(&self) -> Option<()> {
        let victim = self.clock.as_ref()?.victim(self.fresh.load(Relaxed))?;
        let mut words = [0; MAX_KEY_WORDS];
        let at = victim as usize * self.key_words;
        let key = self.keys.get(at..at + self.key_words)?;
        words.iter_mut().zip(key).for_each(|(to, word)| *to = word.load(Relaxed));
        self.unlink(words.get(..self.key_words)?)
    }

    fn lock(&self) -> Result<Locked<'_>, Errno> {
        for _ in 0..LOCK_SPINS {
            if !self.lock.load(Relaxed) && !self.lock.swap(true, AcqRel) {
                return Ok(Locked(&self.lock));
            }
            spin_loop();
        }
        Err(Errno::BUSY)
    }

    #[inline]
    fn bucket(&self, key: &[u64]) -> &AtomicU64 {
        // The count is a power of two, at least 1: the mask keeps the index inside.
        &self.buckets[hash(key) as usize & (self.buckets.len() - 1)]
    }

    #[inline]
    fn next_of(&self, place: u32) -> u32 {
        self.next.get(place as usize).map_or(NONE, |n| n.load(Acquire))
    }

    /// Follows links from `link` to the key. At most one step a place: links read while they change may form a ring.
    #[inline]
    fn walk(&self, mut link: u32, key: &[u64]) -> Option<Found> {
        let mut before = None;
        for _ in 0..self.next.len() {
            let place = link.checked_sub(1)?;
            if self.holds(place, key) {
                return Some(Found { place, before });
            }
            before = Some(place);
            link = self.next_of(place);
        }
        None
    }

    #[inline]
    fn holds(&self, place: u32, key: &[u64]) -> bool {
        let at = place as usize * self.key_words;
        match self.keys.get(at..at + self.key_words) {
            Some(words) => {
                words.len() == key.len() && words.iter().zip(key).all(|(w, k)| w.load(Relaxed) == *k)
            }
            None => false,
        }
    }

    /// Writes key and link of a place that no chain holds.
    #[inline]
    fn fill(&self, place: u32, key: &[u64], link: u32) {
        // Orders the version that freed this place before what follows (module docs).
        fence(Release);
        let at = place as usize * self.key_words;
        for (word, k) in self.keys.iter().skip(at).zip(key) {
            word.store(*k, Relaxed);
        }
        if let Some(next) = self.next.get(place as usize) {
            next.store(link, Relaxed);
        }
    }

    /// A place that nobody can hold a pointer to: the one that was freed first, if its time is over, else one never used. Under the
    /// lock.
    #[inline]
    fn take(&self) -> Option<u32> {
        if let Some(place) = self.take_freed() {
            return Some(place);
        }
        let fresh = self.fresh.load(Relaxed);
        if (fresh as usize) < self.next.len() {
            self.fresh.store(fresh + 1, Relaxed);
            return Some(fresh);
        }
        // Twice: the first of them is two epochs away at most, if no call is late.
        (0..2).find_map(|_| {
            self.grace.advance(&self.lock);
            self.take_freed()
        })
    }

    #[inline]
    fn take_freed(&self) -> Option<u32> {
        let taken = self.freed_out.load(Relaxed);
        if taken == self.freed_in.load(Relaxed) || !self.grace.is_over(self.stamp_of(taken).load(Relaxed)) {
            return None;
        }
        self.freed_out.store(taken.wrapping_add(1), Relaxed);
        Some(self.freed_at(taken).load(Relaxed))
    }

    /// Frees a place that no chain holds any more. Under the lock.
    #[inline]
    fn give(&self, place: u32) {
        let (given, taken) = (self.freed_in.load(Relaxed), self.freed_out.load(Relaxed));
        self.freed_at(given).store(place, Relaxed);
        self.stamp_of(given).store(self.grace.stamp(&self.lock), Relaxed);
        self.freed_in.store(given.wrapping_add(1), Relaxed);
        // A look at all readers, when some places wait: not at each deletion, and before there are none left.
        let spare = self.next.len() as u32 - self.max_entries;
        let waiting = given.wrapping_sub(taken) >= spare / 4;
        if waiting && !self.grace.is_over(self.stamp_of(taken).load(Relaxed)) {
            self.grace.advance(&self.lock);
        }
    }

    // The length of both rings is a power of two, at least 1: the mask keeps the index inside.
    #[inline]
    fn freed_at(&self, count: u32) -> &AtomicU32 {
        &self.freed[count as usize & (self.freed.len() - 1)]
    }

    #[inline]
    fn stamp_of(&self, count: u32) -> &AtomicU64 {
        &self.stamps[count as usize & (self.stamps.len() - 1)]
    }
}

/// Sets a chain's first link and raises its version. Release: whoever sees the link sees key and value too.
#[inline]
fn publish(bucket: &AtomicU64, old: u64, link: u32) {
    let version = (old >> 32).wrapping_add(1);
    bucket.store(version << 32 | u64::from(link), Release);
}

/// Folds the words of a key by 128-bit products. Not meant to withstand an adversary: a policy can only slow itself.
#[inline]
fn hash(key: &[u64]) -> u64 {
    const SEED: u64 = 0x243f_6a88_85a3_08d3; // digits of pi
    const MUL: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / golden ratio, odd
    key.iter().fold(SEED, |h, word| {
        let product = u128::from(h ^ word) * u128::from(MUL);
        (product as u64) ^ (product >> 64) as u64
    })
}
