//! [`Btf`]: the type information of an object, as far as map definitions need it. Parsing checks that every
//! record lies inside the section, so that later reads of a record cannot fail; references between types are
//! checked when they are followed, with bounds on depth.

use super::{c_str, error_at, printable, u32_at};
use crate::error::{Error, ErrorKind, Stage};

/// Name of the section.
pub(super) const SECTION: &str = ".BTF";
pub(super) const MAGIC: u16 = 0xeb9f;
/// Typedefs, qualifiers and array dimensions that are followed from one type (as in libbpf).
const MAX_DEPTH: usize = 32;

/// Kinds of types, numbered as in the file.
pub(super) mod kind {
    pub(crate) const INT: u32 = 1;
    pub(crate) const PTR: u32 = 2;
    pub(crate) const ARRAY: u32 = 3;
    pub(crate) const STRUCT: u32 = 4;
    pub(crate) const UNION: u32 = 5;
    pub(crate) const ENUM: u32 = 6;
    pub(crate) const FWD: u32 = 7;
    pub(crate) const TYPEDEF: u32 = 8;
    pub(crate) const VOLATILE: u32 = 9;
    pub(crate) const CONST: u32 = 10;
    pub(crate) const RESTRICT: u32 = 11;
    pub(crate) const FUNC: u32 = 12;
    pub(crate) const FUNC_PROTO: u32 = 13;
    pub(crate) const VAR: u32 = 14;
    pub(crate) const DATASEC: u32 = 15;
    pub(crate) const FLOAT: u32 = 16;
    pub(crate) const DECL_TAG: u32 = 17;
    pub(crate) const TYPE_TAG: u32 = 18;
    pub(crate) const ENUM64: u32 = 19;
}

/// One type record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type<'a> {
    pub(super) name: u32,
    pub(super) kind: u32,
    /// Of a struct or union: offsets of members hold a width too, in the upper 8 bits. Of an enumeration: it is signed.
    pub(super) flag: bool,
    /// Size in bytes, or the id of another type, by kind.
    pub(super) size_or_type: u32,
    /// What follows the 12 bytes that all kinds share.
    tail: &'a [u8],
}

/// A member of a struct, or a variable of a section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) name: u32,
    pub(super) ty: u32,
    /// Bytes from the start of the struct or section.
    pub(super) offset: u32,
}

/// A member of a struct or union, to the bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: u32,
    pub(super) ty: u32,
    pub(super) bit_offset: u64,
    /// Width of a bit field; 0 for other members.
    pub(super) bits: u8,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Btf<'a> {
    /// Indexed by id less one; id 0 is `void`.
    types: Vec<Type<'a>>,
    strings: &'a [u8],
}

impl<'a> Btf<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Btf<'a>, Error> {
        let header = header(bytes, SECTION, 24)?;
        let area = |at: usize| {
            let (offset, len) = (u32_at(header.bytes, at), u32_at(header.bytes, at + 4));
            let part = offset.zip(len).and_then(|(offset, len)| header.area(offset, len));
            part.ok_or_else(|| malformed(SECTION, at as u64, "table outside the section"))
        };
        let (types, strings) = (area(8)?, area(16)?);
        let first = header.bytes.len() + u32_at(header.bytes, 8).unwrap_or_default() as usize;
        let mut btf = Btf { types: Vec::with_capacity(types.len() / 16), strings };
        let mut rest = types;
        while !rest.is_empty() {
            let at = (first + types.len() - rest.len()) as u64;
            let (ty, after) = Type::read(rest, at)?;
            btf.types.push(ty);
            rest = after;
        }
        Ok(btf)
    }

    /// The type of that id; `None` for `void` and ids that are not there.
    pub(super) fn get(&self, id: u32) -> Option<Type<'a>> {
        self.types.get((id as usize).checked_sub(1)?).copied()
    }

    /// The type behind typedefs, qualifiers and tags.
    pub(super) fn resolve(&self, mut id: u32) -> Option<Type<'a>> {
        for _ in 0..MAX_DEPTH {
            let ty = self.get(id)?;
            match ty.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = ty.size_or_type;
                }
                _ => return Some(ty),
            }
        }
        None
    }

    /// Bytes of a value of that type.
    pub(super) fn size_of(&self, mut id: u32) -> Option<u32> {
        let mut count: u32 = 1;
        for _ in 0..MAX_DEPTH {
            let ty = self.resolve(id)?;
            let size = match ty.kind {
                kind::ARRAY => {
                    let (element, len) = ty.array()?;
                    count = count.checked_mul(len)?;
                    id = element;
                    continue;
                }
                kind::PTR => 8,
                kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                    ty.size_or_type
                }
                _ => return None,
            };
            return count.checked_mul(size);
        }
        None
    }

    /// The string at that offset, fit to print; empty if it is not there.
    pub(super) fn string(&self, offset: u32) -> String {
        c_str(self.strings, offset as usize).map(printable).unwrap_or_default()
    }

    /// The string table.
    pub(super) fn strings(&self) -> &'a [u8] {
        self.strings
    }

    /// Variables of the data section of that name, as BTF lists them.
    pub(super) fn section_vars(&self, name: &str) -> impl Iterator<Item = Member> {
        let is_it = |ty: &&Type<'_>| {
            ty.kind == kind::DATASEC && c_str(self.strings, ty.name as usize) == Some(name.as_bytes())
        };
        let vars = self.types.iter().find(is_it).into_iter().flat_map(|section| section.triples());
        vars.filter_map(|[var, offset, _]| {
            let var = self.get(var).filter(|v| v.kind == kind::VAR)?;
            Some(Member { name: var.name, ty: var.size_or_type, offset })
        })
    }
}

