//! [`Map`]: state that policies share, with the kernel's semantics; [`MapRegistry`] decides who shares what.
//!
//! The values of a map lie in a Wasm memory of its own, entry `i` at `i * stride`, which every policy that declares the
//! map imports; policies read and write values there directly. Keys and buckets of hash maps lie in the host, out of
//! reach of any policy. Nothing is allocated after a map's creation, and a policy's call waits for no lock: reads take
//! none, and writes give up with [`Errno::BUSY`] after a bounded spin. (A spin lock in a map's value is the policy's own, and does wait; see
//! `instance/held.rs`. The lock's bytes are no data: updates leave them alone, and copies have 0 there.)
//!
//! As in the kernel, a pointer from a lookup stays usable after the entry is deleted; it then points to whatever entry
//! gets the place next (freed places are reused last-freed last, so that this takes long).

mod array;
mod hash;
mod registry;
mod ring;
mod tools;

pub use registry::{DEFAULT_MAP_BYTES, MapRegistry, MapSet, Owner, Scope, ScopeRules};

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::SharedBytes;
use hash::HashIndex;
use ring::Ring;
use ringfence_guest::abi::update;
use ringfence_translator::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use ringfence_translator::map::SPIN_LOCK_BYTES;
use ringfence_translator::{MapDecl, MapKind, MapLayout};
use std::fmt;
use wasmtime::{MemoryType, SharedMemory};

/// Error number of a map operation, as the kernel's helpers return it (negative).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i64);

impl Errno {
    /// `-EPERM`: the map is read-only for policies.
    pub const PERM: Errno = Errno(-1);
    /// `-ENOENT`: no such key.
    pub const NOENT: Errno = Errno(-2);
    /// `-E2BIG`: the map is full, or the index of an array too large.
    pub const TOO_BIG: Errno = Errno(-7);
    /// `-EAGAIN`: no room in the ring buffer.
    pub const AGAIN: Errno = Errno(-11);
    /// `-EFAULT`: a pointer that points to no memory of the policy.
    pub const FAULT: Errno = Errno(-14);
    /// `-EBUSY`: other writers did not let go within a bounded spin.
    pub const BUSY: Errno = Errno(-16);
    /// `-EEXIST`: the key is there already.
    pub const EXIST: Errno = Errno(-17);
    /// `-EINVAL`: unknown flags, wrong sizes, or an operation that this kind does not have.
    pub const INVAL: Errno = Errno(-22);

    /// The negative number that a helper leaves in r0.
    pub const fn code(self) -> i64 {
        self.0
    }
    /// `ENOENT` and so on.
    pub const fn name(self) -> &'static str {
        match self.0 {
            -1 => "EPERM",
            -2 => "ENOENT",
            -7 => "E2BIG",
            -11 => "EAGAIN",
            -14 => "EFAULT",
            -16 => "EBUSY",
            -17 => "EEXIST",
            _ => "EINVAL",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Errno {}

/// Flags of an update, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateMode {
    Any,
    NoExist,
    Exist,
}

impl UpdateMode {
    #[inline]
    pub(crate) fn from_flags(flags: u64) -> Result<UpdateMode, Errno> {
        match flags {
            update::ANY => Ok(UpdateMode::Any),
            update::NOEXIST => Ok(UpdateMode::NoExist),
            update::EXIST => Ok(UpdateMode::Exist),
            _ => Err(Errno::INVAL),
        }
    }
}

/// Most words of a key.
pub(crate) const MAX_KEY_WORDS: usize = MAX_KEY_BYTES as usize / 8;

/// A map: its shape, its values, and for hash maps the index.
#[derive(Debug)]
pub struct Map {
    decl: MapDecl,
    layout: MapLayout,
    values: SharedBytes,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// Arrays, and global data (an array of one).
    Array,
    Hash(HashIndex),
    Ring(Ring),
    /// Targets of tail calls; those that an object names are part of its code, and there are no others.
    Programs,
}

impl Map {
    /// A new map: all zeros, or the initial contents of a data section. `decl.flags` other than 0 are not refused:
    /// those that change what a map *is* are the loader's to refuse, and the rest (`BPF_F_NO_PREALLOC`) are hints.
    ///
    /// # Errors
    /// [`ErrorKind::BadMap`] for sizes that make no sense, [`ErrorKind::MapLimit`] if memory is short.
    pub fn new(engine: &Engine, decl: &MapDecl) -> Result<Map> {
        let layout = check(decl)?;
        let ty = MemoryType::shared(layout.pages, layout.pages);
        let limit = |e: &dyn fmt::Display| {
            Error::new(ErrorKind::MapLimit, format!("map {}: no memory: {e}", decl.name))
        };
        let memory = SharedMemory::new(engine.wasmtime(), ty).map_err(|e| limit(&e))?;
        let values = SharedBytes::new(memory).ok_or_else(|| limit(&"misaligned"))?;
        let body = match decl.kind {
            MapKind::Hash => Body::Hash(HashIndex::new(decl.key_size, decl.max_entries)),
            MapKind::RingBuf => Body::Ring(Ring::new(decl.max_entries)),
            MapKind::ProgArray => Body::Programs,
            // `check` has refused what has no body yet.
            _ => Body::Array,
        };
        let map = Map { decl: decl.clone(), layout, values, body };
        map.put(0, |i| word_at(&decl.init, i), decl.init.len());
        Ok(map)
    }

