//! [`MapDecl`]: the shape of a map, and [`MapLayout`], how its values lie in the map's own Wasm memory.

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

/// Size of a `struct bpf_spin_lock`.
pub const SPIN_LOCK_BYTES: u32 = 4;

/// How the values of a map lie in its memory: entry `i` starts at `i * stride`. A ring buffer of `n` bytes has a memory of
/// `2 * n`, so that a record which starts in the first half always lies in one piece; a program array has none to speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLayout {
    /// Distance of two values in bytes: the value size rounded up to 8.
    pub stride: u32,
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
        let bytes = match self.kind {
            MapKind::RingBuf => 2 * u64::from(self.max_entries),
            _ => u64::from(stride) * u64::from(self.max_entries),
        };
        let pages = bytes.div_ceil(65536);
        if bytes == 0 || pages > 65535 {
            return None;
        }
        Some(MapLayout { stride, pages: pages as u32 })
    }

    /// Same kind, sizes, entries, flags and lock: contents may be shared or carried over.
    pub fn same_shape(&self, other: &MapDecl) -> bool {
        let shape = |m: &MapDecl| {
            let sizes = (m.key_size, m.value_size, m.max_entries);
            (m.kind, sizes, m.flags, m.read_only, m.spin_lock)
        };
        shape(self) == shape(other)
    }

    /// Do bytes `[lo, hi)` of a value touch its spin lock?
    pub fn touches_lock(&self, lo: i64, hi: i64) -> bool {
        self.spin_lock.is_some_and(|at| lo < i64::from(at + SPIN_LOCK_BYTES) && i64::from(at) < hi)
    }
}
