//! [`MapMemory`]: a map's values where a translated module sees them, and its keys where only helpers do.

use crate::map::{MapDecl, MapKind, MapLayout};

const ENOENT: i64 = 2;
const E2BIG: i64 = 7;
const EEXIST: i64 = 17;
const EINVAL: i64 = 22;

const NOEXIST: u64 = 1;
const EXIST: u64 = 2;

/// A map: value `i` starts at byte `i * stride`. A hash holds the key of slot `i` beside it; the lowest free slot is taken first.
#[derive(Clone, Debug)]
pub struct MapMemory {
    decl: MapDecl,
    stride: u32,
    bytes: Vec<u8>,
    /// Of a hash: key by slot.
    keys: Vec<Option<Vec<u8>>>,
}

impl MapMemory {
    /// An empty map; global data as initialised. A map without a layout has no values.
    pub fn new(decl: &MapDecl) -> MapMemory {
        let layout = decl.layout().unwrap_or(MapLayout { stride: 8, pages: 0 });
        let entries = if layout.pages == 0 { 0 } else { decl.max_entries as usize };
        let mut bytes = vec![0; layout.stride as usize * entries];
        if let Some(start) = bytes.get_mut(..decl.init.len()) {
            start.copy_from_slice(&decl.init);
        }
        let keys = if decl.kind == MapKind::Hash { vec![None; entries] } else { Vec::new() };
        MapMemory { decl: decl.clone(), stride: layout.stride, bytes, keys }
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

    /// Do `len` bytes at that offset lie inside one value?
    pub(super) fn holds(&self, off: u32, len: u32) -> bool {
        let inside = u64::from(off % self.stride) + u64::from(len) <= u64::from(self.decl.value_size);
        inside && (off as usize) < self.bytes.len()
    }

    fn index(key: &[u8]) -> Option<u32> {
        key.try_into().ok().map(u32::from_le_bytes)
    }

    /// Byte offset of the value of a key.
    pub fn lookup(&self, key: &[u8]) -> Option<u32> {
        let slot = match self.decl.kind {
            MapKind::Array | MapKind::Global => {
                MapMemory::index(key).filter(|i| *i < self.decl.max_entries)?
            }
            MapKind::Hash => self.slot(key)? as u32,
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
            MapKind::Array | MapKind::Global => {
                let at = self.lookup(key).ok_or(E2BIG)?;
                if flags == NOEXIST { Err(EEXIST) } else { Ok(at as usize) }
            }
            MapKind::Hash => self.hash_slot(key, flags).map(|slot| slot * self.stride as usize),
        }?;
        let target = self.bytes.get_mut(at..).and_then(|b| b.get_mut(..value.len())).ok_or(E2BIG)?;
        target.copy_from_slice(value);
        Ok(())
    }

    /// The slot that an update writes; a new key takes it.
    fn hash_slot(&mut self, key: &[u8], flags: u64) -> Result<usize, i64> {
        match (self.slot(key), flags) {
            (Some(_), NOEXIST) => Err(EEXIST),
            (Some(slot), _) => Ok(slot),
            (None, EXIST) => Err(ENOENT),
            (None, _) => {
                let free = self.keys.iter().position(Option::is_none).ok_or(E2BIG)?;
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
        match self.decl.kind {
            MapKind::Array | MapKind::Global => Err(EINVAL),
            MapKind::Hash => {
                let slot = self.slot(key).ok_or(ENOENT)?;
                self.keys[slot] = None;
                Ok(())
            }
        }
    }
}