    /// Name, kind and sizes.
    pub fn decl(&self) -> &MapDecl {
        &self.decl
    }

    /// The shape in one line: `hash(key 8, value 16, 1024 entries)`.
    pub fn shape(&self) -> String {
        shape(&self.decl)
    }

    /// Entries in use; for arrays all of them; for ring buffers the bytes that were not consumed yet.
    pub fn len(&self) -> u32 {
        match &self.body {
            Body::Array => self.decl.max_entries,
            Body::Hash(index) => index.len(),
            Body::Ring(ring) => ring.query(0) as u32,
            Body::Programs => 0,
        }
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

    pub(crate) fn ring(&self) -> Option<&Ring> {
        match &self.body {
            Body::Ring(ring) => Some(ring),
            _ => None,
        }
    }

    /// The first entry of a hash from place `from` on: its place, with its key in `words`; how many places were looked at.
    pub(crate) fn next_entry(&self, from: u32, words: &mut [u64; MAX_KEY_WORDS]) -> (Option<u32>, u32) {
        match &self.body {
            Body::Hash(index) => index.next_from(from, words),
            _ => (None, 0),
        }
    }

    /// No entry in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the map takes, index included.
    pub fn memory_bytes(&self) -> u64 {
        memory_bytes(&self.decl, self.layout)
    }

    /// A copy of the value of `key`; `None` if there is none or the key has the wrong size. Each aligned 8-byte word of the
    /// copy is one that somebody wrote; two words may be from two updates.
    pub fn lookup(&self, key: &[u8]) -> Option<Vec<u8>> {
        with_words(key, self.decl.key_size, |words| {
            loop {
                let slot = self.find(words)?;
                let value = self.value(slot);
                // Else the place went to another key while it was copied.
                if self.find(words) == Some(slot) {
                    return Some(value);
                }
            }
        })?
    }

    /// Sets the value of `key`. Waits for other writers, unlike the helper: not for the decision path.
    ///
    /// # Errors
    /// [`Errno::INVAL`] (sizes, flags), [`Errno::NOENT`], [`Errno::EXIST`], [`Errno::TOO_BIG`], as the kernel.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let mode = UpdateMode::from_flags(flags)?;
        if value.len() != self.decl.value_size as usize {
            return Err(Errno::INVAL);
        }
        let set =
            || with_words(key, self.decl.key_size, |words| self.upsert(words, mode, |i| word_at(value, i)));
        patiently(|| set().unwrap_or(Err(Errno::INVAL)))
    }

    /// Deletes `key`. Waits for other writers, unlike the helper.
    ///
    /// # Errors
    /// [`Errno::NOENT`]; [`Errno::INVAL`] for a wrong size, and for arrays, whose entries cannot be deleted.
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        patiently(|| {
            with_words(key, self.decl.key_size, |words| self.remove(words)).unwrap_or(Err(Errno::INVAL))
        })
    }

    /// Copies of all entries, by place. Entries that come or go meanwhile may be missing; aligned 8-byte words are whole.
    pub fn entries(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        (0..self.decl.max_entries).filter_map(|slot| self.entry(slot))
    }

