//! [`MapDecl`]: the shape of a map, and [`MapLayout`], how its values lie in the map's own Wasm memory.

mod flags;

use crate::limits::PERCPU_SLOTS;
use crate::types::TypeDesc;
use std::sync::Arc;

/// Kind of a map. Each may be declared and verified; which of them a host can run is the host's to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MapKind {
    /// `BPF_MAP_TYPE_HASH`
    Hash,
    /// `BPF_MAP_TYPE_ARRAY`
    #[default]
    Array,
    /// `BPF_MAP_TYPE_LRU_HASH`
    LruHash,
    /// `BPF_MAP_TYPE_PERCPU_ARRAY`
    PercpuArray,
    /// `BPF_MAP_TYPE_PERCPU_HASH`
    PercpuHash,
    /// `BPF_MAP_TYPE_RINGBUF`: `max_entries` is its size in bytes; no keys, no values.
    RingBuf,
    /// `BPF_MAP_TYPE_PROG_ARRAY`: targets of tail calls.
    ProgArray,
    /// A global data section (`.rodata*`, `.data*`, `.bss*`): an array of one value.
    Global,
}

impl MapKind {
    /// All kinds.
    pub const ALL: [MapKind; 8] = {
        use MapKind::*;
        [Hash, Array, LruHash, PercpuArray, PercpuHash, RingBuf, ProgArray, Global]
    };

    /// The kind with that number in `enum bpf_map_type` (include/uapi/linux/bpf.h); `None` if it is not offered.
    pub const fn from_bpf_type(number: u32) -> Option<MapKind> {
        Some(match number {
            1 => MapKind::Hash,
            2 => MapKind::Array,
            3 => MapKind::ProgArray,
            5 => MapKind::PercpuHash,
            6 => MapKind::PercpuArray,
            9 => MapKind::LruHash,
            27 => MapKind::RingBuf,
            _ => return None,
        })
    }

    /// The name, as in messages.
    pub const fn name(self) -> &'static str {
        match self {
            MapKind::Hash => "hash",
            MapKind::Array => "array",
            MapKind::LruHash => "lru_hash",
            MapKind::PercpuArray => "percpu_array",
            MapKind::PercpuHash => "percpu_hash",
            MapKind::RingBuf => "ringbuf",
            MapKind::ProgArray => "prog_array",
            MapKind::Global => "global",
        }
    }

    /// Do look-ups give pointers to its values?
    pub const fn has_values(self) -> bool {
        !matches!(self, MapKind::RingBuf | MapKind::ProgArray)
    }

    /// Has each value a copy for each slot, of which a policy sees its own?
    pub const fn is_percpu(self) -> bool {
        matches!(self, MapKind::PercpuArray | MapKind::PercpuHash)
    }

    /// Is a key of any bytes, rather than an index?
    pub const fn is_hash(self) -> bool {
        matches!(self, MapKind::Hash | MapKind::LruHash | MapKind::PercpuHash)
    }
}

/// A map as a program declares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapDecl {
    /// Symbol name, or the section's name for global data.
    pub name: String,
    /// Kind.
    pub kind: MapKind,
    /// Bytes of a key; 4 for arrays, 0 for ring buffers.
    pub key_size: u32,
    /// Bytes of a value; 0 for ring buffers.
    pub value_size: u32,
    /// Entries; for ring buffers bytes.
    pub max_entries: u32,
    /// `map_flags` as declared.
    pub flags: u32,
    /// The policy may not write values (`.rodata`, `BPF_F_RDONLY_PROG`).
    pub read_only: bool,
    /// Initial contents of a global data section, `value_size` bytes; empty for other kinds.
    pub init: Vec<u8>,
    /// Byte offset of a `struct bpf_spin_lock` in the value, as BTF tells; its [`SPIN_LOCK_BYTES`] bytes belong to the
    /// helpers alone.
    pub spin_lock: Option<u32>,
    /// What BTF says of a key, for tools that show it; `None` where it says nothing. No part of the shape.
    pub key_type: Option<Arc<TypeDesc>>,
    /// What BTF says of a value, or of the variables of global data.
    pub value_type: Option<Arc<TypeDesc>>,
}

