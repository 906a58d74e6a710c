//! The host's side of a [`Map`]: reading, writing and dumping it, off the decision path. These wait for other writers, and copy
//! values.
//!
//! The value of a per-CPU map is, as for bpf(2), the values of all slots one after the other, each padded to 8 bytes:
//! [`Map::slots`] times [`Map::slot_value_bytes`].

use super::words::{bytes_of, with_words, word_at};
use super::{Body, Errno, Map};
use ringfence_guest::abi::update;
use ringfence_translator::MapKind;

impl Map {
    /// Bytes of one slot's value in what [`Map::lookup`] gives: the value size, for per-CPU maps rounded up to 8.
    pub fn slot_value_bytes(&self) -> usize {
        let size = self.decl.value_size as usize;
        if self.decl.kind.is_percpu() { size.next_multiple_of(8) } else { size }
    }

    /// A copy of the value of `key`; `None` if there is none or the key has the wrong size, and from ring buffers and program arrays. Each
    /// aligned 8-byte word of the copy is one that somebody wrote; two words may be from two updates. An LRU hash does not take it for a use.
    pub fn lookup(&self, key: &[u8]) -> Option<Vec<u8>> {
        with_words(key, self.decl.key_size, |words| {
            loop {
                let place = self.find_patiently(words)?;
                let value = self.value(place);
                // Else the place went to another key while it was copied.
                if self.find_patiently(words) == Some(place) {
                    return Some(value);
                }
            }
        })?
    }

