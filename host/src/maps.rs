//! [`Map`]: state that policies share, with the kernel's semantics; [`MapRegistry`] decides who shares what.
//!
//! The values of a map lie in a Wasm memory of its own, place `i` at `i * stride`, which every policy that declares the
//! map imports; policies read and write values there directly. Keys and buckets of hash maps lie in the host, out of
//! reach of any policy. Nothing is allocated after a map's creation, and a policy's call waits for no lock: reads take
//! none, and writes give up with [`Errno::BUSY`] after a bounded spin. (A spin lock in a map's value is the policy's own, and does wait; see
//! `instance/held.rs`. The lock's bytes are no data: updates leave them alone, and copies have 0 there.)
//!
//! | kind | what is particular |
//! |---|---|
//! | array | all entries are there from the start, zero |
//! | hash | an update of an entry that is there writes its value in place (Linux puts a new one beside it) |
//! | LRU hash | a full one evicts by second chance (`hash.rs`) |
//! | per-CPU array, per-CPU hash | a value for each rank (`slots.rs`); a policy sees its own, the host all |
//! | ring buffer | `ring.rs` |
//! | program array | holds the programs that the object itself puts into its slots; they are part of its code |
//!
//! **Pointers.** A pointer from a look-up stays usable until the policy's call returns, also if the entry is deleted or evicted: it
//! then points to what the deleted entry was, and to no other entry. `grace.rs` has the rule and its proof.
//!
//! **Words.** An aligned word of 8 bytes is never torn: every access of the host has that width, and those of policies are Wasm's. Two words
//! of a value may be of two updates; a spin lock (and [`BPF_F_LOCK`](Map::update)) keeps them together.

mod access;
mod array;
mod errno;
mod grace;
mod hash;
mod reader;
mod registry;
mod ring;
mod shape;
mod slots;
mod sync;
mod words;

pub use errno::Errno;
pub(crate) use errno::{UpdateFlags, UpdateMode};
pub(crate) use reader::Reader;
pub(crate) use registry::DataOf;
pub use registry::{DEFAULT_MAP_BYTES, MapRegistry, MapSet, Owner, Scope, ScopeRules};
pub(crate) use slots::{RankSlot, RankSlots};
pub(crate) use words::word_at;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::SharedBytes;
use hash::HashIndex;
use ring::Ring;
use ringfence_translator::limits::MAX_KEY_BYTES;
use ringfence_translator::{MapDecl, MapKind, MapLayout};
use shape::check;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use wasmtime::{MemoryType, SharedMemory};

/// Most words of a key.
pub(crate) const MAX_KEY_WORDS: usize = MAX_KEY_BYTES as usize / 8;
/// Attempts of an update with `BPF_F_LOCK` to get the lock in a value; about 10 us.
const VALUE_LOCK_SPINS: u32 = 1000;

/// A map: its shape, its values, and for hash maps the index.
#[derive(Debug)]
pub struct Map {
    decl: MapDecl,
    layout: MapLayout,
    values: SharedBytes,
    body: Body,
    /// Slots of a per-CPU map that some rank has had: no policy has touched those beyond.
    slots: AtomicU32,
    /// Set once deletions are safe: see [`Map::allow_deletes`].
    deletes: OnceLock<()>,
}

#[derive(Debug)]
enum Body {
    /// Arrays, and global data (an array of one).
    Array,
    /// Hashes of all kinds.
    Hash(HashIndex),
    Ring(Ring),
    /// Targets of tail calls; those that objects and the manifest name are part of the code, and there are no others.
    Programs,
}

