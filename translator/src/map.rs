//! [`MapDecl`]: the shape of a map, and [`MapLayout`], how its values lie in the map's own Wasm memory.

/// Kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapKind {
    /// `BPF_MAP_TYPE_HASH`
    Hash,
    /// `BPF_MAP_TYPE_ARRAY`
    Array,
    /// A global data section (`.rodata*`, `.data*`, `.bss*`): an array of one value.
    Global,
}

/// A map as a program declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDecl {
    /// Symbol name, or the section's name for global data.
    pub name: String,
    /// Kind.
    pub kind: MapKind,
    /// Bytes of a key; 4 for arrays.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Entries.
    pub max_entries: u32,
    /// `map_flags` as declared.
    pub flags: u32,
    /// The policy may not write values (`.rodata`, `BPF_F_RDONLY_PROG`).
    pub read_only: bool,
    /// Initial contents of a global data section, `value_size` bytes; empty for other kinds.
    pub init: Vec<u8>,
}

/// How the values of a map lie in its memory: entry `i` starts at `i * stride`.
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
        let stride = self.value_size.checked_next_multiple_of(8)?;
        let bytes = u64::from(stride) * u64::from(self.max_entries);
        let pages = bytes.div_ceil(65536);
        if bytes == 0 || pages > 65535 {
            return None;
        }
        Some(MapLayout { stride, pages: pages as u32 })
    }

    /// Same kind, sizes, entries and flags: contents may be shared or carried over.
    pub fn same_shape(&self, other: &MapDecl) -> bool {
        (self.kind, self.key_size, self.value_size, self.max_entries, self.flags, self.read_only)
            == (other.kind, other.key_size, other.value_size, other.max_entries, other.flags, other.read_only)
    }
}
