//! [`Memory`]: the regions that a program can reach, at the addresses of [`crate::wasm::layout`].

use super::{FaultKind, MapMemory, Result};
use crate::isa::{MapIdx, Size};
use crate::limits::{MAX_FRAMES, STACK_BYTES};
use crate::map::MapDecl;
use crate::wasm::layout::{
    CTX_BASE, KEY_DISTANCE, MAP_OBJECT_TAG, MAP_TAG, PRIVATE_TAG, STACK_BASE, STACK_TOP,
};

/// Stack, context and maps.
#[derive(Clone, Debug)]
pub struct Memory {
    stack: Vec<u8>,
    /// Offset of the lowest byte of the active frames.
    stack_low: u32,
    ctx: Vec<u8>,
    maps: Vec<MapMemory>,
    /// Copies of keys that callbacks got, by the frame of the caller.
    keys: Vec<Option<Vec<u8>>>,
}

/// A place in a region: the region's bytes and an index into them.
enum Place {
    Stack(usize),
    Ctx(usize),
    Map(usize, usize),
    Key(usize, usize),
}

/// An entry of a map on a walk.
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    /// Address of the value.
    pub(super) value: u64,
    /// Where the walk goes on.
    pub(super) next: u32,
}

/// Address of the key that callbacks of frame `caller` get.
pub(crate) fn key_address(caller: u32) -> u64 {
    u64::from(PRIVATE_TAG) << 32 | u64::from(STACK_TOP - caller * STACK_BYTES + KEY_DISTANCE)
}

impl Memory {
    pub(super) fn new(maps: &[MapDecl], ctx: Vec<u8>) -> Memory {
        Memory {
            stack: vec![0; (MAX_FRAMES * STACK_BYTES) as usize],
            stack_low: STACK_TOP,
            ctx,
            maps: maps.iter().map(MapMemory::new).collect(),
            keys: vec![None; MAX_FRAMES as usize],
        }
    }

    /// Makes the stack of that many frames accessible.
    pub(super) fn set_frames(&mut self, frames: u32) {
        self.stack_low = STACK_TOP - frames * STACK_BYTES;
    }

    /// Active frames of 512 bytes.
    pub fn frames(&self) -> u32 {
        (STACK_TOP - self.stack_low) / STACK_BYTES
    }
    /// The whole stack, all eight frames; the entry function's frame is the last 512 bytes.
    pub fn stack(&self) -> &[u8] {
        &self.stack
    }
    /// The context.
    pub fn ctx(&self) -> &[u8] {
        &self.ctx
    }
    /// The context, to change it.
    pub fn ctx_mut(&mut self) -> &mut Vec<u8> {
        &mut self.ctx
    }
    /// Maps, in the order of their indices.
    pub fn maps(&self) -> &[MapMemory] {
        &self.maps
    }
    /// Maps, to fill or share them.
    pub fn maps_mut(&mut self) -> &mut [MapMemory] {
        &mut self.maps
    }

    /// The `len` bytes at `addr`, if they lie in one region: the active stack, the context, or one map value.
    pub fn bytes(&self, addr: u64, len: u32) -> Option<&[u8]> {
        let (region, at): (&[u8], usize) = match self.place(addr, len)? {
            Place::Stack(at) => (&self.stack, at),
            Place::Ctx(at) => (&self.ctx, at),
            Place::Map(map, at) => (self.maps.get(map)?.bytes(), at),
            Place::Key(frame, at) => (self.keys.get(frame)?.as_ref()?, at),
        };
        region.get(at..)?.get(..len as usize)
    }

    fn bytes_mut(&mut self, addr: u64, len: u32) -> Result<&mut [u8]> {
        let out_of_bounds = FaultKind::OutOfBounds { addr, len };
        let (region, at): (&mut [u8], usize) = match self.place(addr, len).ok_or(out_of_bounds)? {
            Place::Stack(at) => (&mut self.stack, at),
            Place::Ctx(at) => (&mut self.ctx, at),
            Place::Map(map, at) => {
                let memory = self.maps.get_mut(map).ok_or(out_of_bounds)?;
                if memory.decl().read_only {
                    return Err(FaultKind::ReadOnly(MapIdx(map as u16)));
                }
                (memory.bytes_mut(), at)
            }
            Place::Key(..) => return Err(out_of_bounds),
        };
        region.get_mut(at..).and_then(|bytes| bytes.get_mut(..len as usize)).ok_or(out_of_bounds)
    }