    fn entry(&self, slot: u32) -> Option<(Vec<u8>, Vec<u8>)> {
        let index = match &self.body {
            Body::Array => return Some((slot.to_le_bytes().to_vec(), self.value(slot))),
            Body::Hash(index) => index,
            Body::Ring(_) | Body::Programs => return None,
        };
        let key = index.key(slot)?;
        // The key may have been read while it was written, and the place may be free: only what a lookup finds in
        // this place, before and after copying the value, is an entry.
        let here = || index.find(&key) == Some(slot);
        let value = here().then(|| self.value(slot))?;
        here().then(|| (bytes_of(&key, self.decl.key_size), value))
    }

    fn value(&self, slot: u32) -> Vec<u8> {
        let first = self.first_word(slot);
        let lock = self.lock_word();
        let words = (0..self.layout.stride as usize / 8).map(|i| {
            let word = self.values.load(first + i).unwrap_or(0);
            // The lock is not data, and reads as 0.
            if let Some((_, mask)) = lock.filter(|(at, _)| *at == i) { word & !mask } else { word }
        });
        bytes_of(&words.collect::<Vec<_>>(), self.decl.value_size)
    }

    #[inline]
    fn first_word(&self, slot: u32) -> usize {
        slot as usize * (self.layout.stride as usize / 8)
    }

    /// Writes the first `bytes` of a value, word by word. Padding after the value up to the stride is written too.
    #[inline]
    fn put(&self, slot: u32, word: impl Fn(usize) -> u64, bytes: usize) {
        let first = self.first_word(slot);
        let lock = self.lock_word();
        for i in 0..bytes.div_ceil(8) {
            match lock.filter(|(at, _)| *at == i) {
                Some((_, mask)) => self.values.merge(first + i, mask, word(i)),
                None => self.values.store(first + i, word(i)),
            }
        }
    }

    /// The word of a value that holds its spin lock, and which bits of it are the lock.
    #[inline]
    fn lock_word(&self) -> Option<(usize, u64)> {
        let at = self.decl.spin_lock?;
        Some((at as usize / 8, u64::from(u32::MAX) << (at % 8 * 8)))
    }

    /// Does the spin lock of a value lie at that offset of the memory?
    pub(crate) fn is_lock(&self, offset: u32) -> bool {
        let stride = self.layout.stride;
        self.decl.spin_lock == Some(offset % stride) && offset / stride < self.decl.max_entries
    }

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.values
    }

    /// Offset of a value in the map's memory.
    #[inline]
    pub(crate) fn value_offset(&self, slot: u32) -> u32 {
        // No overflow: `check` bounds the whole memory below 4 GiB, and `slot` comes from `find`.
        slot * self.layout.stride
    }

    /// The place of a key, which is given as zero-padded words.
    #[inline]
    pub(crate) fn find(&self, key: &[u64]) -> Option<u32> {
        match &self.body {
            Body::Array => array::find(&self.decl, key),
            Body::Hash(index) => index.find(key),
            Body::Ring(_) | Body::Programs => None,
        }
    }

    /// Sets a value whose words `word(0)`, `word(1)`, ... yields. Gives up with [`Errno::BUSY`] after a bounded spin.
    #[inline]
    pub(crate) fn upsert(
        &self,
        key: &[u64],
        mode: UpdateMode,
        word: impl Fn(usize) -> u64,
    ) -> Result<(), Errno> {
        let put = |slot| self.put(slot, word, self.decl.value_size as usize);
        match &self.body {
            Body::Array => array::target(&self.decl, key, mode).map(put),
            Body::Hash(index) => index.upsert(key, mode, put),
            Body::Ring(_) | Body::Programs => Err(Errno::INVAL),
        }
    }

    /// Deletes a key. Gives up with [`Errno::BUSY`] after a bounded spin.
    #[inline]
    pub(crate) fn remove(&self, key: &[u64]) -> Result<(), Errno> {
        match &self.body {
            Body::Hash(index) => index.remove(key),
            Body::Array | Body::Ring(_) | Body::Programs => Err(Errno::INVAL),
        }
    }
}

