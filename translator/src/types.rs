//! [`TypeDesc`]: what an object's BTF says of a map's keys and values, for tools that show them. Nothing is verified or
//! decided by it.

use std::sync::Arc;

/// A type: its name, its size, and what it is made of. Descriptions come from an untrusted object, but are bounded: at
/// most [`MAX_TYPE_NODES`] types, nested at most [`MAX_TYPE_DEPTH`] deep, and each lies inside the one around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeDesc {
    /// Name as in the source: of the typedef, if there is one, else of the struct or number; empty if it has none.
    pub name: String,
    /// Bytes, at least 1.
    pub size: u32,
    /// What it is made of.
    pub kind: TypeKind,
}

/// Most types that one description holds, counted as often as they are mentioned.
pub const MAX_TYPE_NODES: usize = 1024;
/// Types inside types.
pub const MAX_TYPE_DEPTH: u32 = 8;

/// What a type is made of. Numbers are little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeKind {
    /// An unsigned number of 1, 2, 4, 8 or 16 bytes.
    Unsigned,
    /// A signed number, in two's complement.
    Signed,
    /// 0 or 1, in one byte as a rule.
    Bool,
    /// A byte of text (`char`).
    Char,
    /// An IEEE 754 number of 4 or 8 bytes.
    Float,
    /// A number some values of which have names.
    Enum {
        /// Is it signed?
        signed: bool,
        /// Names and values, as declared; those of an unsigned one as the same 64 bits.
        names: Vec<(String, i64)>,
    },
    /// `len` elements, one after the other; `len` is at least 1.
    Array {
        /// An element.
        element: Arc<TypeDesc>,
        /// How many.
        len: u32,
    },
    /// Fields side by side. Global data is one too, whose fields are its variables.
    Struct(Vec<FieldDesc>),
    /// Fields that share their bytes.
    Union(Vec<FieldDesc>),
    /// A `struct bpf_spin_lock`; reads as 0.
    SpinLock,
    /// Bytes of which no more is known: pointers, types that are too deep, and what has no description.
    Bytes,
}

/// A field of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDesc {
    /// Name; empty for a nameless struct or union, whose fields are as good as fields of the one around it.
    pub name: String,
    /// Bytes from the start of the struct.
    pub offset: u32,
    /// Of a bit field: where it starts in the `ty.size` bytes at `offset`, and how many bits it has. Counted from the lowest bit.
    pub bits: Option<BitField>,
    /// Its type.
    pub ty: Arc<TypeDesc>,
}

/// Bits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// The lowest bit.
    pub shift: u8,
    /// How many; 1 to 64.
    pub width: u8,
}

impl TypeDesc {
    /// So many bytes of which no more is known.
    pub fn bytes(size: u32) -> TypeDesc {
        TypeDesc { name: String::new(), size, kind: TypeKind::Bytes }
    }

    /// The fields of a struct or union; none for others.
    pub fn fields(&self) -> &[FieldDesc] {
        match &self.kind {
            TypeKind::Struct(fields) | TypeKind::Union(fields) => fields,
            _ => &[],
        }
    }

    /// The field of that name, also of nameless structs and unions inside: its offset from the start of this type, and itself.
    pub fn field(&self, name: &str) -> Option<(u32, &FieldDesc)> {
        self.fields().iter().find_map(|f| match f.name.as_str() {
            "" => f.ty.field(name).map(|(at, inner)| (f.offset + at, inner)),
            own => (own == name).then_some((f.offset, f)),
        })
    }
}
