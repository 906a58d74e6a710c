//! What shapes of maps this host serves, how much memory they take, and how they are called.

use super::hash;
use super::ring::Ring;
use crate::error::{Error, ErrorKind, Result};
use ringfence_translator::limits::{MAX_KEY_BYTES, MAX_PERCPU_BYTES, MAX_VALUE_BYTES};
use ringfence_translator::map::SPIN_LOCK_BYTES;
use ringfence_translator::{MapDecl, MapKind, MapLayout};

/// Flags of a map's definition (`map_flags`, include/uapi/linux/bpf.h).
pub(super) mod flag {
    pub(crate) const NO_PREALLOC: u32 = 1 << 0;
    pub(crate) const NO_COMMON_LRU: u32 = 1 << 1;
    pub(crate) const NUMA_NODE: u32 = 1 << 2;
    pub(crate) const ZERO_SEED: u32 = 1 << 6;
    pub(crate) const RDONLY_PROG: u32 = 1 << 7;
    pub(crate) const MMAPABLE: u32 = 1 << 10;
}

/// Names of the flags, by bit.
const FLAG_NAMES: [&str; 20] = [
    "BPF_F_NO_PREALLOC",
    "BPF_F_NO_COMMON_LRU",
    "BPF_F_NUMA_NODE",
    "BPF_F_RDONLY",
    "BPF_F_WRONLY",
    "BPF_F_STACK_BUILD_ID",
    "BPF_F_ZERO_SEED",
    "BPF_F_RDONLY_PROG",
    "BPF_F_WRONLY_PROG",
    "BPF_F_CLONE",
    "BPF_F_MMAPABLE",
    "BPF_F_PRESERVE_ELEMS",
    "BPF_F_INNER_MAP",
    "BPF_F_LINK",
    "BPF_F_PATH_FD",
    "BPF_F_VTYPE_BTF_OBJ_FD",
    "BPF_F_TOKEN_FD",
    "BPF_F_SEGV_ON_FAULT",
    "BPF_F_NO_USER_CONV",
    "BPF_F_RB_OVERWRITE",
];

/// The shape in one line.
pub(super) fn shape(decl: &MapDecl) -> String {
    let kind = decl.kind.name();
    let (k, v, n) = (decl.key_size, decl.value_size, decl.max_entries);
    let mut text = format!("{kind}(key {k}, value {v}, {n} entries");
    if decl.flags != 0 {
        text += &format!(", flags {:#x}", decl.flags);
    }
    if let Some(at) = decl.spin_lock {
        text += &format!(", lock at {at}");
    }
    text += if decl.read_only { ", read-only)" } else { ")" };
    text
}

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
    let bad = |why: &str| Error::new(ErrorKind::BadMap, format!("map {}: {why}: {}", decl.name, shape(decl)));
    check_flags(decl).map_err(|why| bad(&why))?;
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

/// Flags are honoured or refused, never dropped. As in the kernel, each goes with some kinds only (`htab_map_alloc_check`,
/// `array_map_alloc_check`):
/// - `NO_PREALLOC` (not LRU), `NO_COMMON_LRU` (LRU alone), `NUMA_NODE`: hints on where memory comes from, which change nothing else.
/// - `ZERO_SEED` (hashes): the order of entries is the same in each run; it always is.
/// - `RDONLY_PROG`: the verifier refuses a policy that writes.
/// - `MMAPABLE` (arrays): asks for what the host always has, the values in memory that it can read.
fn check_flags(decl: &MapDecl) -> Result<(), String> {
    let own = match decl.kind {
        MapKind::Hash | MapKind::PercpuHash => flag::NO_PREALLOC | flag::ZERO_SEED,
        MapKind::LruHash => flag::NO_COMMON_LRU | flag::ZERO_SEED,
        MapKind::Array | MapKind::Global => flag::MMAPABLE,
        MapKind::PercpuArray | MapKind::RingBuf | MapKind::ProgArray => 0,
    };
    let read_only = if decl.kind == MapKind::RingBuf { 0 } else { flag::RDONLY_PROG };
    let unknown = decl.flags & !(own | flag::NUMA_NODE | read_only);
    if unknown == 0 {
        return Ok(());
    }
    let named = |bit: &usize| unknown >> bit & 1 != 0;
    let names: Vec<&str> = (0..32).filter(named).map(|b| FLAG_NAMES.get(b).copied().unwrap_or("?")).collect();
    let kind = decl.kind.name();
    Err(format!("flags {} ({unknown:#x}) are not offered for a map of kind {kind}", names.join(", ")))
}