    fn place(&self, addr: u64, len: u32) -> Option<Place> {
        let (tag, off) = ((addr >> 32) as u32, addr as u32);
        let end = off.checked_add(len)?;
        if tag == PRIVATE_TAG {
            let ctx_end = CTX_BASE as usize + self.ctx.len();
            return if off >= self.stack_low && end <= STACK_TOP {
                Some(Place::Stack((off - STACK_BASE) as usize))
            } else if off >= CTX_BASE && end as usize <= ctx_end {
                Some(Place::Ctx((off - CTX_BASE) as usize))
            } else {
                self.key_at(off, len)
            };
        }
        let map = tag.checked_sub(MAP_TAG)? as usize;
        self.maps.get(map)?.holds(off, len).then_some(Place::Map(map, off as usize))
    }

    fn key_at(&self, off: u32, len: u32) -> Option<Place> {
        self.keys.iter().enumerate().find_map(|(frame, key)| {
            let at = off.checked_sub(key_address(frame as u32) as u32)?;
            let inside = at as usize + len as usize <= key.as_ref()?.len();
            inside.then_some(Place::Key(frame, at as usize))
        })
    }

    /// Keeps a key for the callbacks of that frame; its address.
    pub(super) fn put_key(&mut self, caller: usize, key: Vec<u8>) -> u64 {
        if let Some(slot) = self.keys.get_mut(caller) {
            *slot = Some(key);
        }
        key_address(caller as u32)
    }

    pub(super) fn drop_key(&mut self, caller: usize) {
        if let Some(slot) = self.keys.get_mut(caller) {
            *slot = None;
        }
    }

    /// Is a spin lock or a record held?
    pub(super) fn holds_something(&self) -> bool {
        self.maps.iter().any(MapMemory::holds_something)
    }

    /// Does a record of so many bytes that is held in that ring buffer start where `is` says?
    pub(crate) fn record_at(&self, map: usize, bytes: u32, is: impl Fn(u32) -> bool) -> bool {
        self.maps.get(map).is_some_and(|m| m.ring.held().any(|(start, size)| size == bytes && is(start)))
    }

