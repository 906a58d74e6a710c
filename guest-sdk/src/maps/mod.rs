//! [`HashMap`], [`LruHashMap`], [`Array`], [`PerCpuArray`], [`PerCpuHashMap`] and [`RingBuf`]: maps as statics, declared with
//! [`maps!`](crate::maps).
//!
//! The *type* of the static is the definition: its debug info, turned to BTF, has the members `type`, `key`,
//! `value` and `max_entries` that loaders look for. The static itself holds null pointers.

mod array;
mod hash;
mod percpu;
mod ring;

pub use array::Array;
pub use hash::{HashMap, LruHashMap};
pub use percpu::{PerCpuArray, PerCpuHashMap};
pub use ring::{Record, RingBuf};

use crate::abi::update;

/// What an update does about an entry that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Update {
    /// Create or replace.
    Any = update::ANY,
    /// Create; fails with [`MapError::Exists`].
    Create = update::NOEXIST,
    /// Replace; fails with [`MapError::NoEntry`].
    Replace = update::EXIST,
}

/// Why a map operation failed: the errno that the helper returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// `ENOENT`: no such entry.
    NoEntry,
    /// `EEXIST`: the entry is there already.
    Exists,
    /// `E2BIG`: the map is full, or the index is past the array's end.
    Full,
    /// `EINVAL`: not possible on this kind of map.
    Invalid,
    /// `EBUSY`: others were writing all the time, or places of deleted entries may still be pointed to; the host does not wait on
    /// the decision path.
    Busy,
    /// `EAGAIN`: no room in the ring buffer.
    NoRoom,
    /// Another errno.
    Other(i32),
}

/// The helpers' convention: 0, or a negative errno.
#[inline(always)]
fn result(code: i64) -> Result<(), MapError> {
    match code {
        0 => Ok(()),
        -2 => Err(MapError::NoEntry),
        -17 => Err(MapError::Exists),
        -7 => Err(MapError::Full),
        -22 => Err(MapError::Invalid),
        -16 => Err(MapError::Busy),
        -11 => Err(MapError::NoRoom),
        other => Err(MapError::Other(other.wrapping_neg() as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    crate::maps! {
        static HASH: HashMap<u64, [u32; 3], 7> = "test_hash";
        static ARRAY: Array<u64, 9> = "test_array";
        static LRU: LruHashMap<u64, u64, 7> = "test_lru";
        static PERCPU: PerCpuArray<u64, 9> = "test_percpu_array";
        static PERCPU_HASH: PerCpuHashMap<u64, u64, 7> = "test_percpu_hash";
        static RING: RingBuf<4096> = "test_ring";
    }

    #[test]
    fn errors_carry_the_errno() {
        assert_eq!(result(0), Ok(()));
        let table = [
            (-2, MapError::NoEntry),
            (-17, MapError::Exists),
            (-7, MapError::Full),
            (-22, MapError::Invalid),
            (-16, MapError::Busy),
            (-11, MapError::NoRoom),
            (-38, MapError::Other(38)),
        ];
        for (code, error) in table {
            assert_eq!(result(code), Err(error));
        }
    }

    #[test]
    fn natively_maps_are_empty_and_refuse_updates() {
        assert_eq!((HASH.get(&1), ARRAY.get(1)), (None, None));
        assert_eq!(HASH.insert(&1, &[1, 2, 3]), Err(MapError::Other(38)));
        assert_eq!(HASH.update(&1, &[0; 3], Update::Replace), Err(MapError::Other(38)));
        assert_eq!(HASH.remove(&1), Err(MapError::Other(38)));
        assert_eq!(ARRAY.set(1, &1), Err(MapError::Other(38)));
        assert_eq!((LRU.get(&1), PERCPU.get(1), PERCPU_HASH.get(&1)), (None, None, None));
        assert_eq!((PERCPU.get_slot(1, 0), PERCPU_HASH.get_slot(&1, 0)), (None, None));
        let other = Err(MapError::Other(38));
        assert_eq!([LRU.insert(&1, &1), PERCPU.set(1, &1), PERCPU_HASH.insert(&1, &1)], [other; 3]);
        assert_eq!([LRU.remove(&1), PERCPU_HASH.remove(&1), RING.output(&1u64)], [other; 3]);
        assert!(RING.reserve::<u64>().is_none());
    }

    #[test]
    fn definitions_are_four_pointers_in_order() {
        assert_eq!(offset_of!(RingBuf<4096>, max_entries), 8);
        assert_eq!(offset_of!(PerCpuHashMap<u64, u64, 7>, max_entries), 24);
        type H = HashMap<u64, [u32; 3], 7>;
        assert_eq!(size_of::<H>(), 4 * size_of::<usize>());
        let offsets =
            [offset_of!(H, r#type), offset_of!(H, key), offset_of!(H, value), offset_of!(H, max_entries)];
        assert_eq!(offsets, [0, 8, 16, 24]);
    }
}