    /// Sets the value of `key`. Of a per-CPU map, `value` is either one slot's value of `value_size` bytes, which all slots get,
    /// or the values of all slots as [`Map::lookup`] gives them. Flags are those of `bpf_map_update_elem`: `BPF_ANY`, `BPF_NOEXIST`,
    /// `BPF_EXIST`, and `BPF_F_LOCK` (4) for arrays and hashes whose values have a spin lock: the value is then written under it.
    ///
    /// # Errors
    /// As the kernel: [`Errno::INVAL`] (sizes, flags, kinds without values), [`Errno::NOENT`], [`Errno::EXIST`], [`Errno::TOO_BIG`] (the map
    /// is full, an index is too large). [`Errno::PERM`] for `.rodata`, which is part of the code. [`Errno::BUSY`] if all places of deleted
    /// entries may still be pointed to, or the spin lock is held: try again.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let (size, slots) = (self.decl.value_size as usize, self.slots());
        let step = if value.len() == size { 0 } else { self.slot_value_bytes() };
        if value.len() != size && value.len() != slots as usize * self.slot_value_bytes() {
            return Err(Errno::INVAL);
        }
        if self.decl.kind == MapKind::Global && self.decl.read_only {
            return Err(Errno::PERM);
        }
        // For bpf(2), unlike for the helper, this comes before the key.
        if flags & update::F_LOCK != 0 && self.decl.spin_lock.is_none() {
            return Err(Errno::INVAL);
        }
        let of_slot = |slot: u32| value.get(slot as usize * step..).and_then(|v| v.get(..size));
        let set = |words: &[u64]| {
            self.upsert_with(words, flags, |place, locked, new| {
                for slot in 0..self.slots() {
                    // A slot that a rank takes meanwhile has 0.
                    let value = of_slot(slot).unwrap_or_default();
                    self.write(slot, place, locked && !new, |i| word_at(value, i))?;
                }
                Ok(())
            })
        };
        patiently(|| with_words(key, self.decl.key_size, set).unwrap_or(Err(Errno::INVAL)))
    }

    /// The values of `key`, one for each slot; `None` as from [`Map::lookup`].
    pub fn lookup_slots(&self, key: &[u8]) -> Option<Vec<Vec<u8>>> {
        self.lookup(key).map(|value| self.by_slot(&value))
    }

    /// Sets the value of `key` in one slot, others of a new entry to 0. A map that is not per CPU has slot 0 alone.
    ///
    /// # Errors
    /// As [`Map::update`]; [`Errno::INVAL`] also for a slot that does not exist.
    pub fn update_slot(&self, key: &[u8], slot: u32, value: &[u8], flags: u64) -> Result<(), Errno> {
        if slot >= self.slots() || value.len() != self.decl.value_size as usize {
            return Err(Errno::INVAL);
        }
        if !self.decl.kind.is_percpu() {
            return self.update(key, value, flags);
        }
        let set = |words: &[u64]| self.upsert(words, flags, slot, |i| word_at(value, i));
        patiently(|| with_words(key, self.decl.key_size, set).unwrap_or(Err(Errno::INVAL)))
    }

    /// Deletes `key`.
    ///
    /// # Errors
    /// [`Errno::NOENT`]; [`Errno::INVAL`] for a wrong size, and for arrays, whose entries cannot be deleted; [`Errno::BUSY`] if the system
    /// cannot make it safe beside running policies.
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        if !self.allow_deletes() {
            return Err(Errno::BUSY);
        }
        patiently(|| {
            with_words(key, self.decl.key_size, |words| self.remove(words)).unwrap_or(Err(Errno::INVAL))
        })
    }

    /// Copies of all entries, keys and values as [`Map::lookup`] gives them, by place. Entries that come or go meanwhile may be
    /// missing; aligned 8-byte words are whole. None from ring buffers and program arrays.
    pub fn entries(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        (0..self.layout.places).filter_map(|place| self.entry(place))
    }

    /// Places that may hold an entry, for going through them with [`Map::entry_at`] in pieces: more than entries for hashes.
    pub fn places(&self) -> u32 {
        if self.decl.kind.has_values() { self.layout.places } else { 0 }
    }

    /// The entry at a place: its key, and its value in each slot. `None` if the place is free.
    pub fn entry_at(&self, place: u32) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
        if place >= self.places() {
            return None;
        }
        self.entry(place).map(|(key, value)| (key, self.by_slot(&value)))
    }

    /// Values of all slots, taken apart, without what pads them.
    fn by_slot(&self, value: &[u8]) -> Vec<Vec<u8>> {
        let one = |v: &[u8]| v.get(..self.decl.value_size as usize).unwrap_or(v).to_vec();
        value.chunks(self.slot_value_bytes().max(1)).map(one).collect()
    }

    fn entry(&self, place: u32) -> Option<(Vec<u8>, Vec<u8>)> {
        let index = match &self.body {
            Body::Array => return Some((place.to_le_bytes().to_vec(), self.value(place))),
            Body::Hash(index) => index,
            Body::Ring(_) | Body::Programs => return None,
        };
        let key = index.key(place)?;
        // The key may have been read while it was written, and the place may be free: only what a lookup finds in
        // this place, before and after copying the value, is an entry.
        let here = || self.find_patiently(&key) == Some(place);
        let value = here().then(|| self.value(place))?;
        here().then(|| (bytes_of(&key, self.decl.key_size), value))
    }

    /// Takes records from a ring buffer, the oldest first, and hands a copy of each to `take`: at most `max_bytes` of them
    /// together, but one at least if there is one. The number of records. Nothing from other maps, nor while somebody else consumes.
    pub fn drain(&self, max_bytes: usize, mut take: impl FnMut(&[u8])) -> usize {
        let Body::Ring(ring) = &self.body else { return 0 };
        let (mut count, mut left, mut words) = (0, max_bytes, Vec::new());
        ring.consume(|offset, len| {
            if count > 0 && len as usize > left {
                return false;
            }
            left = left.saturating_sub(len as usize);
            count += 1;
            let first = offset as usize / 8;
            words.clear();
            words.extend((0..len.div_ceil(8) as usize).map(|i| self.values.load(first + i).unwrap_or(0)));
            take(&bytes_of(&words, len));
            true
        });
        count
    }

    /// Records of a ring buffer that found no room.
    pub fn dropped(&self) -> u64 {
        match &self.body {
            Body::Ring(ring) => ring.dropped(),
            _ => 0,
        }
    }

    /// The place of a key, without noting a use.
    fn find_patiently(&self, key: &[u64]) -> Option<u32> {
        let Body::Hash(index) = &self.body else { return self.find(key) };
        loop {
            match index.find(key) {
                Ok(place) => return place,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// A copy of what is at a place, in all slots.
    fn value(&self, place: u32) -> Vec<u8> {
        let slots = 0..self.slots();
        slots.flat_map(|slot| self.slot_value(slot, place)).collect()
    }

    fn slot_value(&self, slot: u32, place: u32) -> Vec<u8> {
        let first = self.value_offset(slot, place) as usize / 8;
        let lock = self.lock_word();
        let words = (0..self.layout.stride as usize / 8).map(|i| {
            let word = self.values.load(first + i).unwrap_or(0);
            // The lock is not data, and reads as 0.
            if let Some((_, mask)) = lock.filter(|(at, _)| *at == i) { word & !mask } else { word }
        });
        bytes_of(&words.collect::<Vec<_>>(), self.slot_value_bytes() as u32)
    }
}

/// Attempts of the host at what other writers keep from succeeding; they hold the lock for a value's copy only. A bound, since a place
/// may also be in use for as long as some thread is not scheduled.
const PATIENCE: u32 = 10_000;

fn patiently(mut f: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 0..PATIENCE {
        match f() {
            Err(Errno::BUSY) => std::thread::yield_now(),
            done => return done,
        }
    }
    Err(Errno::BUSY)
}
