//! [`in_value`]: where the `struct bpf_spin_lock` of a map's value lies, as BTF tells. The kernel looks as we do: through
//! structs and arrays, not unions; one lock at most, aligned to its size (`btf_find_field`, kernel/bpf/btf.c).

use super::btf::{Btf, Member, Type, kind};
use crate::map::SPIN_LOCK_BYTES;

const NAME: &str = "bpf_spin_lock";
/// Structs inside structs that are looked into.
const MAX_DEPTH: u32 = 8;
/// Members that are looked at, over all: nested types of a hostile object may branch.
const MAX_VISITS: u32 = 4096;

struct Search<'b, 'a> {
    btf: &'b Btf<'a>,
    visits: u32,
    found: Option<u32>,
}

/// Offset of the lock in a value of that type; `None` if there is none.
///
/// # Errors
/// Several locks, or one that is misaligned, in words.
pub(super) fn in_value(btf: &Btf<'_>, ty: u32) -> Result<Option<u32>, String> {
    let mut search = Search { btf, visits: 0, found: None };
    search.look(ty, 0, 1, 0)?;
    Ok(search.found)
}

/// The same for the variables of a section of global data.
pub(super) fn in_section(btf: &Btf<'_>, vars: &[Member]) -> Result<Option<u32>, String> {
    let mut search = Search { btf, visits: 0, found: None };
    for var in vars {
        search.look(var.ty, var.offset, 1, 0)?;
    }
    Ok(search.found)
}

impl Search<'_, '_> {
    /// Looks into `count` values of that type that begin at `offset`.
    fn look(&mut self, ty: u32, offset: u32, count: u32, depth: u32) -> Result<(), String> {
        self.visits += 1;
        let Some(ty) = self.btf.resolve(ty).filter(|_| self.visits <= MAX_VISITS && depth <= MAX_DEPTH)
        else {
            return Ok(());
        };
        match ty.kind {
            kind::ARRAY => match ty.array() {
                Some((element, len)) if len > 0 => {
                    self.look(element, offset, count.saturating_mul(len), depth + 1)
                }
                _ => Ok(()),
            },
            kind::STRUCT if self.is_lock(ty) => self.note(offset, count),
            kind::STRUCT => {
                for m in ty.members() {
                    self.look(m.ty, offset.saturating_add(m.offset), count, depth + 1)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_lock(&self, ty: Type<'_>) -> bool {
        ty.size_or_type == SPIN_LOCK_BYTES && self.btf.string(ty.name) == NAME
    }

    fn note(&mut self, offset: u32, count: u32) -> Result<(), String> {
        if count > 1 || self.found.is_some() {
            return Err("has several bpf_spin_locks; at most one is allowed".to_owned());
        }
        if !offset.is_multiple_of(SPIN_LOCK_BYTES) {
            return Err(format!("has a bpf_spin_lock at offset {offset}, which is not a multiple of 4"));
        }
        self.found = Some(offset);
        Ok(())
    }
}
