//! [`Types`]: a [`TypeDesc`] from BTF. What makes no sense becomes plain bytes, so that a tool
//! shows less, and never something wrong.

use super::btf::{Btf, Field, Member, Type, kind};
use crate::map::SPIN_LOCK_BYTES;
use crate::types::{BitField, FieldDesc, MAX_TYPE_DEPTH, MAX_TYPE_NODES, TypeDesc, TypeKind};
use std::sync::Arc;

/// Bits of an integer's encoding (`BTF_INT_*`).
const SIGNED: u32 = 1;
const CHAR: u32 = 2;
const BOOL: u32 = 4;

/// Most types that all descriptions of an object hold, enumerators included: what a hostile object can make us allocate.
const MAX_NODES: usize = 16 * MAX_TYPE_NODES;
/// Members of one of Rust's wrappers; more than any has.
const MAX_WRAPPED: usize = 8;

/// Describes the types of one object.
pub(super) struct Types<'b, 'a> {
    btf: Option<&'b Btf<'a>>,
    /// Types that may still be described.
    left: usize,
}

impl<'b, 'a> Types<'b, 'a> {
    pub(super) fn new(btf: Option<&'b Btf<'a>>) -> Types<'b, 'a> {
        Types { btf, left: MAX_NODES }
    }

    /// The type of that id; `None` if it has no size.
    pub(super) fn describe(&mut self, id: u32) -> Option<Arc<TypeDesc>> {
        self.with(|r| r.read(id, 0))
    }

    /// The variables of a section of global data as a struct of `size` bytes; `None` if BTF does not know the section. `vars` have
    /// the offsets that the symbols say.
    pub(super) fn describe_section(
        &mut self,
        name: &str,
        size: u32,
        vars: &[Member],
    ) -> Option<Arc<TypeDesc>> {
        let field =
            |m: &Member| Field { name: m.name, ty: m.ty, bit_offset: 8 * u64::from(m.offset), bits: 0 };
        let mut fields = self.with(|r| Some(r.fields(vars.iter().map(field), size, 0)))?;
        fields.sort_by_key(|f| f.offset);
        let kind = TypeKind::Struct(fields);
        (!vars.is_empty()).then(|| Arc::new(TypeDesc { name: name.to_owned(), size, kind }))
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut Reader<'b, 'a>) -> Option<T>) -> Option<T> {
        let budget = self.left.min(MAX_TYPE_NODES);
        let mut reader = Reader { btf: self.btf?, left: budget };
        let done = f(&mut reader);
        self.left -= budget - reader.left;
        done
    }
}

struct Reader<'b, 'a> {
    btf: &'b Btf<'a>,
    left: usize,
}

impl Reader<'_, '_> {
    fn read(&mut self, id: u32, depth: u32) -> Option<Arc<TypeDesc>> {
        let spent = self.spend(1);
        let size = self.btf.size_of(id).filter(|s| *s > 0)?;
        let ty = self.btf.resolve(id)?;
        if depth > MAX_TYPE_DEPTH || !spent {
            return Some(Arc::new(TypeDesc::bytes(size)));
        }
        if let Some(inner) = self.inside(ty, size) {
            return self.read(inner, depth + 1);
        }
        let name = self.name(id, ty);
        let kind = self.kind(ty, size, &name, depth);
        Some(Arc::new(TypeDesc { name, size, kind }))
    }

    /// Takes so many types off the budget; false if it is used up.
    fn spend(&mut self, types: usize) -> bool {
        let enough = types <= self.left;
        self.left -= types.min(self.left);
        enough
    }

    /// The name of a typedef says more than that of what it stands for.
    fn name(&self, id: u32, ty: Type<'_>) -> String {
        match self.btf.get(id) {
            Some(outer) if outer.kind == kind::TYPEDEF => self.btf.string(outer.name),
            _ => self.btf.string(ty.name),
        }
    }

