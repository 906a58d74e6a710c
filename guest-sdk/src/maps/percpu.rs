//! [`PerCpuArray`]: `BPF_MAP_TYPE_PERCPU_ARRAY`; [`PerCpuHashMap`]: `BPF_MAP_TYPE_PERCPU_HASH`.
//!
//! Each rank of the process has values of its own: what a policy reads and writes is its rank's. So counters need no atomics, as
//! long as one hook of a rank changes them (NCCL may call a rank's tuner and its profiler at the same time), and there are no more ranks
//! in the process than slots (64), beyond which ranks share. The host, and [`get_slot`](PerCpuArray::get_slot), see all.

use super::{MapError, Update, result};
use crate::abi::map_type;
use crate::raw::{self, Plain, Shared};
use core::ptr::null;

/// An array of `N` values for each rank, all zero at first. Declare it with [`maps!`](crate::maps).
#[repr(C)]
pub struct PerCpuArray<V, const N: usize> {
    pub(super) r#type: *const [i32; map_type::PERCPU_ARRAY as usize],
    pub(super) key: *const u32,
    pub(super) value: *const V,
    pub(super) max_entries: *const [i32; N],
}

impl<V: 'static, const N: usize> PerCpuArray<V, N> {
    /// The definition; of use in a static in section `.maps` only, which [`maps!`](crate::maps) makes.
    #[expect(clippy::new_without_default, reason = "a definition, not a value")]
    pub const fn new() -> Self {
        PerCpuArray { r#type: null(), key: null(), value: null(), max_entries: null() }
    }
}

impl<V: Plain, const N: usize> PerCpuArray<V, N> {
    /// A copy of this rank's value at `index`; `None` past the end.
    #[inline(always)]
    pub fn get(&'static self, index: u32) -> Option<V> {
        raw::get(self, &index)
    }

    /// A copy of the value in that slot, another rank's; `None` past the end, and for a slot that no rank has had.
    #[inline(always)]
    pub fn get_slot(&'static self, index: u32, slot: u32) -> Option<V> {
        raw::get_slot(self, &index, slot)
    }

    /// Replaces this rank's value at `index`.
    ///
    /// # Errors
    /// [`MapError::Full`] past the end.
    #[inline(always)]
    pub fn set(&'static self, index: u32, value: &V) -> Result<(), MapError> {
        result(raw::update(self, &index, value, Update::Any as u64))
    }
}

impl<V: Shared, const N: usize> PerCpuArray<V, N> {
    /// This rank's value at `index` in place; `None` past the end.
    #[inline(always)]
    pub fn get_ref(&'static self, index: u32) -> Option<&'static V> {
        raw::get_ref(self, &index)
    }
}

/// A hash map of at most `N` entries, each with a value for each rank. Declare it with [`maps!`](crate::maps).
#[repr(C)]
pub struct PerCpuHashMap<K, V, const N: usize> {
    pub(super) r#type: *const [i32; map_type::PERCPU_HASH as usize],
    pub(super) key: *const K,
    pub(super) value: *const V,
    pub(super) max_entries: *const [i32; N],
}

impl<K: Plain, V: 'static, const N: usize> PerCpuHashMap<K, V, N> {
    /// The definition; of use in a static in section `.maps` only, which [`maps!`](crate::maps) makes.
    #[expect(clippy::new_without_default, reason = "a definition, not a value")]
    pub const fn new() -> Self {
        PerCpuHashMap { r#type: null(), key: null(), value: null(), max_entries: null() }
    }

    /// Removes the entry, for all ranks.
    ///
    /// # Errors
    /// [`MapError::NoEntry`] if there is none.
    #[inline(always)]
    pub fn remove(&'static self, key: &K) -> Result<(), MapError> {
        result(raw::delete(self, key))
    }
}

impl<K: Plain, V: Plain, const N: usize> PerCpuHashMap<K, V, N> {
    /// A copy of this rank's value under `key`; 0 where another rank made the entry.
    #[inline(always)]
    pub fn get(&'static self, key: &K) -> Option<V> {
        raw::get(self, key)
    }

    /// A copy of the value in that slot, another rank's; `None` for a slot that no rank has had.
    #[inline(always)]
    pub fn get_slot(&'static self, key: &K, slot: u32) -> Option<V> {
        raw::get_slot(self, key, slot)
    }

    /// Creates the entry, or replaces this rank's value.
    ///
    /// # Errors
    /// [`MapError::Full`] if the map has no room, [`MapError::Busy`] if places of deleted entries are still in use.
    #[inline(always)]
    pub fn insert(&'static self, key: &K, value: &V) -> Result<(), MapError> {
        self.update(key, value, Update::Any)
    }

    /// Creates the entry or replaces this rank's value, as `how` says.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); [`MapError::Exists`] or [`MapError::NoEntry`].
    #[inline(always)]
    pub fn update(&'static self, key: &K, value: &V, how: Update) -> Result<(), MapError> {
        result(raw::update(self, key, value, how as u64))
    }
}

impl<K: Plain, V: Shared, const N: usize> PerCpuHashMap<K, V, N> {
    /// This rank's value under `key` in place.
    #[inline(always)]
    pub fn get_ref(&'static self, key: &K) -> Option<&'static V> {
        raw::get_ref(self, key)
    }
}