impl<'a> Type<'a> {
    /// The record at the start of `bytes`, which stand at offset `at` of the section, and what follows it.
    fn read(bytes: &'a [u8], at: u64) -> Result<(Type<'a>, &'a [u8]), Error> {
        let early = || malformed(SECTION, at, "type record ends early");
        let word = |i| u32_at(bytes, i).ok_or_else(early);
        let (name, info, size_or_type) = (word(0)?, word(4)?, word(8)?);
        let (kind, vlen) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let tail = match kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => vlen * 12,
            kind::ENUM | kind::FUNC_PROTO => vlen * 8,
            kind::PTR | kind::FWD | kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT => 0,
            kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
            _ => {
                let text = format!("BTF kind {kind}; kinds 1 to 19 are known");
                return Err(error_at(Stage::Btf, ErrorKind::Unsupported, SECTION, at, text));
            }
        };
        let (tail, after) = bytes.get(12..).and_then(|b| b.split_at_checked(tail)).ok_or_else(early)?;
        Ok((Type { name, kind, flag: info >> 31 != 0, size_or_type, tail }, after))
    }

    /// Element type and length of an array.
    pub(super) fn array(&self) -> Option<(u32, u32)> {
        let [element, _, len] = self.triples().next().filter(|_| self.kind == kind::ARRAY)?;
        Some((element, len))
    }

    /// Members of a struct; none for other kinds.
    pub(super) fn members(&self) -> impl ExactSizeIterator<Item = Member> + use<'a> {
        let tail = if self.kind == kind::STRUCT { self.tail } else { &[] };
        let mask = if self.flag { 0xff_ffff } else { u32::MAX };
        Type { tail, ..*self }.triples().map(move |[name, ty, bits]| Member {
            name,
            ty,
            offset: (bits & mask) / 8,
        })
    }

    /// Members of a struct or union, to the bit; none for other kinds.
    pub(super) fn fields(&self) -> impl Iterator<Item = Field> + use<'a> {
        let tail = if matches!(self.kind, kind::STRUCT | kind::UNION) { self.tail } else { &[] };
        let flag = self.flag;
        Type { tail, ..*self }.triples().map(move |[name, ty, at]| {
            let (bit_offset, bits) = if flag { (at & 0xff_ffff, (at >> 24) as u8) } else { (at, 0) };
            Field { name, ty, bit_offset: bit_offset.into(), bits }
        })
    }

    /// Encoding and bits of an integer.
    pub(super) fn int(&self) -> Option<(u32, u32)> {
        let word = u32_at(self.tail, 0).filter(|_| self.kind == kind::INT)?;
        // An offset inside the integer is not written since bit fields have widths of their own.
        (word >> 16 & 0xff == 0).then_some((word >> 24 & 0xf, word & 0xff))
    }

    /// Names and values of an enumeration; none for other kinds.
    pub(super) fn enumerators(&self) -> impl ExactSizeIterator<Item = (u32, i64)> + use<'a> {
        let (kind, flag) = (self.kind, self.flag);
        let step = if kind == kind::ENUM64 { 12 } else { 8 };
        let tail = if matches!(kind, kind::ENUM | kind::ENUM64) { self.tail } else { &[] };
        tail.chunks_exact(step).map(move |record| {
            let word = |i: usize| u32_at(record, i * 4).unwrap_or_default();
            let value = match kind {
                kind::ENUM64 => (u64::from(word(2)) << 32 | u64::from(word(1))) as i64,
                _ if flag => i64::from(word(1) as i32),
                _ => i64::from(word(1)),
            };
            (word(0), value)
        })
    }

    /// The tail in records of three words.
    fn triples(&self) -> impl ExactSizeIterator<Item = [u32; 3]> + use<'a> {
        self.tail.chunks_exact(12).map(|record| {
            let word = |i: usize| u32_at(record, i * 4).unwrap_or_default();
            [word(0), word(1), word(2)]
        })
    }
}

/// The header that BTF and BTF.ext share.
pub(super) struct BtfHeader<'a> {
    /// The header's own bytes.
    pub(super) bytes: &'a [u8],
    /// What follows it; offsets in the header count from here.
    body: &'a [u8],
}

impl<'a> BtfHeader<'a> {
    /// A table of the body.
    pub(super) fn area(&self, offset: u32, len: u32) -> Option<&'a [u8]> {
        self.body.get(offset as usize..(offset as usize).checked_add(len as usize)?)
    }
}

/// Reads the header of a section of BTF; it has at least `min` bytes.
pub(super) fn header<'a>(bytes: &'a [u8], section: &str, min: usize) -> Result<BtfHeader<'a>, Error> {
    let [magic_low, magic_high, version, ..] = *bytes else {
        return Err(malformed(section, 0, "shorter than its header"));
    };
    if u16::from_le_bytes([magic_low, magic_high]) != MAGIC {
        return Err(malformed(section, 0, "wrong magic number"));
    }
    if version != 1 {
        let text = format!("BTF version {version}; only 1 is known");
        return Err(error_at(Stage::Btf, ErrorKind::Unsupported, section, 2, text));
    }
    let len = u32_at(bytes, 4).map_or(0, |len| len as usize);
    match bytes.split_at_checked(len) {
        Some((head, body)) if len >= min => Ok(BtfHeader { bytes: head, body }),
        _ => Err(malformed(section, 4, "header length makes no sense")),
    }
}

#[cold]
pub(super) fn malformed(section: &str, offset: u64, text: impl Into<String>) -> Error {
    error_at(Stage::Btf, ErrorKind::Malformed, section, offset, text)
}