    fn kind(&mut self, ty: Type<'_>, size: u32, name: &str, depth: u32) -> TypeKind {
        match ty.kind {
            kind::INT => number(ty, size, name),
            kind::FLOAT if matches!(size, 4 | 8) => TypeKind::Float,
            kind::ENUM | kind::ENUM64 if matches!(size, 1 | 2 | 4 | 8) => self.enumeration(ty),
            kind::ARRAY => self.array(ty, depth).unwrap_or(TypeKind::Bytes),
            kind::STRUCT if size == SPIN_LOCK_BYTES && name == "bpf_spin_lock" => TypeKind::SpinLock,
            kind::STRUCT => TypeKind::Struct(self.fields(ty.fields(), size, depth)),
            kind::UNION => TypeKind::Union(self.fields(ty.fields(), size, depth)),
            _ => TypeKind::Bytes,
        }
    }

    fn enumeration(&mut self, ty: Type<'_>) -> TypeKind {
        if !self.spend(ty.enumerators().len()) {
            return if ty.flag { TypeKind::Signed } else { TypeKind::Unsigned };
        }
        let names = ty.enumerators().map(|(name, value)| (self.btf.string(name), value)).collect();
        TypeKind::Enum { signed: ty.flag, names }
    }

    fn array(&mut self, ty: Type<'_>, depth: u32) -> Option<TypeKind> {
        let (element, len) = ty.array()?;
        Some(TypeKind::Array { element: self.read(element, depth + 1)?, len })
    }

    /// The fields that lie inside `size` bytes. Those without a size (Rust has markers) are left out.
    fn fields(&mut self, fields: impl Iterator<Item = Field>, size: u32, depth: u32) -> Vec<FieldDesc> {
        let mut out = Vec::new();
        for field in fields {
            if self.left == 0 {
                break;
            }
            let Some(ty) = self.read(field.ty, depth + 1) else { continue };
            let Some((offset, bits)) = place(&field, &ty) else { continue };
            if u64::from(offset) + u64::from(ty.size) <= u64::from(size) {
                out.push(FieldDesc { name: self.btf.string(field.name), offset, bits, ty });
            }
        }
        out
    }

    /// Rust's atomics and cells are structs around a number, which is what a reader wants to see.
    fn inside(&self, ty: Type<'_>, size: u32) -> Option<u32> {
        let name = self.btf.string(ty.name);
        if ty.kind != kind::STRUCT || !["Atomic", "UnsafeCell", "Cell"].iter().any(|n| name.starts_with(n)) {
            return None;
        }
        let mut sized =
            ty.fields().take(MAX_WRAPPED).filter(|f| self.btf.size_of(f.ty).is_some_and(|s| s > 0));
        let only = sized.next().filter(|_| sized.next().is_none())?;
        (self.btf.size_of(only.ty) == Some(size) && only.bit_offset == 0).then_some(only.ty)
    }
}

fn number(ty: Type<'_>, size: u32, name: &str) -> TypeKind {
    let Some((encoding, bits)) = ty.int() else { return TypeKind::Bytes };
    match encoding {
        _ if size.checked_mul(8) != Some(bits) || !matches!(size, 1 | 2 | 4 | 8 | 16) => TypeKind::Bytes,
        _ if encoding & BOOL != 0 => TypeKind::Bool,
        _ if size == 1 && (encoding & CHAR != 0 || name == "char") => TypeKind::Char,
        _ if encoding & SIGNED != 0 => TypeKind::Signed,
        _ => TypeKind::Unsigned,
    }
}

/// Where a field lies: the byte, and the bits of a bit field in the number there. `None` if the bits leave the number.
fn place(field: &Field, ty: &TypeDesc) -> Option<(u32, Option<BitField>)> {
    if field.bits == 0 {
        return Some((u32::try_from(field.bit_offset / 8).ok()?, None));
    }
    // As C lays them out: in a number of its own type, aligned to its size.
    let unit = 8 * u64::from(ty.size).clamp(1, 8);
    let (start, shift) = (field.bit_offset / unit * unit, field.bit_offset % unit);
    let fits = shift + u64::from(field.bits) <= unit;
    let bits = BitField { shift: shift as u8, width: field.bits };
    fits.then_some((u32::try_from(start / 8).ok()?, Some(bits)))
}
