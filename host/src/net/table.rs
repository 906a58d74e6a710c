//! [`Table`]: what stands behind the pointers that the net wrapper hands out; found without a lock, from any thread.
//!
//! NCCL uses one connection from several threads at once (a buffer is registered while data moves), and no call may be refused,
//! so unlike [`Handles`](crate::ffi::handles::Handles) nothing here is locked. A slot is never freed, only used again under the
//! next generation, and its value is made of atomics: a call that races with its own close (which NCCL rules out) sees old
//! or new words, never freed memory.
//!
//! A key is an address that no pointer can have: its upper 16 bits are a tag, and no user space reaches that far, neither on
//! x86-64 (57 bits) nor on AArch64 (52 bits, the uppermost 8 free for tags of memory). So a plugin's own pointer is told
//! from a key, and whatever found no place in the table can go without one.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const SEGMENT: usize = 64;
const SEGMENTS: usize = 1024;
const INDEX_BITS: u32 = 16;
const TAG_SHIFT: u32 = 48;
/// What a key has room for.
const GENERATION_MASK: u32 = 0x7fff_ffff;
const _: () = assert!(SEGMENT * SEGMENTS == 1 << INDEX_BITS);

/// Which table, or which other kind of key: the upper 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Conn = 0x5246,
    Request = 0x5247,
    Scope = 0x5248,
}

impl Tag {
    /// Makes a key of this kind out of 48 bits.
    pub(crate) fn key(self, bits: u64) -> u64 {
        (self as u64) << TAG_SHIFT | bits
    }

    /// The 48 bits of a key of this kind.
    #[inline]
    pub(crate) fn bits(self, key: u64) -> Option<u64> {
        (key >> TAG_SHIFT == self as u64).then_some(key & ((1 << TAG_SHIFT) - 1))
    }
}

