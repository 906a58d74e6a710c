//! [`Request`] and [`Response`]: what a tool asks of a process, and what it answers. JSON; bytes are `hex:` text in the order of
//! memory. A process answers with raw bytes and with what BTF says of them; making values readable is the tool's work.

use super::super::value::{hex, unhex};
use ringfence_translator::types::{BitField, FieldDesc, MAX_TYPE_NODES, TypeDesc, TypeKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;

/// Bytes of a key or value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        unhex(&text).map(Bytes).ok_or_else(|| serde::de::Error::custom("no hexadecimal digits"))
    }
}

/// What a tool asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The maps, from that number on.
    Maps {
        /// Lowest number.
        from: u64,
    },
    /// Entries, from that place on.
    Dump {
        /// Number of the map.
        map: u64,
        /// Place: 0, or what the answer before said.
        from: u32,
    },
    /// The value of a key.
    Get {
        /// Number of the map.
        map: u64,
        /// The key.
        key: Bytes,
    },
    /// Sets the value of a key.
    Set {
        /// Number of the map.
        map: u64,
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
        /// `BPF_ANY` (0), `BPF_NOEXIST` (1) or `BPF_EXIST` (2).
        flags: u64,
        /// For per-CPU maps the slot; all of them if there is none.
        slot: Option<u32>,
    },
    /// Removes a key.
    Delete {
        /// Number of the map.
        map: u64,
        /// The key.
        key: Bytes,
    },
    /// Takes records from a ring buffer.
    Drain {
        /// Number of the map.
        map: u64,
    },
}

/// What a process answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Response {
    /// Maps, by number.
    Maps {
        /// Them.
        maps: Vec<MapInfo>,
        /// Where to go on, if there are more.
        next: Option<u64>,
    },
    /// Entries, by place.
    Entries {
        /// Keys, each with its value or, in per-CPU maps, its values.
        entries: Vec<(Bytes, Vec<Bytes>)>,
        /// Where to go on, if there are more.
        next: Option<u32>,
    },
    /// The value or, in per-CPU maps, the values.
    Values {
        /// Them.
        values: Vec<Bytes>,
    },
    /// Records of a ring buffer, the oldest first.
    Records {
        /// Them.
        records: Vec<Bytes>,
        /// There are more.
        more: bool,
        /// Records that found no room so far.
        dropped: u64,
    },
    /// It is done.
    Done,
    /// It cannot be done.
    Refused {
        /// The kernel's name for the error, where it has one.
        errno: Option<String>,
        /// Why, and what to do.
        why: String,
    },
}

impl Response {
    pub(crate) fn refused(errno: Option<&str>, why: impl Into<String>) -> Response {
        Response::Refused { errno: errno.map(str::to_owned), why: why.into() }
    }
}

/// A map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapInfo {
    /// Number in the process.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Kind, as [`MapKind::name`](ringfence_translator::MapKind::name).
    pub kind: String,
    /// Who shares it.
    pub scope: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Entries that it has room for; for ring buffers bytes.
    pub max_entries: u32,
    /// `map_flags` as declared.
    pub flags: u32,
    /// Entries in use; for ring buffers bytes.
    pub entries: u32,
    /// Values of a key: more than one in per-CPU maps.
    pub slots: u32,
    /// Bytes of memory.
    pub bytes: u64,
    /// Records that found no room.
    pub dropped: u64,
    /// Policies cannot write it.
    pub read_only: bool,
    /// What BTF says of a key.
    pub key_type: Option<Type>,
    /// What BTF says of a value.
    pub value_type: Option<Type>,
}

impl MapInfo {
    /// The type of a key: what BTF says, if that fits, or else a number or bytes.
    pub fn key_desc(&self) -> TypeDesc {
        described(self.key_type.as_ref(), self.key_size)
    }

    /// The type of a value.
    pub fn value_desc(&self) -> TypeDesc {
        described(self.value_type.as_ref(), self.value_size)
    }

    /// The type of a record of `len` bytes: the ring buffer's value type, if the record has its size.
    pub fn record_desc(&self, len: usize) -> TypeDesc {
        record_type(self.value_type.as_ref().and_then(Type::to_desc).as_ref(), len)
    }
}

/// The type of a ring buffer's record of `len` bytes, if the declared one has its size.
pub(crate) fn record_type(declared: Option<&TypeDesc>, len: usize) -> TypeDesc {
    let told = declared.filter(|d| d.size as usize == len).cloned();
    told.unwrap_or_else(|| TypeDesc::bytes(len as u32))
}

fn described(given: Option<&Type>, size: u32) -> TypeDesc {
    let told = given.and_then(Type::to_desc).filter(|d| d.size == size);
    told.unwrap_or_else(|| match size {
        1 | 2 | 4 | 8 => TypeDesc { name: String::new(), size, kind: TypeKind::Unsigned },
        _ => TypeDesc::bytes(size),
    })
}

/// A [`TypeDesc`] on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Type {
    #[serde(rename = "n", default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(rename = "s")]
    size: u32,
    #[serde(rename = "k")]
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Unsigned,
    Signed,
    Bool,
    Char,
    Float,
    Enum(bool, Vec<(String, i64)>),
    Array(Box<Type>, u32),
    Struct(Vec<Field>),
    Union(Vec<Field>),
    SpinLock,
    Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Field {
    #[serde(rename = "n", default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(rename = "o")]
    offset: u32,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    bits: Option<(u8, u8)>,
    #[serde(rename = "t")]
    ty: Type,
}