/// Bytes of memory that a map of this shape takes, index included.
fn memory_bytes(decl: &MapDecl, layout: MapLayout) -> u64 {
    let index = match decl.kind {
        MapKind::Hash => HashIndex::bytes(decl.key_size, decl.max_entries),
        MapKind::RingBuf => Ring::bytes(decl.max_entries),
        _ => 0,
    };
    u64::from(layout.pages) * 65536 + index
}

/// Repeats what other writers keep from succeeding. The lock is held for a value's copy only, so this ends.
fn patiently(mut f: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match f() {
            Err(Errno::BUSY) => std::thread::yield_now(),
            done => return done,
        }
    }
}

fn shape(decl: &MapDecl) -> String {
    let kind = decl.kind.name();
    let (k, v, n) = (decl.key_size, decl.value_size, decl.max_entries);
    let mut text = format!("{kind}(key {k}, value {v}, {n} entries");
    if decl.flags != 0 {
        text += &format!(", flags {:#x}", decl.flags);
    }
    if let Some(at) = decl.spin_lock {
        text += &format!(", lock at {at}");
    }
    text += if decl.read_only { ", read-only)" } else { ")" };
    text
}

/// Sizes that the host can serve.
fn check(decl: &MapDecl) -> Result<MapLayout> {
    let bad = |why: &str| Error::new(ErrorKind::BadMap, format!("map {}: {why}: {}", decl.name, shape(decl)));
    match decl.kind {
        MapKind::Array | MapKind::Hash | MapKind::Global | MapKind::ProgArray => {}
        MapKind::RingBuf => return check_ring(decl, bad),
        MapKind::LruHash | MapKind::PercpuArray | MapKind::PercpuHash => {
            return Err(bad("this host has no maps of that kind yet"));
        }
    }
    let lock_fits =
        |at: u32| at.is_multiple_of(SPIN_LOCK_BYTES) && at.saturating_add(SPIN_LOCK_BYTES) <= decl.value_size;
    if !decl.spin_lock.is_none_or(lock_fits) {
        return Err(bad("the spin lock is misaligned or outside the value"));
    }
    if decl.key_size == 0 || decl.key_size > MAX_KEY_BYTES {
        return Err(bad("keys must have 1 to 512 bytes"));
    }
    if decl.kind != MapKind::Hash && decl.key_size != 4 {
        return Err(bad("array keys must have 4 bytes"));
    }
    if decl.value_size > MAX_VALUE_BYTES {
        return Err(bad("values may have at most 1 MiB"));
    }
    if decl.init.len() > decl.value_size as usize {
        return Err(bad("initial contents are larger than the value"));
    }
    decl.layout().ok_or_else(|| bad("no entries, no value, or larger than 4 GiB"))
}

fn check_ring(decl: &MapDecl, bad: impl Fn(&str) -> Error) -> Result<MapLayout> {
    if (decl.key_size, decl.value_size) != (0, 0) || !decl.init.is_empty() {
        return Err(bad("a ring buffer has neither keys nor values"));
    }
    if !decl.max_entries.is_power_of_two() || !decl.max_entries.is_multiple_of(4096) {
        return Err(bad("a ring buffer has a power of two of pages"));
    }
    decl.layout().ok_or_else(|| bad("larger than 1 GiB"))
}

/// Word `i` of little-endian bytes; missing bytes are zero.
#[inline]
pub(crate) fn word_at(bytes: &[u8], i: usize) -> u64 {
    let rest = bytes.get(i * 8..).unwrap_or(&[]);
    if let Some(word) = rest.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    match <[u8; 4]>::try_from(rest) {
        Ok(half) => u64::from(u32::from_le_bytes(half)),
        Err(_) => rest.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)),
    }
}

/// The first `size` bytes of little-endian words.
fn bytes_of(words: &[u64], size: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.truncate(size as usize);
    bytes
}

/// Calls `f` with a key as zero-padded words; `None` if it has the wrong size.
fn with_words<T>(key: &[u8], key_size: u32, f: impl FnOnce(&[u64]) -> T) -> Option<T> {
    let n = key.len().div_ceil(8);
    if key.len() != key_size as usize || n > MAX_KEY_WORDS {
        return None;
    }
    let mut words = [0; MAX_KEY_WORDS];
    words.iter_mut().take(n).enumerate().for_each(|(i, w)| *w = word_at(key, i));
    Some(f(&words[..n]))
}

#[cfg(test)]
mod tests;
