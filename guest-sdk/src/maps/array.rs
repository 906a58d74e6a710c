//! [`Array`]: `BPF_MAP_TYPE_ARRAY`.

use super::{MapError, Update, result};
use crate::abi::map_type;
use crate::raw::{self, Plain, Shared};
use core::ptr::null;

/// An array of `N` values, all zero at first. Declare it with [`maps!`](crate::maps).
#[repr(C)]
pub struct Array<V, const N: usize> {
    r#type: *const [i32; map_type::ARRAY as usize],
    key: *const u32,
    value: *const V,
    max_entries: *const [i32; N],
}

impl<V: 'static, const N: usize> Array<V, N> {
    /// The definition; of use in a static in section `.maps` only, which [`maps!`](crate::maps) makes.
    #[expect(clippy::new_without_default, reason = "a definition, not a value")]
    pub const fn new() -> Self {
        Array { r#type: null(), key: null(), value: null(), max_entries: null() }
    }
}

impl<V: Plain, const N: usize> Array<V, N> {
    /// A copy of the value at `index`; `None` past the end. If others write it meanwhile, fields of the copy may be of
    /// different ages.
    #[inline(always)]
    pub fn get(&'static self, index: u32) -> Option<V> {
        raw::get(self, &index)
    }

    /// Replaces the value at `index`.
    ///
    /// # Errors
    /// [`MapError::Full`] past the end.
    #[inline(always)]
    pub fn set(&'static self, index: u32, value: &V) -> Result<(), MapError> {
        result(raw::update(self, &index, value, Update::Any as u64))
    }
}

impl<V: Shared, const N: usize> Array<V, N> {
    /// The value at `index` in place, shared with everyone who uses the map; `None` past the end.
    #[inline(always)]
    pub fn get_ref(&'static self, index: u32) -> Option<&'static V> {
        raw::get_ref(self, &index)
    }
}