impl From<&TypeDesc> for Type {
    fn from(desc: &TypeDesc) -> Type {
        let fields = |fields: &[FieldDesc]| fields.iter().map(Field::from).collect();
        let kind = match &desc.kind {
            TypeKind::Unsigned => Kind::Unsigned,
            TypeKind::Signed => Kind::Signed,
            TypeKind::Bool => Kind::Bool,
            TypeKind::Char => Kind::Char,
            TypeKind::Float => Kind::Float,
            TypeKind::Enum { signed, names } => Kind::Enum(*signed, names.clone()),
            TypeKind::Array { element, len } => Kind::Array(Box::new(Type::from(&**element)), *len),
            TypeKind::Struct(inner) => Kind::Struct(fields(inner)),
            TypeKind::Union(inner) => Kind::Union(fields(inner)),
            TypeKind::SpinLock => Kind::SpinLock,
            _ => Kind::Bytes,
        };
        Type { name: desc.name.clone(), size: desc.size, kind }
    }
}

impl From<&FieldDesc> for Field {
    fn from(field: &FieldDesc) -> Field {
        let bits = field.bits.map(|b| (b.shift, b.width));
        Field { name: field.name.clone(), offset: field.offset, bits, ty: Type::from(&*field.ty) }
    }
}

impl Type {
    /// Back again; `None` if it is larger than any that a process sends. (serde_json bounds how deep it is.)
    pub fn to_desc(&self) -> Option<TypeDesc> {
        self.rebuild(&mut 0)
    }

    fn rebuild(&self, nodes: &mut usize) -> Option<TypeDesc> {
        *nodes += 1;
        if *nodes > MAX_TYPE_NODES {
            return None;
        }
        let mut fields = |fields: &[Field]| {
            let one = |f: &Field| {
                let bits = f.bits.map(|(shift, width)| BitField { shift, width });
                let ty = Arc::new(f.ty.rebuild(nodes)?);
                Some(FieldDesc { name: f.name.clone(), offset: f.offset, bits, ty })
            };
            fields.iter().map(one).collect::<Option<Vec<_>>>()
        };
        let kind = match &self.kind {
            Kind::Unsigned => TypeKind::Unsigned,
            Kind::Signed => TypeKind::Signed,
            Kind::Bool => TypeKind::Bool,
            Kind::Char => TypeKind::Char,
            Kind::Float => TypeKind::Float,
            Kind::Enum(signed, names) => TypeKind::Enum { signed: *signed, names: names.clone() },
            Kind::Struct(inner) => TypeKind::Struct(fields(inner)?),
            Kind::Union(inner) => TypeKind::Union(fields(inner)?),
            Kind::Array(element, len) => {
                TypeKind::Array { element: Arc::new(element.rebuild(nodes)?), len: *len }
            }
            Kind::SpinLock => TypeKind::SpinLock,
            Kind::Bytes => TypeKind::Bytes,
        };
        Some(TypeDesc { name: self.name.clone(), size: self.size, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_written() {
        let requests = [
            Request::Maps { from: 3 },
            Request::Dump { map: 1, from: 0 },
            Request::Set { map: 1, key: Bytes(vec![0, 255]), value: Bytes(vec![]), flags: 2, slot: Some(1) },
        ];
        for request in requests {
            let text = serde_json::to_vec(&request).unwrap();
            assert_eq!(serde_json::from_slice::<Request>(&text).unwrap(), request);
        }
        let text = serde_json::to_string(&Request::Get { map: 2, key: Bytes(vec![1, 2]) }).unwrap();
        assert_eq!(text, r#"{"op":"get","map":2,"key":"hex:0102"}"#);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "null",
            "{\"op\":\"exec\"}",
            "{\"op\":\"get\",\"map\":-1,\"key\":\"hex:\"}",
            "{\"op\":\"get\",\"map\":1,\"key\":\"hex:0\"}",
            "{\"op\":\"get\",\"map\":1,\"key\":\"hex:zz\"}",
            "{\"op\":\"maps\",\"from\":0,\"and\":1}",
        ] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_slice::<Request>("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn types_survive_the_way() {
        let number = |size| Arc::new(TypeDesc { name: "n".into(), size, kind: TypeKind::Signed });
        let names = vec![("A".to_owned(), -1)];
        let field = |name: &str, offset, kind, size| FieldDesc {
            name: name.into(),
            offset,
            bits: Some(BitField { shift: 3, width: 5 }),
            ty: Arc::new(TypeDesc { name: String::new(), size, kind }),
        };
        let desc = TypeDesc {
            name: "record".into(),
            size: 24,
            kind: TypeKind::Struct(vec![
                field("a", 0, TypeKind::Enum { signed: true, names }, 4),
                field("b", 8, TypeKind::Array { element: number(4), len: 2 }, 8),
                field("", 16, TypeKind::Union(vec![field("c", 0, TypeKind::Bytes, 8)]), 8),
            ]),
        };
        let text = serde_json::to_string(&Type::from(&desc)).unwrap();
        assert_eq!(serde_json::from_str::<Type>(&text).unwrap().to_desc(), Some(desc));
    }

    #[test]
    fn a_type_that_does_not_fit_gives_bytes() {
        let info = MapInfo { key_size: 4, value_size: 12, ..MapInfo::default() };
        assert_eq!(info.key_desc().kind, TypeKind::Unsigned);
        assert_eq!(info.value_desc(), TypeDesc::bytes(12));
        let wrong = Some(Type { name: String::new(), size: 8, kind: Kind::Unsigned });
        assert_eq!(MapInfo { value_type: wrong, ..info }.value_desc(), TypeDesc::bytes(12));
    }
}
