//! [`HashMap`]: `BPF_MAP_TYPE_HASH`; [`LruHashMap`]: `BPF_MAP_TYPE_LRU_HASH`, the same with another way of being full.

use super::{MapError, Update, result};
use crate::abi::map_type;
use crate::raw::{self, Plain, Shared};
use core::ptr::null;

macro_rules! hash_map {
    ($(#[$meta:meta])* $name:ident = $kind:ident; $(#[$full:meta])* full) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name<K, V, const N: usize> {
            pub(super) r#type: *const [i32; map_type::$kind as usize],
            pub(super) key: *const K,
            pub(super) value: *const V,
            pub(super) max_entries: *const [i32; N],
        }

        impl<K: Plain, V: 'static, const N: usize> $name<K, V, N> {
            /// The definition; of use in a static in section `.maps` only, which [`maps!`](crate::maps) makes.
            #[expect(clippy::new_without_default, reason = "a definition, not a value")]
            pub const fn new() -> Self {
                $name { r#type: null(), key: null(), value: null(), max_entries: null() }
            }

            /// Removes the entry.
            ///
            /// # Errors
            /// [`MapError::NoEntry`] if there is none.
            #[inline(always)]
            pub fn remove(&'static self, key: &K) -> Result<(), MapError> {
                result(raw::delete(self, key))
            }
        }

        impl<K: Plain, V: Plain, const N: usize> $name<K, V, N> {
            /// A copy of the value under `key`. If others write it meanwhile, fields of the copy may be of different ages.
            #[inline(always)]
            pub fn get(&'static self, key: &K) -> Option<V> {
                raw::get(self, key)
            }

            /// Creates or replaces the entry.
            ///
            /// # Errors
            $(#[$full])*
            #[inline(always)]
            pub fn insert(&'static self, key: &K, value: &V) -> Result<(), MapError> {
                self.update(key, value, Update::Any)
            }

            /// Creates or replaces the entry, as `how` says.
            ///
            /// # Errors
            /// [`MapError::Exists`] or [`MapError::NoEntry`].
            $(#[$full])*
            #[inline(always)]
            pub fn update(&'static self, key: &K, value: &V, how: Update) -> Result<(), MapError> {
                result(raw::update(self, key, value, how as u64))
            }
        }

        impl<K: Plain, V: Shared, const N: usize> $name<K, V, N> {
            /// The value under `key` in place, shared with everyone who uses the map.
            #[inline(always)]
            pub fn get_ref(&'static self, key: &K) -> Option<&'static V> {
                raw::get_ref(self, key)
            }

            /// Creates the entry if it is missing, from `value`.
            ///
            /// # Errors
            /// [`MapError::Exists`] if it is there.
            $(#[$full])*
            #[inline(always)]
            pub fn create(&'static self, key: &K, value: &V) -> Result<(), MapError> {
                result(raw::update(self, key, value, Update::Create as u64))
            }
        }
    };
}

hash_map! {
    /// A hash map of at most `N` entries. Declare it with [`maps!`](crate::maps).
    HashMap = HASH;
    /// [`MapError::Full`] if the map has no room; [`MapError::Busy`] if it has, but places of deleted entries are still in use.
    full
}

hash_map! {
    /// A hash map that is never full: beyond `N` entries a new one takes the place of one that was not looked up lately. Declare
    /// it with [`maps!`](crate::maps).
    LruHashMap = LRU_HASH;
    /// [`MapError::Busy`] if places of evicted entries are all still in use.
    full
}