/// Alignment of the slots of a per-CPU map: a cache line.
const SLOT_ALIGN: u64 = 64;
/// Most places that a hash has beyond its entries.
const MAX_SPARE: u32 = 256;
/// Size of a `struct bpf_spin_lock`.
pub const SPIN_LOCK_BYTES: u32 = 4;

/// How the values of a map lie in its memory: place `i` starts at `i * stride`. An entry of an array has the place of its
/// index. A hash has more places than entries, since one that is deleted keeps its place for a while, in which somebody may hold a
/// pointer to it. A per-CPU map has all of its places once for each slot, slot `s` from `s * slot_bytes` on. A ring buffer of `n` bytes
/// has a memory of `2 * n`, so that a record which starts in the first half always lies in one piece; a program array has none to speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLayout {
    /// Distance of two values in bytes: the value size rounded up to 8.
    pub stride: u32,
    /// Places for values; in each slot.
    pub places: u32,
    /// Distance of two slots of a per-CPU map in bytes, a multiple of 64, so that ranks share no cache line; 0 for other kinds.
    pub slot_bytes: u32,
    /// Size of the memory in 64 KiB pages (minimum equals maximum).
    pub pages: u32,
}

impl MapDecl {
    /// The layout; `None` if the map has no entries, an empty value, or does not fit into 4 GiB less one page.
    pub fn layout(&self) -> Option<MapLayout> {
        let stride = match self.kind {
            MapKind::RingBuf => 8,
            _ => self.value_size.checked_next_multiple_of(8)?,
        };
        let mut places = self.max_entries.checked_add(self.spare_places())?;
        let once = match self.kind {
            MapKind::RingBuf => 2 * u64::from(self.max_entries),
            _ => u64::from(stride) * u64::from(places),
        };
        let slot_bytes = if self.kind.is_percpu() { once.next_multiple_of(SLOT_ALIGN) } else { 0 };
        let bytes = if slot_bytes == 0 { once } else { slot_bytes * u64::from(PERCPU_SLOTS) };
        let pages = bytes.div_ceil(65536);
        if once == 0 || self.max_entries == 0 || pages > 65535 {
            return None;
        }
        if self.kind.is_hash() && slot_bytes == 0 {
            // What is left of the last page is free.
            let fit = (pages * 65536 / u64::from(stride)) as u32;
            places = places.max(fit.min(self.max_entries.saturating_add(MAX_SPARE)));
        }
        Some(MapLayout { stride, places, slot_bytes: slot_bytes as u32, pages: pages as u32 })
    }

    /// Places that a hash has beyond its entries at the least, for those that were deleted and may not be used again yet: a quarter,
    /// 16 at least.
    fn spare_places(&self) -> u32 {
        if self.kind.is_hash() { (self.max_entries / 4).clamp(16, MAX_SPARE) } else { 0 }
    }

    /// Same kind, sizes, entries, flags and lock: contents may be shared or carried over.
    pub fn same_shape(&self, other: &MapDecl) -> bool {
        let shape = |m: &MapDecl| {
            let sizes = (m.key_size, m.value_size, m.max_entries);
            (m.kind, sizes, m.flags, m.read_only, m.spin_lock)
        };
        shape(self) == shape(other)
    }

    /// The shape in one line, for messages.
    pub fn shape(&self) -> String {
        let (kind, k, v, n) = (self.kind.name(), self.key_size, self.value_size, self.max_entries);
        let mut text = format!("{kind}(key {k}, value {v}, {n} entries");
        if self.flags != 0 {
            text += &format!(", flags {:#x}", self.flags);
        }
        if let Some(at) = self.spin_lock {
            text += &format!(", lock at {at}");
        }
        text + if self.read_only { ", read-only)" } else { ")" }
    }

    /// Do bytes `[lo, hi)` of a value touch its spin lock?
    pub fn touches_lock(&self, lo: i64, hi: i64) -> bool {
        self.spin_lock.is_some_and(|at| lo < i64::from(at + SPIN_LOCK_BYTES) && i64::from(at) < hi)
    }
}
