//! [`MapMemory`]: a map's values where a translated module sees them, and its keys where only helpers do.

use super::ring::Ring;
use crate::map::{MapDecl, MapKind, MapLayout};
use std::collections::BTreeSet;

const ENOENT: i64 = 2;
const E2BIG: i64 = 7;
const EEXIST: i64 = 17;
const EINVAL: i64 = 22;

const NOEXIST: u64 = 1;
const EXIST: u64 = 2;

/// A map: value `i` starts at byte `i * stride`. A hash holds the key of slot `i` beside it; the lowest free slot is taken
/// first. There is one CPU; a full LRU hash gives up its first slot.
#[derive(Clone, Debug)]
pub struct MapMemory {
    decl: MapDecl,
    stride: u32,
    bytes: Vec<u8>,
    /// Of a hash: key by slot.
    keys: Vec<Option<Vec<u8>>>,
    /// Of a ring buffer.
    pub(super) ring: Ring,
    /// Spin locks that are held, by slot.
    locked: BTreeSet<u32>,
}

impl MapMemory {
    /// An empty map; global data as initialised. A map without a layout has no values.
    pub fn new(decl: &MapDecl) -> MapMemory {
        let layout = decl.layout().unwrap_or(MapLayout { stride: 8, places: 0, slot_bytes: 0, pages: 0 });
        let entries = if layout.pages == 0 { 0 } else { decl.max_entries as usize };
        let room = if decl.kind == MapKind::RingBuf { 2 * entries } else { layout.stride as usize * entries };
        let mut bytes = vec![0; room];
        if let Some(start) = bytes.get_mut(..decl.init.len()) {
            start.copy_from_slice(&decl.init);
        }
        let keys = if decl.kind.is_hash() { vec![None; entries] } else { Vec::new() };
        let ring = Ring::new(if decl.kind == MapKind::RingBuf { decl.max_entries } else { 0 });
        MapMemory { decl: decl.clone(), stride: layout.stride, bytes, keys, ring, locked: BTreeSet::new() }
    }
    /// The declaration.
    pub fn decl(&self) -> &MapDecl {
        &self.decl
    }
    /// All values, each padded to the stride.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// All values, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    /// Key of each slot of a hash; empty for other kinds.
    pub fn keys(&self) -> &[Option<Vec<u8>>] {
        &self.keys
    }
    /// The value of a key, as bytes.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        let at = self.lookup(key)? as usize;
        self.bytes.get(at..)?.get(..self.decl.value_size as usize)
    }

    /// Takes what was submitted to a ring buffer, the oldest record first.
    pub fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while let Some(record) = self.ring.consume() {
            let bytes = record.and_then(|(at, len)| self.bytes.get(at as usize..)?.get(..len as usize));
            out.extend(bytes.map(<[u8]>::to_vec));
        }
        out
    }

    /// Takes the spin lock at that offset, or gives it back; false if that cannot be.
    pub(super) fn lock(&mut self, off: u32, take: bool) -> bool {
        let slot = off / self.stride;
        let there = self.decl.spin_lock == Some(off % self.stride) && (off as usize) < self.bytes.len();
        there && if take { self.locked.insert(slot) } else { self.locked.remove(&slot) }
    }

    /// Is a spin lock or a record held?
    pub(super) fn holds_something(&self) -> bool {
        !self.locked.is_empty() || self.ring.held().next().is_some()
    }

    /// The first entry from slot `from` on: its slot and key.
    pub(super) fn entry_from(&self, from: u32) -> Option<(u32, Vec<u8>)> {
        if !self.decl.kind.is_hash() {
            let count = (self.bytes.len() / self.stride as usize) as u32;
            return (from < count && self.decl.kind.has_values())
                .then(|| (from, from.to_le_bytes().to_vec()));
        }
        let mut rest = self.keys.iter().enumerate().skip(from as usize);
        rest.find_map(|(slot, key)| Some((slot as u32, key.clone()?)))
    }

    /// Offset of the value in that slot.
    pub(super) fn offset(&self, slot: u32) -> u32 {
        slot * self.stride
    }

    /// Do `len` bytes at that offset lie inside one value, clear of its lock, or inside one record?
    pub(super) fn holds(&self, off: u32, len: u32) -> bool {
        if self.decl.kind == MapKind::RingBuf {
            return self.ring.holds(off, len);
        }
        let at = i64::from(off % self.stride);
        if self.decl.touches_lock(at, at + i64::from(len)) {
            return false;
        }
        let inside = u64::from(off % self.stride) + u64::from(len) <= u64::from(self.decl.value_size);
        inside && (off as usize) < self.bytes.len()
    }

    fn index(key: &[u8]) -> Option<u32> {
        key.try_into().ok().map(u32::from_le_bytes)
    }

    /// Byte offset of the value of a key.
    pub fn lookup(&self, key: &[u8]) -> Option<u32> {
        let slot = match self.decl.kind {
            MapKind::Array | MapKind::PercpuArray | MapKind::Global => {
                MapMemory::index(key).filter(|i| *i < self.decl.max_entries)?
            }
            MapKind::Hash | MapKind::LruHash | MapKind::PercpuHash => self.slot(key)? as u32,
            MapKind::RingBuf | MapKind::ProgArray => return None,
        };
        slot.checked_mul(self.stride).filter(|at| (*at as usize) < self.bytes.len())
    }

    fn slot(&self, key: &[u8]) -> Option<usize> {
        self.keys.iter().position(|k| k.as_deref() == Some(key))
    }

    /// Sets the value of a key, as `bpf_map_update_elem` does.
    ///
    /// # Errors
    /// The error number: EINVAL (22) for flags above 2, ENOENT (2), EEXIST (17), E2BIG (7).
    pub fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> Result<(), i64> {
        if flags > EXIST {
            return Err(EINVAL);
        }
        let at = match self.decl.kind {
            MapKind::Array | MapKind::PercpuArray | MapKind::Global => {
                let at = self.lookup(key).ok_or(E2BIG)?;
                if flags == NOEXIST { Err(EEXIST) } else { Ok(at as usize) }
            }
            MapKind::Hash | MapKind::LruHash | MapKind::PercpuHash => {
                self.hash_slot(key, flags).map(|slot| slot * self.stride as usize)
            }
            MapKind::RingBuf | MapKind::ProgArray => Err(EINVAL),
        }?;
        let target = self.bytes.get_mut(at..).and_then(|b| b.get_mut(..value.len())).ok_or(E2BIG)?;
        for (i, (to, from)) in target.iter_mut().zip(value).enumerate() {
            // The lock is not data.
            if !self.decl.touches_lock(i as i64, i as i64 + 1) {
                *to = *from;
            }
        }
        Ok(())
    }

    /// The slot that an update writes; a new key takes it.
    fn hash_slot(&mut self, key: &[u8], flags: u64) -> Result<usize, i64> {
        match (self.slot(key), flags) {
            (Some(_), NOEXIST) => Err(EEXIST),
            (Some(slot), _) => Ok(slot),
            (None, EXIST) => Err(ENOENT),
            (None, _) => {
                let mut free = self.keys.iter().position(Option::is_none);
                if self.decl.kind == MapKind::LruHash {
                    free = free.or(Some(0).filter(|_| !self.keys.is_empty()));
                }
                let free = free.ok_or(E2BIG)?;
                self.keys[free] = Some(key.to_vec());
                Ok(free)
            }
        }
    }

    /// Removes a key, as `bpf_map_delete_elem` does.
    ///
    /// # Errors
    /// The error number: EINVAL (22) for arrays, ENOENT (2).
    pub fn delete(&mut self, key: &[u8]) -> Result<(), i64> {
        if !self.decl.kind.is_hash() {
            return Err(EINVAL);
        }
        let slot = self.slot(key).ok_or(ENOENT)?;
        self.keys[slot] = None;
        Ok(())
    }
}
