//! What tools need of a map and policies do not: entries by place, and all values of a key.

use super::{Errno, Map};

impl Map {
    /// Values of a key: more than one in per-CPU maps.
    pub(crate) fn slots(&self) -> u32 {
        1
    }

    /// The entry in a place, with all values of its key; `None` if the place is free.
    pub(crate) fn entry_at(&self, place: u32) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
        self.entry(place).map(|(key, value)| (key, vec![value]))
    }

    /// All values of a key.
    pub(crate) fn lookup_slots(&self, key: &[u8]) -> Option<Vec<Vec<u8>>> {
        self.lookup(key).map(|value| vec![value])
    }

    /// Sets one of the values of a key.
    ///
    /// # Errors
    /// As [`Map::update`]; [`Errno::INVAL`] for a slot that does not exist.
    pub(crate) fn update_slot(&self, key: &[u8], slot: u32, value: &[u8], flags: u64) -> Result<(), Errno> {
        if slot >= self.slots() {
            return Err(Errno::INVAL);
        }
        self.update(key, value, flags)
    }
}