/// The address that a pointer holds, and back.
#[inline]
pub(crate) fn address(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

/// A key as NCCL holds it.
#[inline]
pub(crate) fn pointer(key: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(key as usize)
}

/// What a pointer of NCCL's turned out to be.
#[derive(Debug)]
pub(crate) enum Found<'a, T> {
    /// A key of this table.
    Ours(&'a T),
    /// A key of this table that was given back.
    Stale,
    /// Not a key of this table: a pointer of the plugin below, or null.
    Foreign,
}

struct Slot<T> {
    /// Odd while the slot is in use; counts up.
    generation: AtomicU32,
    value: T,
}

struct Free {
    indices: Vec<u16>,
    next: usize,
}

/// Up to 65536 values, addressed by keys.
pub(crate) struct Table<T> {
    tag: Tag,
    segments: [OnceLock<Box<[Slot<T>]>>; SEGMENTS],
    free: Mutex<Free>,
}

impl<T: Default> Table<T> {
    pub(crate) const fn new(tag: Tag) -> Table<T> {
        Table {
            tag,
            segments: [const { OnceLock::new() }; SEGMENTS],
            free: Mutex::new(Free { indices: Vec::new(), next: 0 }),
        }
    }

    /// Takes a free slot, lets `fill` write its value, and returns its key; `None` if all are in use.
    pub(crate) fn insert(&self, fill: impl FnOnce(&T)) -> Option<u64> {
        let index = self.take_index()?;
        let segment = self.segments[index / SEGMENT].get_or_init(|| {
            (0..SEGMENT).map(|_| Slot { generation: AtomicU32::new(0), value: T::default() }).collect()
        });
        let slot = &segment[index % SEGMENT];
        fill(&slot.value);
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        slot.generation.store(generation, Ordering::Release);
        Some(self.tag.key(u64::from(generation & GENERATION_MASK) << INDEX_BITS | index as u64))
    }

    /// Looks a key up.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> Found<'_, T> {
        let Some(bits) = self.tag.bits(key) else { return Found::Foreign };
        let generation = (bits >> INDEX_BITS) as u32;
        match self.slot(bits) {
            // An even one is of no key: the slot is free.
            Some(slot)
                if slot.generation.load(Ordering::Acquire) & GENERATION_MASK == generation
                    && generation & 1 == 1 =>
            {
                Found::Ours(&slot.value)
            }
            _ => Found::Stale,
        }
    }

    /// The value in the slot of `index`, whatever its generation.
    #[inline]
    pub(crate) fn at(&self, index: u16) -> Option<&T> {
        self.slot(u64::from(index)).map(|slot| &slot.value)
    }

    /// The slot of a key, as [`Table::at`] takes it.
    #[inline]
    pub(crate) fn index(key: u64) -> u16 {
        key as u16
    }

    /// Makes the key stale, lets `clear` end the value, and gives the slot back. `None` if the key was none.
    pub(crate) fn remove<R>(&self, key: u64, clear: impl FnOnce(&T) -> R) -> Option<R> {
        let bits = self.tag.bits(key)?;
        let slot = self.slot(bits)?;
        let generation = slot.generation.load(Ordering::Acquire);
        if generation & GENERATION_MASK != (bits >> INDEX_BITS) as u32 || generation & 1 == 0 {
            return None;
        }
        let (next, order) = (generation.wrapping_add(1), Ordering::AcqRel);
        slot.generation.compare_exchange(generation, next, order, Ordering::Relaxed).ok()?;
        let result = clear(&slot.value);
        self.lock().indices.push(Self::index(key));
        Some(result)
    }

    #[inline]
    fn slot(&self, bits: u64) -> Option<&Slot<T>> {
        let index = bits as u16 as usize;
        self.segments[index / SEGMENT].get()?.get(index % SEGMENT)
    }

    fn take_index(&self) -> Option<usize> {
        let mut free = self.lock();
        if let Some(index) = free.indices.pop() {
            return Some(index.into());
        }
        let index = free.next;
        free.next += usize::from(index < SEGMENT * SEGMENTS);
        (index < SEGMENT * SEGMENTS).then_some(index)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn put(table: &Table<AtomicU64>, n: u64) -> u64 {
        table.insert(|v| v.store(n, Ordering::Relaxed)).unwrap()
    }

    fn get(table: &Table<AtomicU64>, key: u64) -> Option<u64> {
        match table.find(key) {
            Found::Ours(v) => Some(v.load(Ordering::Relaxed)),
            Found::Stale | Found::Foreign => None,
        }
    }

    #[test]
    fn a_key_lives_from_insert_to_remove() {
        let table = Table::new(Tag::Conn);
        let (a, b) = (put(&table, 7), put(&table, 8));
        assert_eq!((get(&table, a), get(&table, b)), (Some(7), Some(8)));
        assert_eq!(table.remove(a, |v| v.load(Ordering::Relaxed)), Some(7));
        assert_eq!(table.remove(a, |_| ()), None, "a second close finds nothing");
        let c = put(&table, 9);
        assert!(matches!(table.find(a), Found::Stale), "the slot is used again, the key is stale");
        assert_eq!((get(&table, b), get(&table, c)), (Some(8), Some(9)));
        assert_eq!(Table::<AtomicU64>::index(a), Table::<AtomicU64>::index(c));
    }

    #[test]
    fn pointers_are_foreign_and_no_key_is_a_pointer() {
        let table = Table::new(Tag::Conn);
        let key = put(&table, 1);
        let here = &raw const table as u64;
        for bits in [0, 1, 2, here, u64::MAX, 0x7fff_ffff_ffff, 0x00ff_ffff_ffff_ffff, Tag::Request.key(0)] {
            assert!(matches!(table.find(bits), Found::Foreign), "{bits:#x}");
        }
        for tag in [Tag::Conn, Tag::Request, Tag::Scope] {
            let top = tag.key(0) >> 48;
            assert!(top >> 8 & 0xff != 0 && top >> 9 != 0, "beyond 57 bits: {top:#x}");
            assert!(top & 0xf0 != 0, "beyond 52 bits whatever the uppermost eight are: {top:#x}");
        }
        for bits in [0, 1, 64, 65535, 1 << 40] {
            assert!(matches!(table.find(Tag::Conn.key(bits)), Found::Stale), "{bits:#x}");
        }
        assert_eq!(get(&table, key), Some(1));
    }

    #[test]
    fn the_table_is_bounded() {
        let table = Table::<AtomicU64>::new(Tag::Scope);
        let keys: Vec<u64> = (0..1 << INDEX_BITS).map(|i| put(&table, i)).collect();
        assert_eq!(table.insert(|_| ()), None);
        assert!(table.remove(keys[40_000], |_| ()).is_some());
        let again = put(&table, 5);
        assert_eq!(get(&table, again), Some(5));
        assert_eq!(get(&table, keys[65_535]), Some(65_535));
    }

    #[test]
    fn threads_find_what_they_put() {
        let table = &Table::new(Tag::Conn);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    for round in 0..5_000 {
                        let n = thread << 32 | round;
                        let key = put(table, n);
                        assert_eq!(get(table, key), Some(n));
                        assert_eq!(table.remove(key, |v| v.load(Ordering::Relaxed)), Some(n));
                        assert_eq!(get(table, key), None);
                    }
                });
            }
        });
    }
}
