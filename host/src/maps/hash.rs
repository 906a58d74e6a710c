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

use super::{Errno, MAX_KEY_WORDS, UpdateMode};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

/// Links are places + 1, so that zeroed memory means "no place".
const NONE: u32 = 0;
/// Attempts of a writer to get the lock; about 5 us. A holder that is scheduled out keeps it longer: then `BUSY`.
const LOCK_SPINS: u32 = 500;
/// Attempts of a reader before it takes the lock.
const FIND_RETRIES: u32 = 64;

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
    /// Ring of freed places, as long as a power of two. Written only under the lock.
    freed: Box<[AtomicU32]>,
    /// Places freed and taken again so far, modulo 2^32; the difference is the number of freed places.
    freed_in: AtomicU32,
    freed_out: AtomicU32,
    /// Places never used yet begin here.
    fresh: AtomicU32,
    len: AtomicU32,
    lock: AtomicBool,
}

fn zeroed<T: Default>(n: usize) -> Box<[T]> {
    (0..n).map(|_| T::default()).collect()
}

fn bucket_count(entries: u32) -> usize {
    (entries as usize).next_power_of_two()
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
    /// An index for `entries` keys of `key_size` bytes, all free. Both are checked by the caller.
    pub(super) fn new(key_size: u32, entries: u32) -> HashIndex {
        let (n, key_words) = (entries as usize, key_words(key_size));
        HashIndex {
            buckets: zeroed(bucket_count(entries)),
            next: zeroed(n),
            keys: zeroed(n * key_words),
            key_words,
            freed: zeroed(bucket_count(entries)),
            freed_in: AtomicU32::new(0),
            freed_out: AtomicU32::new(0),
            fresh: AtomicU32::new(0),
            len: AtomicU32::new(0),
            lock: AtomicBool::new(false),
        }
    }

    /// Bytes that such an index takes.
    pub(super) fn bytes(key_size: u32, entries: u32) -> u64 {
        12 * bucket_count(entries) as u64 + u64::from(entries) * (4 + 8 * key_words(key_size) as u64)
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
            if words.get(..self.key_words).is_some_and(|key| self.find(key) == Some(place)) {
                return (Some(place), place - from + 1);
            }
        }
        (None, used.saturating_sub(from))
    }

    /// The place of a key.
    #[inline]
    pub(super) fn find(&self, key: &[u64]) -> Option<u32> {
        let bucket = self.bucket(key);
        for _ in 0..FIND_RETRIES {
            let before = bucket.load(Acquire);
            let found = self.walk(before as u32, key);
            fence(Acquire);
            if bucket.load(Relaxed) == before {
                return found.map(|f| f.place);
            }
            std::hint::spin_loop();
        }
        self.find_locked(key)
    }

    /// A lookup for when writers keep changing the chain. If even the lock is not to be had (its holder is scheduled out)
    /// the answer is "no such key": a policy must be ready for that at any time.
    #[cold]
    fn find_locked(&self, key: &[u64]) -> Option<u32> {
        let _lock = self.lock().ok()?;
        self.walk(self.bucket(key).load(Relaxed) as u32, key).map(|f| f.place)
    }

    /// Inserts or updates: finds or takes a place, calls `put(place)` to write the value, then makes the key visible.
    #[inline]
    pub(super) fn upsert(&self, key: &[u64], mode: UpdateMode, put: impl FnOnce(u32)) -> Result<(), Errno> {
        let bucket = self.bucket(key);
        let _lock = self.lock()?;
        let head = bucket.load(Relaxed);
        match (self.walk(head as u32, key), mode) {
            (Some(_), UpdateMode::NoExist) => Err(Errno::EXIST),
            (None, UpdateMode::Exist) => Err(Errno::NOENT),
            (Some(found), _) => {
                put(found.place);
                Ok(())
            }
            (None, _) => {
                let place = self.take().ok_or(Errno::TOO_BIG)?;
                self.fill(place, key, head as u32);
                put(place);
                publish(bucket, head, place + 1);
                self.len.store(self.len() + 1, Relaxed);
                Ok(())
            }
        }
    }

    /// Removes a key.
    #[inline]
    pub(super) fn remove(&self, key: &[u64]) -> Result<(), Errno> {
        let bucket = self.bucket(key);
        let _lock = self.lock()?;
        let head = bucket.load(Relaxed);
        let found = self.walk(head as u32, key).ok_or(Errno::NOENT)?;
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
        self.give(found.place);
        self.len.store(self.len() - 1, Relaxed);
        Ok(())
    }

    fn lock(&self) -> Result<Locked<'_>, Errno> {
        for _ in 0..LOCK_SPINS {
            if !self.lock.load(Relaxed) && !self.lock.swap(true, AcqRel) {
                return Ok(Locked(&self.lock));
            }
            std::hint::spin_loop();
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

    /// A free place: one never used, else the one that was freed first. Under the lock.
    #[inline]
    fn take(&self) -> Option<u32> {
        let fresh = self.fresh.load(Relaxed);
        if (fresh as usize) < self.next.len() {
            self.fresh.store(fresh + 1, Relaxed);
            return Some(fresh);
        }
        let taken = self.freed_out.load(Relaxed);
        if taken == self.freed_in.load(Relaxed) {
            return None;
        }
        self.freed_out.store(taken.wrapping_add(1), Relaxed);
        Some(self.freed_at(taken).load(Relaxed))
    }

    /// Hands a place back. Under the lock.
    #[inline]
    fn give(&self, place: u32) {
        let given = self.freed_in.load(Relaxed);
        self.freed_at(given).store(place, Relaxed);
        self.freed_in.store(given.wrapping_add(1), Relaxed);
    }

    #[inline]
    fn freed_at(&self, count: u32) -> &AtomicU32 {
        // The length is a power of two, at least 1: the mask keeps the index inside.
        &self.freed[count as usize & (self.freed.len() - 1)]
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
