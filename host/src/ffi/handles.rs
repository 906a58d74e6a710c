//! [`Handles`]: the table behind the context pointers that NCCL keeps for us.
//!
//! A context is no pointer but a generation and an index, so a null, stale, doubled or invented one is refused
//! instead of dereferenced. A slot is never freed, only reused under the next generation; its try-lock guards the
//! value, so that even a call that races with its own finalize (which NCCL rules out) finds either the value or
//! nothing. The try-lock is the one that the decision path needs anyway; the generation costs one compare.

use super::lock::TryLock;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Slots of a segment; segments are allocated when needed, and never moved.
const SEGMENT: usize = 64;
/// Most segments: 4096 communicators alive at once in a process. NCCL's own limits end far below.
const SEGMENTS: usize = 64;
const INDEX_BITS: u32 = 12;
const _: () = assert!(SEGMENT * SEGMENTS == 1 << INDEX_BITS);

/// A slot. Aligned so that two communicators never share a cache line (128: the adjacent-line prefetcher).
#[repr(align(128))]
struct Slot<T>(TryLock<Entry<T>>);

struct Entry<T> {
    /// Counts up at every insertion; 0 = never used.
    generation: u64,
    value: Option<T>,
}

impl<T> Slot<T> {
    const fn new() -> Slot<T> {
        Slot(TryLock::new(Entry { generation: 0, value: None }))
    }
}

/// Table of the live values, addressed by the opaque handles given to NCCL.
pub struct Handles<T> {
    segments: [OnceLock<Box<[Slot<T>]>>; SEGMENTS],
    free: Mutex<Free>,
}

struct Free {
    indices: Vec<u32>,
    next: u32,
}

impl<T> Handles<T> {
    /// An empty table.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Handles<T> {
        Handles {
            segments: [const { OnceLock::new() }; SEGMENTS],
            free: Mutex::new(Free { indices: Vec::new(), next: 0 }),
        }
    }

    /// Stores `value` and returns its handle; gives it back if the table is full or the free slot is held by a
    /// call that panicked.
    pub fn insert(&self, value: T) -> Result<*mut c_void, T> {
        let Some(index) = self.take_index() else { return Err(value) };
        let segment = self.segments[index as usize / SEGMENT]
            .get_or_init(|| (0..SEGMENT).map(|_| Slot::new()).collect());
        let mut value = Some(value);
        let generation = segment[index as usize % SEGMENT].0.enter_once(|entry| {
            entry.generation += 1;
            entry.value = value.take();
            entry.generation
        });
        match (generation, value) {
            (Some(generation), None) => {
                Ok(std::ptr::without_provenance_mut((generation << INDEX_BITS) as usize | index as usize))
            }
            (_, Some(value)) => Err(value),
            (None, None) => unreachable!("a value is taken only under the lock"),
        }
    }

    /// Runs `f` on the value of `handle`. `None` if the handle is null, stale or invented, or if another thread
    /// is inside (never waits).
    #[inline]
    pub fn with<R>(&self, handle: *mut c_void, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let (slot, generation) = self.slot(handle)?;
        slot.0.enter(|entry| match &mut entry.value {
            Some(value) if entry.generation == generation => Some(f(value)),
            _ => None,
        })?
    }

    /// Takes the value of `handle` out; from then on the handle is stale. Waits for a call that is inside (a
    /// microsecond at most); gives up after a while if that call never ends, and leaks the value.
    pub fn remove(&self, handle: *mut c_void) -> Option<T> {
        let (slot, generation) = self.slot(handle)?;
        for _ in 0..1000 {
            let taken = slot
                .0
                .enter_once(|entry| if entry.generation == generation { entry.value.take() } else { None });
            if let Some(value) = taken {
                if value.is_some() {
                    self.give_index(handle);
                }
                return value;
            }
            std::thread::yield_now();
        }
        None
    }

    #[inline]
    fn slot(&self, handle: *mut c_void) -> Option<(&Slot<T>, u64)> {
        let bits = handle.addr();
        let index = bits & ((1 << INDEX_BITS) - 1);
        let segment = self.segments[index / SEGMENT].get()?;
        Some((&segment[index % SEGMENT], (bits >> INDEX_BITS) as u64))
    }

    fn take_index(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.indices.pop().or_else(|| {
            let index = free.next;
            free.next += u32::from((index as usize) < SEGMENT * SEGMENTS);
            ((index as usize) < SEGMENT * SEGMENTS).then_some(index)
        })
    }

    fn give_index(&self, handle: *mut c_void) {
        let index = (handle.addr() & ((1 << INDEX_BITS) - 1)) as u32;
        self.free.lock().unwrap_or_else(PoisonError::into_inner).indices.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null_mut, without_provenance_mut};

    #[test]
    fn a_handle_lives_from_insert_to_remove() {
        let table = Handles::new();
        let a = table.insert(7).unwrap();
        let b = table.insert(8).unwrap();
        assert_ne!(a, b);
        assert!(!a.is_null());
        assert_eq!(table.with(a, |v| *v), Some(7));
        assert_eq!(table.remove(a), Some(7));
        assert_eq!(table.remove(a), None, "a second finalize finds nothing");
        let c = table.insert(9).unwrap();
        assert_eq!(table.with(a, |v| *v), None, "the slot is reused, the handle is stale");
        assert_eq!(table.with(c, |v| *v), Some(9));
        assert_eq!(table.with(b, |v| *v), Some(8));
    }

    #[test]
    fn invented_handles_are_refused() {
        let table = Handles::new();
        table.insert(1).unwrap();
        for bits in [0, 1, 63, 64, 4095, 4096 * 2, usize::MAX, usize::MAX << 12, 0xdead_beef_0000] {
            assert_eq!(table.with(without_provenance_mut(bits), |v| *v), None, "{bits:#x}");
            assert_eq!(table.remove(without_provenance_mut(bits)), None, "{bits:#x}");
        }
        assert_eq!(table.with(null_mut(), |v| *v), None);
    }

    #[test]
    fn a_busy_value_is_not_waited_for() {
        let table = Handles::new();
        let a = table.insert(1).unwrap();
        let inner = table.with(a, |_| table.with(a, |v| *v));
        assert_eq!(inner, Some(None));
        assert_eq!(table.with(a, |v| *v), Some(1));
    }

    #[test]
    fn the_table_is_bounded_and_gives_the_value_back() {
        let table = Handles::new();
        let all: Vec<_> = (0..SEGMENT * SEGMENTS).map(|i| table.insert(i).unwrap()).collect();
        assert_eq!(table.insert(5000), Err(5000));
        assert_eq!(table.remove(all[17]), Some(17));
        let again = table.insert(5001).unwrap();
        assert_eq!(table.with(again, |v| *v), Some(5001));
    }

    #[test]
    fn a_panic_inside_silences_the_value() {
        let table = Handles::new();
        let a = table.insert(1).unwrap();
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| table.with(a, |_| panic!("x"))));
        assert!(caught.is_err());
        assert_eq!(table.with(a, |v| *v), None);
        assert_eq!(table.remove(a), None);
    }

    #[test]
    fn threads_never_meet_inside() {
        let table = Handles::new();
        let a = table.insert(0u64).unwrap().addr();
        let table = &table;
        let entered: u64 = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        (0..20_000)
                            .filter(|_| table.with(without_provenance_mut(a), |v| *v += 1).is_some())
                            .count() as u64
                    })
                })
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).sum()
        });
        assert_eq!(table.with(without_provenance_mut(a), |v| *v), Some(entered));
    }
}
