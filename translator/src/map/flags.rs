//! [`MapDecl::check_flags`]: which flags a map's definition may have.

use super::{MapDecl, MapKind};

/// Flags of a map's definition (`map_flags`, include/uapi/linux/bpf.h).
mod flag {
    pub(super) const NO_PREALLOC: u32 = 1 << 0;
    pub(super) const NO_COMMON_LRU: u32 = 1 << 1;
    pub(super) const NUMA_NODE: u32 = 1 << 2;
    pub(super) const ZERO_SEED: u32 = 1 << 6;
    pub(super) const RDONLY_PROG: u32 = 1 << 7;
    pub(super) const MMAPABLE: u32 = 1 << 10;
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

impl MapDecl {
    /// Flags are honoured or refused, never dropped. As in the kernel, each goes with some kinds only (`htab_map_alloc_check`,
    /// `array_map_alloc_check`):
    /// - `NO_PREALLOC` (not LRU), `NO_COMMON_LRU` (LRU alone), `NUMA_NODE`: hints on where memory comes from, which change nothing else.
    /// - `ZERO_SEED` (hashes): the order of entries is the same in each run; it always is.
    /// - `RDONLY_PROG`: the verifier refuses a policy that writes.
    /// - `MMAPABLE` (arrays): asks for what the host always has, the values in memory that it can read.
    ///
    /// # Errors
    /// The flags that are not offered, by name.
    pub fn check_flags(&self) -> Result<(), String> {
        let own = match self.kind {
            MapKind::Hash | MapKind::PercpuHash => flag::NO_PREALLOC | flag::ZERO_SEED,
            MapKind::LruHash => flag::NO_COMMON_LRU | flag::ZERO_SEED,
            MapKind::Array | MapKind::Global => flag::MMAPABLE,
            MapKind::PercpuArray | MapKind::RingBuf | MapKind::ProgArray => 0,
        };
        let read_only = if self.kind == MapKind::RingBuf { 0 } else { flag::RDONLY_PROG };
        let unknown = self.flags & !(own | flag::NUMA_NODE | read_only);
        if unknown == 0 {
            return Ok(());
        }
        let named = |bit: &usize| unknown >> bit & 1 != 0;
        let names: Vec<&str> =
            (0..32).filter(named).map(|b| FLAG_NAMES.get(b).copied().unwrap_or("?")).collect();
        let kind = self.kind.name();
        Err(format!("flags {} ({unknown:#x}) are not offered for a map of kind {kind}", names.join(", ")))
    }
}
