//! What shapes of maps this host serves, and how much memory they take.

use super::hash;
use super::ring::Ring;
use crate::error::{Error, ErrorKind, Result};
use ringfence_translator::limits::{MAX_KEY_BYTES, MAX_PERCPU_BYTES, MAX_VALUE_BYTES};
use ringfence_translator::map::SPIN_LOCK_BYTES;
use ringfence_translator::{MapDecl, MapKind, MapLayout};

/// The shape of a hash's index.
pub(super) fn index(decl: &MapDecl, layout: MapLayout) -> hash::Shape {
    hash::Shape {
        key_size: decl.key_size,
        max_entries: decl.max_entries,
        places: layout.places,
        lru: decl.kind == MapKind::LruHash,
    }
}

/// Bytes of memory that a map of this shape takes, index included.
pub(super) fn memory_bytes(decl: &MapDecl, layout: MapLayout) -> u64 {
    let beside = match decl.kind {
        kind if kind.is_hash() => index(decl, layout).bytes(),
        MapKind::RingBuf => Ring::bytes(decl.max_entries),
        _ => 0,
    };
    u64::from(layout.pages) * 65536 + beside
}

/// Sizes and flags that the host can serve.
pub(super) fn check(decl: &MapDecl) -> Result<MapLayout> {
    let bad =
        |why: &str| Error::new(ErrorKind::BadMap, format!("map {}: {why}: {}", decl.name, decl.shape()));
    decl.check_flags().map_err(|why| bad(&why))?;
    if decl.kind == MapKind::RingBuf {
        return check_ring(decl, bad);
    }
    let lock_fits =
        |at: u32| at.is_multiple_of(SPIN_LOCK_BYTES) && at.saturating_add(SPIN_LOCK_BYTES) <= decl.value_size;
    if !decl.spin_lock.is_none_or(lock_fits) {
        return Err(bad("the spin lock is misaligned or outside the value"));
    }
    if decl.key_size == 0 || decl.key_size > MAX_KEY_BYTES {
        return Err(bad("keys must have 1 to 512 bytes"));
    }
    if !decl.kind.is_hash() && decl.key_size != 4 {
        return Err(bad("array keys must have 4 bytes"));
    }
    if decl.value_size > MAX_VALUE_BYTES {
        return Err(bad("values may have at most 1 MiB"));
    }
    if decl.kind.is_percpu() && decl.value_size > MAX_PERCPU_BYTES {
        return Err(bad("values of per-CPU maps may have at most 32 KiB"));
    }
    if decl.init.len() > decl.value_size as usize {
        return Err(bad("initial contents are larger than the value"));
    }
    decl.layout().ok_or_else(|| bad("no entries, no value, or larger than 4 GiB"))
}

fn check_ring(decl: &MapDecl, bad: impl Fn(&str) -> Error) -> Result<MapLayout> {
    if (decl.key_size, decl.value_size) != (0, 0) || !decl.init.is_empty() {
        return Err(bad("a ring buffer has neither keys nor values"));
    }
    if !decl.max_entries.is_power_of_two() || !decl.max_entries.is_multiple_of(4096) {
        return Err(bad("a ring buffer has a power of two of pages"));
    }
    decl.layout().ok_or_else(|| bad("larger than 1 GiB"))
}
