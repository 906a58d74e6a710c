//! [`Held`]: what a policy has taken in a call and must give back: a spin lock, and records of ring buffers. A verified policy
//! gives back everything on every path; a call that is stopped (out of fuel, a trap) does not, so the host does then, and
//! no other policy waits for ever.
//!
//! # Spin locks
//! A lock is the word in the map's value, taken and given back by the host's helpers: not by code of the module, which would burn fuel
//! while it waits, more on one rank than on another. Who holds a lock is a few instructions from giving it back, but its thread
//! may be scheduled out. So a policy that waits spins for some microseconds, then yields the processor (the one system call on
//! the decision path, and only there), and is stopped after [`PATIENCE_NS`]: that long a wait means that the holder is gone.

use super::Data;
use crate::maps::MapSet;
use crate::memory::monotonic_ns;

/// Attempts before the first yield; about 10 us.
const SPINS: u32 = 1000;
/// How long a policy waits for a lock.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Most records that a policy may hold at once; a reservation beyond fails like one in a full ring.
const MAX_RECORDS: usize = 16;

/// A place in a map's memory.
type Spot = (u32, u32);

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Held {
    lock: Option<Spot>,
    records: [Option<Spot>; MAX_RECORDS],
}

impl Held {
    /// A place for one more record.
    fn room(&mut self) -> Option<&mut Option<Spot>> {
        self.records.iter_mut().find(|r| r.is_none())
    }

    /// Forgets a record; false if it is not held.
    fn forget(&mut self, spot: Spot) -> bool {
        let found = self.records.iter_mut().find(|r| **r == Some(spot));
        found.map(|r| *r = None).is_some()
    }

    /// Gives everything back.
    #[cold]
    pub(super) fn release(&mut self, maps: &MapSet) {
        if let Some((map, offset)) = self.lock.take()
            && let Some(map) = maps.at(map as usize)
        {
            map.bytes().unlock(offset);
        }
        for (map, offset) in self.records.iter_mut().filter_map(Option::take) {
            if let Some(ring) = maps.at(map as usize).and_then(|m| m.ring()) {
                ring.commit(offset, false);
            }
        }
    }
}

/// Why a policy was stopped at a spin lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockFault(pub(super) &'static str);

impl std::fmt::Display for LockFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for LockFault {}

/// `spin_lock`
pub(super) fn spin_lock(data: &mut Data, pointer: i64) -> Result<i64, LockFault> {
    let (number, offset) = data.spot(pointer).ok_or(LockFault("there is no spin lock"))?;
    if data.held.lock.is_some() {
        return Err(LockFault("a spin lock is held already"));
    }
    let map = data.maps.at(number as usize).filter(|m| m.is_lock(offset));
    let bytes = map.ok_or(LockFault("there is no spin lock"))?.bytes();
    if !(0..SPINS).any(|_| {
        std::hint::spin_loop();
        bytes.try_lock(offset)
    }) {
        let end = monotonic_ns().saturating_add(PATIENCE_NS);
        while !bytes.try_lock(offset) {
            if monotonic_ns() > end {
                return Err(LockFault("a spin lock was not given back in a second"));
            }
            std::thread::yield_now();
        }
    }
    data.held.lock = Some((number, offset));
    Ok(0)
}

/// `spin_unlock`
pub(super) fn spin_unlock(data: &mut Data, pointer: i64) -> Result<i64, LockFault> {
    let spot = data.spot(pointer).filter(|spot| data.held.lock == Some(*spot));
    let (number, offset) = spot.ok_or(LockFault("the spin lock is not held"))?;
    data.held.lock = None;
    if let Some(map) = data.maps.at(number as usize) {
        map.bytes().unlock(offset);
    }
    Ok(0)
}

/// `ringbuf_reserve`: pointer to the record, or null.
pub(super) fn reserve(data: &mut Data, object: i64, size: i64, flags: i64) -> i64 {
    let Data { maps, held, .. } = data;
    let Some((number, map)) = super::helpers::map_of(maps, object) else { return 0 };
    let (Some(ring), Some(room)) = (map.ring(), held.room()) else { return 0 };
    let offset = if flags == 0 { ring.reserve(size as u64) } else { None };
    match offset {
        Some(offset) => {
            *room = Some((number, offset));
            super::helpers::pointer(number, offset)
        }
        None => 0,
    }
}

/// `ringbuf_submit` and `ringbuf_discard`.
pub(super) fn commit(data: &mut Data, pointer: i64, keep: bool) -> i64 {
    if let Some(spot) = data.spot(pointer)
        && data.held.forget(spot)
        && let Some(ring) = data.maps.at(spot.0 as usize).and_then(|m| m.ring())
    {
        ring.commit(spot.1, keep);
    }
    0
}
