//! [`RingBuf`]: `BPF_MAP_TYPE_RINGBUF`, records for the host; [`Record`], one that is being written.

use super::{MapError, result};
use crate::abi::map_type;
use crate::raw::{self, Plain};
use core::ptr::null;

/// A ring buffer of `BYTES` bytes, a power of two and at least 4096. The host takes the records, the oldest first. Declare it with
/// [`maps!`](crate::maps).
#[repr(C)]
pub struct RingBuf<const BYTES: usize> {
    pub(super) r#type: *const [i32; map_type::RINGBUF as usize],
    pub(super) max_entries: *const [i32; BYTES],
}

impl<const BYTES: usize> RingBuf<BYTES> {
    const SIZE_IS_GOOD: () =
        assert!(BYTES.is_power_of_two() && BYTES >= 4096, "a power of two, and at least 4096");

    /// The definition; of use in a static in section `.maps` only, which [`maps!`](crate::maps) makes.
    #[expect(clippy::new_without_default, reason = "a definition, not a value")]
    pub const fn new() -> Self {
        let () = Self::SIZE_IS_GOOD;
        RingBuf { r#type: null(), max_entries: null() }
    }

    /// Copies a record in.
    ///
    /// # Errors
    /// [`MapError::NoRoom`]; the host counts such records.
    #[inline(always)]
    pub fn output<T: Plain>(&'static self, record: &T) -> Result<(), MapError> {
        result(raw::ring_output(self, record))
    }

    /// Room for a record, to be filled in place: saves a copy on the stack. `None` if there is none; the host counts such records.
    #[inline(always)]
    pub fn reserve<T: Plain>(&'static self) -> Option<Record<T>> {
        raw::ring_reserve(self)
    }
}

/// Room for a record in a [`RingBuf`]. Dropped, it is given back without being seen.
#[must_use = "a record that is dropped is not seen"]
pub struct Record<T: Plain>(pub(crate) raw::Room<T>);

impl<T: Plain> Record<T> {
    /// Hands the record in, with that content.
    #[inline(always)]
    pub fn submit(self, content: T) {
        self.0.submit(content);
    }

    /// Gives the room back.
    #[inline(always)]
    pub fn discard(self) {
        drop(self);
    }
}
