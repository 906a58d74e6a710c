//! Array maps, and global data as an array of one value: the index is the place.

use super::{Errno, UpdateMode};
use ringfence_translator::MapDecl;

/// The place of an index; `None` beyond the last.
#[inline]
pub(super) fn find(decl: &MapDecl, key: &[u64]) -> Option<u32> {
    let index = *key.first()? as u32;
    (index < decl.max_entries).then_some(index)
}

/// The place that an update writes. All entries exist from the start, hence `NOEXIST` never succeeds.
#[inline]
pub(super) fn target(decl: &MapDecl, key: &[u64], mode: UpdateMode) -> Result<u32, Errno> {
    // Linux checks the index before BPF_NOEXIST (kernel/bpf/arraymap.c, array_map_update_elem).
    let slot = find(decl, key).ok_or(Errno::TOO_BIG)?;
    match mode {
        UpdateMode::NoExist => Err(Errno::EXIST),
        UpdateMode::Any | UpdateMode::Exist => Ok(slot),
    }
}
