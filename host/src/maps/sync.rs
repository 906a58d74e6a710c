//! The atomics of [`hash`](super::hash) and [`grace`](super::grace). `tests/loom` compiles those two files a second time, with loom's
//! atomics in this place, so that what is checked is what runs.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, fence};

/// Attempts of a writer to get a map's lock; about 5 us. A holder that is scheduled out keeps it longer: then `BUSY`.
pub(super) const LOCK_SPINS: u32 = 500;
/// Attempts of a reader before it takes the lock.
pub(super) const FIND_RETRIES: u32 = 64;

/// Stores `value` and orders the store before all later loads. On x86 by one locked exchange, which takes half as long as `mfence`
/// does and orders all that comes before and after it (Intel SDM vol. 3, 11.2.5; crossbeam-epoch relies on the same).
#[inline]
pub(super) fn store_fence(cell: &AtomicU64, value: u64) {
    if cfg!(target_arch = "x86_64") {
        cell.swap(value, SeqCst);
    } else {
        cell.store(value, SeqCst);
        fence(SeqCst);
    }
}

/// A full fence, at the price of an exchange on a lock that the caller holds.
#[inline]
pub(super) fn fence_on(held: &AtomicBool) {
    if cfg!(target_arch = "x86_64") {
        held.swap(true, SeqCst);
    } else {
        fence(SeqCst);
    }
}