impl Map {
    /// A new map: all zeros, or the initial contents of a data section.
    ///
    /// # Errors
    /// [`ErrorKind::BadMap`] for sizes that make no sense and flags that are not offered (`shape.rs` has the list), [`ErrorKind::MapLimit`] if memory is short.
    pub fn new(engine: &Engine, decl: &MapDecl) -> Result<Map> {
        let layout = check(decl)?;
        let ty = MemoryType::shared(layout.pages, layout.pages);
        let limit = |e: &dyn fmt::Display| {
            Error::new(ErrorKind::MapLimit, format!("map {}: no memory: {e}", decl.name))
        };
        let memory = SharedMemory::new(engine.wasmtime(), ty).map_err(|e| limit(&e))?;
        let values = SharedBytes::new(memory).ok_or_else(|| limit(&"misaligned"))?;
        let body = match decl.kind {
            MapKind::Hash | MapKind::LruHash | MapKind::PercpuHash => {
                Body::Hash(HashIndex::new(shape::index(decl, layout), reader::grace()))
            }
            MapKind::RingBuf => Body::Ring(Ring::new(decl.max_entries)),
            MapKind::ProgArray => Body::Programs,
            MapKind::Array | MapKind::PercpuArray | MapKind::Global => Body::Array,
        };
        let slots = AtomicU32::new(u32::from(decl.kind.is_percpu()));
        let map = Map { decl: decl.clone(), layout, values, body, slots, deletes: OnceLock::new() };
        if let Body::Hash(index) = &map.body
            && !reader::is_asymmetric()
        {
            index.reclaim();
        }
        map.put(0, |i| word_at(&decl.init, i), decl.init.len());
        Ok(map)
    }

    /// Name, kind and sizes.
    pub fn decl(&self) -> &MapDecl {
        &self.decl
    }

    /// The shape in one line: `hash(key 8, value 16, 1024 entries)`.
    pub fn shape(&self) -> String {
        self.decl.shape()
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
        shape::memory_bytes(&self.decl, self.layout)
    }

    /// Writes the first `bytes` of the value at `offset`, word by word. Padding after the value up to the stride is written too.
    #[inline]
    fn put(&self, offset: u32, word: impl Fn(usize) -> u64, bytes: usize) {
        let first = offset as usize / 8;
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
        self.decl.spin_lock == Some(offset % stride) && offset / stride < self.layout.places
    }