    pub(super) fn read(&self, addr: u64, size: Size) -> Result<u64> {
        let bytes = self.read_bytes(addr, size.bytes())?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    pub(super) fn write(&mut self, addr: u64, size: Size, value: u64) -> Result<()> {
        let bytes = self.bytes_mut(addr, size.bytes())?;
        bytes.copy_from_slice(&value.to_le_bytes()[..size.bytes() as usize]);
        Ok(())
    }

    fn read_bytes(&self, addr: u64, len: u32) -> Result<&[u8]> {
        self.bytes(addr, len).ok_or(FaultKind::OutOfBounds { addr, len })
    }

    /// The map of a map object.
    fn map_object(&self, object: u64) -> Result<(usize, &MapMemory)> {
        let index = ((object >> 32) as u32).checked_sub(MAP_OBJECT_TAG).filter(|_| object as u32 == 0);
        index
            .and_then(|index| Some((index as usize, self.maps.get(index as usize)?)))
            .ok_or(FaultKind::NotMap(object))
    }

    /// Helper 1: address of the value, or 0.
    pub(super) fn map_lookup(&self, object: u64, key: u64) -> Result<u64> {
        let (index, map) = self.map_object(object)?;
        let key = self.read_bytes(key, map.decl().key_size)?;
        let value = |offset| u64::from(MAP_TAG + index as u32) << 32 | u64::from(offset);
        Ok(map.lookup(key).map_or(0, value))
    }

    /// Helper 195: there is one CPU, number 0.
    pub(super) fn map_lookup_percpu(&self, object: u64, key: u64, cpu: u64) -> Result<u64> {
        let value = self.map_lookup(object, key)?;
        Ok(if cpu as u32 == 0 { value } else { 0 })
    }

    /// Helper 2: 0 or a negative error number.
    pub(super) fn map_update(&mut self, object: u64, key: u64, value: u64, flags: u64) -> Result<u64> {
        let (index, map) = self.map_object(object)?;
        let key = self.read_bytes(key, map.decl().key_size)?.to_vec();
        let value = self.read_bytes(value, map.decl().value_size)?.to_vec();
        let map = self.writable(index, object)?;
        Ok(errno(map.update(&key, &value, flags)))
    }

    /// Helper 3: 0 or a negative error number.
    pub(super) fn map_delete(&mut self, object: u64, key: u64) -> Result<u64> {
        let (index, map) = self.map_object(object)?;
        let key = self.read_bytes(key, map.decl().key_size)?.to_vec();
        Ok(errno(self.writable(index, object)?.delete(&key)))
    }

    /// The first entry of a map from slot `from` on.
    pub(super) fn next_entry(&self, object: u64, from: u32) -> Result<Option<Entry>> {
        let (index, map) = self.map_object(object)?;
        Ok(map.entry_from(from).map(|(slot, key)| {
            let value = u64::from(MAP_TAG + index as u32) << 32 | u64::from(map.offset(slot));
            Entry { key, value, next: slot + 1 }
        }))
    }

    /// The map whose memory that address is in, and the offset.
    fn map_of(&mut self, addr: u64) -> Option<(&mut MapMemory, u32)> {
        let index = ((addr >> 32) as u32).checked_sub(MAP_TAG)? as usize;
        Some((self.maps.get_mut(index)?, addr as u32))
    }

    /// Helpers 93 and 94.
    pub(super) fn spin_lock(&mut self, addr: u64, take: bool) -> Result<u64> {
        let done = self.map_of(addr).is_some_and(|(map, off)| map.lock(off, take));
        if done { Ok(0) } else { Err(FaultKind::BadLock(addr)) }
    }

    /// Helper 131: address of the record, or 0.
    pub(super) fn ring_reserve(&mut self, object: u64, size: u64, flags: u64) -> Result<u64> {
        let (index, _) = self.map_object(object)?;
        let map = self.maps.get_mut(index).filter(|_| flags == 0);
        let start = map.and_then(|m| m.ring.reserve(size));
        Ok(start.map_or(0, |at| u64::from(MAP_TAG + index as u32) << 32 | u64::from(at)))
    }

    /// Helpers 132 and 133.
    pub(super) fn ring_commit(&mut self, addr: u64, keep: bool) -> Result<u64> {
        let done = self.map_of(addr).is_some_and(|(map, off)| map.ring.commit(off, keep));
        if done { Ok(0) } else { Err(FaultKind::BadRecord(addr)) }
    }

    /// Helper 130: 0 or a negative error number.
    pub(super) fn ring_output(&mut self, object: u64, data: u64, size: u64, flags: u64) -> Result<u64> {
        const FLAGS: u64 = 3;
        const EAGAIN: i64 = 11;
        const EINVAL: i64 = 22;
        let (index, _) = self.map_object(object)?;
        let len = u32::try_from(size).map_err(|_| FaultKind::OutOfBounds { addr: data, len: u32::MAX })?;
        let data = if len == 0 { Vec::new() } else { self.read_bytes(data, len)?.to_vec() };
        if flags & !FLAGS != 0 {
            return Ok(errno(Err(EINVAL)));
        }
        let addr = self.ring_reserve(object, size, 0)?;
        if addr == 0 {
            return Ok(errno(Err(EAGAIN)));
        }
        if let Some(map) = self.maps.get_mut(index) {
            let target =
                map.bytes_mut().get_mut(addr as u32 as usize..).and_then(|b| b.get_mut(..data.len()));
            target.ok_or(FaultKind::BadRecord(addr))?.copy_from_slice(&data);
        }
        self.ring_commit(addr, true)
    }

    /// Helper 134.
    pub(super) fn ring_query(&self, object: u64, what: u64) -> Result<u64> {
        Ok(self.map_object(object)?.1.ring.query(what))
    }

    fn writable(&mut self, index: usize, object: u64) -> Result<&mut MapMemory> {
        match self.maps.get_mut(index) {
            Some(map) if map.decl().read_only => Err(FaultKind::ReadOnly(MapIdx(index as u16))),
            Some(map) => Ok(map),
            None => Err(FaultKind::NotMap(object)),
        }
    }
}

fn errno(result: std::result::Result<(), i64>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(number) => -number as u64,
    }
}