    /// Is `BPF_F_LOCK` a flag that the kernel knows of for such maps (whether their values have a lock or not)?
    fn is_lockable(&self) -> bool {
        !matches!(self.decl.kind, MapKind::LruHash | MapKind::PercpuHash)
    }

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.values
    }

    /// Offset of a value in the map's memory. `slot` counts for per-CPU maps only.
    #[inline]
    pub(crate) fn value_offset(&self, slot: u32, place: u32) -> u32 {
        // No overflow: `check` bounds the whole memory below 4 GiB, `place` comes from `find`, and `slot` is a rank's.
        slot * self.layout.slot_bytes + place * self.layout.stride
    }

    /// Slots of a per-CPU map that ranks have or had: 1 at least, at most [`PERCPU_SLOTS`](ringfence_translator::limits::PERCPU_SLOTS).
    /// 1 for other kinds.
    pub fn slots(&self) -> u32 {
        self.slots.load(Relaxed).max(1)
    }

    /// A rank of that slot is about to use the map.
    pub(crate) fn use_slot(&self, slot: u32) {
        if self.decl.kind.is_percpu() {
            self.slots.fetch_max(slot + 1, Relaxed);
        }
    }

    /// Must a policy settle its [`Reader`] before it looks up here?
    #[inline]
    pub(crate) fn reclaims(&self) -> bool {
        matches!(&self.body, Body::Hash(index) if index.reclaims())
    }

    /// Prepares for deletions: from its return on, calls are known to `Grace` before they look up here, those under way
    /// included. Off the decision path; false if that cannot be had, which no system that we know does.
    pub(crate) fn allow_deletes(&self) -> bool {
        let Body::Hash(index) = &self.body else { return true };
        if self.deletes.get().is_some() {
            return true;
        }
        if !index.reclaims() {
            index.reclaim();
        }
        // Two that come here at once each force a fence, so each returns after one.
        let visible = reader::make_notes_visible();
        if visible {
            self.deletes.get_or_init(|| ());
        }
        visible
    }

    /// The place of a key, which is given as zero-padded words, for a policy: an LRU hash notes the use. `None` also if writers kept
    /// changing the chain and the holder of the map's lock is scheduled out: a policy must be ready for that at any time.
    #[inline]
    pub(crate) fn find(&self, key: &[u64]) -> Option<u32> {
        match &self.body {
            Body::Array => array::find(&self.decl, key),
            Body::Hash(index) => {
                let place = index.find(key).ok().flatten();
                if let Some(place) = place {
                    index.mark(place);
                }
                place
            }
            Body::Ring(_) | Body::Programs => None,
        }
    }

    /// Sets the value of a key in that slot, whose words `word(0)`, `word(1)`, ... yields; a new entry of a per-CPU hash is 0 in all
    /// others. Gives up with [`Errno::BUSY`] after a bounded spin.
    #[inline]
    pub(crate) fn upsert(
        &self,
        key: &[u64],
        flags: u64,
        slot: u32,
        word: impl Fn(usize) -> u64,
    ) -> Result<(), Errno> {
        self.upsert_with(key, flags, |place, locked, new| {
            if new && self.decl.kind == MapKind::PercpuHash {
                let others = (0..self.slots()).filter(|s| *s != slot);
                others.for_each(|s| self.put_value(s, place, |_| 0));
            }
            self.write(slot, place, locked && !new, &word)
        })
    }

    /// As [`Map::upsert`]; `put(place, locked, new)` writes the value.
    #[inline]
    fn upsert_with(
        &self,
        key: &[u64],
        flags: u64,
        put: impl FnOnce(u32, bool, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let UpdateFlags { mode, locked } = UpdateFlags::parse(flags, self.is_lockable())?;
        let lockless = locked && self.decl.spin_lock.is_none();
        match &self.body {
            Body::Array => {
                let place = array::target(&self.decl, key, mode)?;
                // The kernel looks for the lock last (`array_map_update_elem`).
                if lockless { Err(Errno::INVAL) } else { put(place, locked, false) }
            }
            Body::Hash(_) if lockless => Err(Errno::INVAL),
            Body::Hash(index) => index.upsert(key, mode, |place, new| put(place, locked, new)),
            Body::Ring(_) | Body::Programs => Err(Errno::INVAL),
        }
    }

    /// Writes a value, under its spin lock if `locked`.
    #[inline]
    fn write(&self, slot: u32, place: u32, locked: bool, word: impl Fn(usize) -> u64) -> Result<(), Errno> {
        if !locked {
            self.put_value(slot, place, word);
            return Ok(());
        }
        let offset = self.value_offset(slot, place) + self.decl.spin_lock.ok_or(Errno::INVAL)?;
        let taken = (0..VALUE_LOCK_SPINS).any(|_| {
            std::hint::spin_loop();
            self.values.try_lock(offset)
        });
        if !taken {
            return Err(Errno::BUSY);
        }
        self.put_value(slot, place, word);
        self.values.unlock(offset);
        Ok(())
    }

    #[inline]
    fn put_value(&self, slot: u32, place: u32, word: impl Fn(usize) -> u64) {
        self.put(self.value_offset(slot, place), word, self.decl.value_size as usize);
    }

    /// Deletes a key. Gives up with [`Errno::BUSY`] after a bounded spin. The caller has made sure that [`Map::allow_deletes`] was
    /// called.
    #[inline]
    pub(crate) fn remove(&self, key: &[u64]) -> Result<(), Errno> {
        match &self.body {
            Body::Hash(index) => index.remove(key),
            Body::Array | Body::Ring(_) | Body::Programs => Err(Errno::INVAL),
        }
    }
}

#[cfg(test)]
mod tests;
