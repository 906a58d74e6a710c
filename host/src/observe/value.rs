//! [`show`]: bytes of a map as the type that BTF gives them, and [`read`]: the way back, from JSON as people write it.
//!
//! | type | shown as |
//! |---|---|
//! | numbers | a number; 16 bytes as `"hex:..."` |
//! | enums | the name of the value, or the number where it has none |
//! | `char` arrays | text, where the bytes are text up to a NUL, else `"hex:..."` |
//! | arrays, structs, unions | an array; an object in the order of the fields; an object of all views |
//! | spin locks | left out |
//! | what has no type | `"hex:..."`, in the order of memory |

use ringfence_translator::types::{BitField, FieldDesc, TypeDesc, TypeKind};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;
use std::fmt::{self, Write};

/// Starts text that stands for bytes.
const HEX: &str = "hex:";

/// A value in readable form. Serializes to JSON with the fields in their order.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text, the name of an enum's value, or bytes.
    Text(String),
    /// Elements of an array.
    List(Vec<Shown>),
    /// Fields of a struct.
    Fields(Vec<(String, Shown)>),
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Shown::Unsigned(n) => to.serialize_u64(*n),
            Shown::Signed(n) => to.serialize_i64(*n),
            Shown::Float(x) => to.serialize_f64(*x),
            Shown::Bool(b) => to.serialize_bool(*b),
            Shown::Text(text) => to.serialize_str(text),
            Shown::List(list) => {
                let mut seq = to.serialize_seq(Some(list.len()))?;
                list.iter().try_for_each(|v| seq.serialize_element(v))?;
                seq.end()
            }
            Shown::Fields(fields) => {
                let mut map = to.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(name, v)| map.serialize_entry(name, v))?;
                map.end()
            }
        }
    }
}

/// In one line, for tables: `{n: 7, name: abc}`.
impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Unsigned(n) => write!(f, "{n}"),
            Shown::Signed(n) => write!(f, "{n}"),
            Shown::Float(x) => write!(f, "{x}"),
            Shown::Bool(b) => write!(f, "{b}"),
            Shown::Text(text) => write!(f, "{}", text.escape_debug()),
            Shown::List(list) => joined(f, '[', ']', list, |f, v| write!(f, "{v}")),
            Shown::Fields(fields) => joined(f, '{', '}', fields, |f, (name, v)| write!(f, "{name}: {v}")),
        }
    }
}

fn joined<T>(
    f: &mut fmt::Formatter<'_>,
    open: char,
    close: char,
    items: &[T],
    mut one: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_char(open)?;
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        one(f, item)?;
    }
    f.write_char(close)
}

/// Bytes as text: `hex:0a1b`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(HEX.to_owned(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// The bytes that text written by [`hex`] stands for, with or without its prefix.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix(HEX).unwrap_or(text).as_bytes();
    let nibble = |b: u8| char::from(b).to_digit(16);
    let pair = |p: &[u8]| Some((nibble(*p.first()?)? << 4 | nibble(*p.get(1)?)?) as u8);
    digits.chunks(2).map(pair).collect()
}

/// Up to 8 bytes as a little-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn sign_extend(n: u64, bits: u32) -> i64 {
    let unused = 64 - bits.clamp(1, 64);
    ((n << unused) as i64) >> unused
}

/// `bytes` as a value of type `ty`; what is missing at the end counts as zero bytes.
pub fn show(bytes: &[u8], ty: &TypeDesc) -> Shown {
    let size = ty.size as usize;
    let padded;
    let bytes = match bytes.get(..size) {
        Some(exact) => exact,
        None => {
            padded = bytes.iter().copied().chain(std::iter::repeat(0)).take(size).collect::<Vec<u8>>();
            &padded
        }
    };
    match &ty.kind {
        TypeKind::Array { element, len } => show_array(bytes, element, *len),
        TypeKind::Struct(fields) | TypeKind::Union(fields) => {
            let mut shown = Vec::new();
            show_fields(bytes, fields, &mut shown);
            Shown::Fields(shown)
        }
        _ if size > 8 => Shown::Text(hex(bytes)),
        scalar => show_scalar(number(bytes), 8 * ty.size, scalar).unwrap_or_else(|| Shown::Text(hex(bytes))),
    }
}

fn show_array(bytes: &[u8], element: &TypeDesc, len: u32) -> Shown {
    if element.kind == TypeKind::Char {
        return Shown::Text(text_of(bytes).unwrap_or_else(|| hex(bytes)));
    }
    let size = element.size.max(1) as usize;
    Shown::List(bytes.chunks(size).take(len as usize).map(|b| show(b, element)).collect())
}

/// Text up to a NUL, if nothing but NULs follows it and it cannot be taken for bytes.
fn text_of(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at_checked(end)?;
    let text = std::str::from_utf8(text).ok()?;
    let plain = rest.iter().all(|b| *b == 0) && !text.chars().any(char::is_control) && !text.starts_with(HEX);
    plain.then(|| text.to_owned())
}

fn show_fields(bytes: &[u8], fields: &[FieldDesc], shown: &mut Vec<(String, Shown)>) {
    for field in fields {
        let inside = bytes.get(field.offset as usize..).unwrap_or(&[]);
        match (&field.ty.kind, field.bits) {
            (TypeKind::SpinLock, _) => {}
            (TypeKind::Struct(inner) | TypeKind::Union(inner), _) if field.name.is_empty() => {
                show_fields(inside, inner, shown);
            }
            (kind, Some(bits)) => {
                let word = number(inside.get(..field.ty.size.min(8) as usize).unwrap_or(inside));
                let n = word >> bits.shift.min(63) & mask(bits);
                let value = show_scalar(n, bits.width.into(), kind).unwrap_or(Shown::Unsigned(n));
                shown.push((field.name.clone(), value));
            }
            (_, None) => shown.push((field.name.clone(), show(inside, &field.ty))),
        }
    }
}

fn mask(bits: BitField) -> u64 {
    u64::MAX >> (64 - bits.width.clamp(1, 64))
}

fn show_scalar(n: u64, bits: u32, kind: &TypeKind) -> Option<Shown> {
    Some(match kind {
        TypeKind::Unsigned => Shown::Unsigned(n),
        TypeKind::Signed => Shown::Signed(sign_extend(n, bits)),
        TypeKind::Bool if n < 2 => Shown::Bool(n == 1),
        TypeKind::Bool => Shown::Unsigned(n),
        TypeKind::Char => match u8::try_from(n).ok().filter(u8::is_ascii_graphic) {
            Some(c) => Shown::Text(char::from(c).to_string()),
            None => Shown::Unsigned(n),
        },
        TypeKind::Float if bits == 32 => Shown::Float(f32::from_bits(n as u32).into()),
        TypeKind::Float if bits == 64 => Shown::Float(f64::from_bits(n)),
        TypeKind::Enum { signed, names } => {
            let value = if *signed { sign_extend(n, bits) } else { n as i64 };
            match names.iter().find(|(_, v)| *v == value) {
                Some((name, _)) => Shown::Text(name.clone()),
                None if *signed => Shown::Signed(value),
                None => Shown::Unsigned(n),
            }
        }
        TypeKind::SpinLock => Shown::Unsigned(0),
        _ => return None,
    })
}

/// What somebody wrote on a command line: JSON, or else plain text.
pub fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Bytes of a value of type `ty` that is written as `value`. Fields that `value` does not name are those of `before`; without it, they
/// must all be named.
///
/// # Errors
/// What does not fit, with the path of the field.
pub fn read(value: &Value, ty: &TypeDesc, before: Option<&[u8]>) -> Result<Vec<u8>, String> {
    let mut bytes = before.map_or_else(Vec::new, <[u8]>::to_vec);
    bytes.resize(ty.size as usize, 0);
    write_into(&mut bytes, value, ty, before.is_some()).map_err(|(path, why)| match path.as_str() {
        "" => why,
        path => format!("{}: {why}", path.trim_start_matches('.')),
    })?;
    Ok(bytes)
}

/// Path of the field, and what is wrong with it.
type Wrong = (String, String);

fn wrong<T>(why: impl Into<String>) -> Result<T, Wrong> {
    Err((String::new(), why.into()))
}

fn inside<T>(result: Result<T, Wrong>, step: impl fmt::Display) -> Result<T, Wrong> {
    result.map_err(|(path, why)| (format!("{step}{path}"), why))
}

fn write_into(bytes: &mut [u8], value: &Value, ty: &TypeDesc, partial: bool) -> Result<(), Wrong> {
    if let Some(raw) = value.as_str().filter(|t| t.starts_with(HEX)) {
        return write_raw(bytes, raw);
    }
    match (&ty.kind, value) {
        (TypeKind::Struct(fields), Value::Object(given)) => {
            write_fields(bytes, given, ty, partial)?;
            let absent = |f: &&FieldDesc| !given_somewhere(f, given);
            match fields.iter().find(absent) {
                Some(f) if !partial => wrong(format!("field {} is missing", field_name(f))),
                _ => Ok(()),
            }
        }
        // The views share their bytes: those that are given are written in order.
        (TypeKind::Union(_), Value::Object(given)) => write_fields(bytes, given, ty, true),
        (TypeKind::Struct(_) | TypeKind::Union(_), _) => {
            wrong(format!("an object of fields is wanted ({}), or \"{HEX}...\"", names(ty)))
        }
        (TypeKind::Array { element, .. }, Value::String(text)) if element.kind == TypeKind::Char => {
            write_text(bytes, text)
        }
        (TypeKind::Array { element, len }, Value::Array(given)) => write_array(bytes, given, element, *len),
        (TypeKind::Array { len, .. }, _) => wrong(format!("an array of {len} is wanted, or \"{HEX}...\"")),
        (TypeKind::SpinLock, _) => Ok(()),
        (kind, value) if (1..=8).contains(&ty.size) => {
            let n = scalar(value, 8 * ty.size, kind)?;
            bytes.iter_mut().zip(n.to_le_bytes()).for_each(|(to, from)| *to = from);
            Ok(())
        }
        _ => wrong(format!("{} bytes are wanted, as \"{HEX}...\"", ty.size)),
    }
}

fn write_raw(bytes: &mut [u8], text: &str) -> Result<(), Wrong> {
    match unhex(text) {
        Some(raw) if raw.len() == bytes.len() => {
            bytes.copy_from_slice(&raw);
            Ok(())
        }
        Some(raw) => wrong(format!("{} bytes were given, {} are wanted", raw.len(), bytes.len())),
        None => wrong(format!("{text:?} is not an even number of hexadecimal digits")),
    }
}

fn write_text(bytes: &mut [u8], text: &str) -> Result<(), Wrong> {
    if text.len() > bytes.len() {
        return wrong(format!("the text has {} bytes, there is room for {}", text.len(), bytes.len()));
    }
    let padded = text.bytes().chain(std::iter::repeat(0));
    bytes.iter_mut().zip(padded).for_each(|(to, from)| *to = from);
    Ok(())
}

fn write_array(bytes: &mut [u8], given: &[Value], element: &TypeDesc, len: u32) -> Result<(), Wrong> {
    if given.len() != len as usize {
        return wrong(format!("{} elements were given, {len} are wanted", given.len()));
    }
    let chunks = bytes.chunks_mut(element.size.max(1) as usize);
    for (i, (chunk, value)) in chunks.zip(given).enumerate() {
        inside(write_into(chunk, value, element, false), format_args!("[{i}]"))?;
    }
    Ok(())
}

type Given = serde_json::Map<String, Value>;

fn write_fields(bytes: &mut [u8], given: &Given, ty: &TypeDesc, partial: bool) -> Result<(), Wrong> {
    for (name, value) in given {
        let Some((offset, field)) = ty.field(name).filter(|_| !name.is_empty()) else {
            return wrong(format!("there is no field {name}; there are {}", names(ty)));
        };
        let (offset, size) = (offset as usize, field.ty.size as usize);
        let step = format_args!(".{name}").to_string();
        let Some(room) = bytes.get_mut(offset..offset + size) else {
            return inside(wrong("it lies outside its struct"), step);
        };
        let done = match field.bits {
            Some(bits) => write_bits(room, value, bits, &field.ty.kind),
            None => write_into(room, value, &field.ty, partial),
        };
        inside(done, step)?;
    }
    Ok(())
}

fn write_bits(room: &mut [u8], value: &Value, bits: BitField, kind: &TypeKind) -> Result<(), Wrong> {
    let n = scalar(value, bits.width.into(), kind)?;
    let shift = u32::from(bits.shift.min(63));
    let word = number(room) & !(mask(bits) << shift) | (n & mask(bits)) << shift;
    room.iter_mut().zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
    Ok(())
}

/// Is the field there, or one of a nameless struct inside it, or need it not be?
fn given_somewhere(field: &FieldDesc, given: &Given) -> bool {
    match &field.ty.kind {
        TypeKind::SpinLock => true,
        TypeKind::Struct(inner) if field.name.is_empty() => inner.iter().all(|f| given_somewhere(f, given)),
        TypeKind::Union(inner) if field.name.is_empty() => inner.iter().any(|f| given_somewhere(f, given)),
        _ => given.contains_key(&field.name),
    }
}

fn field_name(field: &FieldDesc) -> &str {
    match field.ty.fields().first() {
        Some(inner) if field.name.is_empty() => field_name(inner),
        _ => &field.name,
    }
}

fn names(ty: &TypeDesc) -> String {
    let mut all = Vec::new();
    collect_names(ty, &mut all);
    all.join(", ")
}

fn collect_names<'a>(ty: &'a TypeDesc, all: &mut Vec<&'a str>) {
    for field in ty.fields() {
        match (field.name.as_str(), &field.ty.kind) {
            (_, TypeKind::SpinLock) => {}
            ("", _) => collect_names(&field.ty, all),
            (name, _) => all.push(name),
        }
    }
}

/// A number of `bits` bits as `value` writes it.
fn scalar(value: &Value, bits: u32, kind: &TypeKind) -> Result<u64, Wrong> {
    if let (TypeKind::Enum { names, .. }, Some(text)) = (kind, value.as_str()) {
        if let Some((_, n)) = names.iter().find(|(name, _)| name == text) {
            return Ok(*n as u64);
        }
        if whole(text).is_none() {
            let known: Vec<_> = names.iter().map(|(name, _)| name.as_str()).collect();
            return wrong(format!("{text:?} is none of {}", known.join(", ")));
        }
    }
    match kind {
        TypeKind::Float => float(value, bits),
        TypeKind::Char if value.as_str().is_some_and(|t| t.len() == 1 && whole(t).is_none()) => {
            Ok(value.as_str().and_then(|t| t.bytes().next()).map_or(0, u64::from))
        }
        _ => integer(value, bits),
    }
}

fn integer(value: &Value, bits: u32) -> Result<u64, Wrong> {
    let n = match value {
        Value::Bool(b) => Some(i128::from(*b)),
        Value::Number(n) => n.as_u64().map(i128::from).or(n.as_i64().map(i128::from)),
        Value::String(text) => whole(text),
        _ => None,
    };
    let Some(n) = n else { return wrong(format!("{value} is no whole number")) };
    let (low, high) = (-(1i128 << (bits - 1)), (1i128 << bits) - 1);
    if n < low || n > high {
        return wrong(format!("{n} does not fit into {bits} bits"));
    }
    Ok(n as u64)
}

/// `4096`, `-1`, `0x1f`, `1_000`.
fn whole(text: &str) -> Option<i128> {
    let plain: String = text.trim().chars().filter(|c| *c != '_').collect();
    let (negative, digits) = plain.strip_prefix('-').map_or((false, plain.as_str()), |rest| (true, rest));
    let n = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(if negative { -i128::from(n) } else { i128::from(n) })
}

fn float(value: &Value, bits: u32) -> Result<u64, Wrong> {
    let x = value.as_f64().or_else(|| value.as_str().and_then(|t| t.trim().parse().ok()));
    match (x, bits) {
        (Some(x), 32) => Ok(u64::from((x as f32).to_bits())),
        (Some(x), 64) => Ok(x.to_bits()),
        _ => wrong(format!("{value} is no number")),
    }
}

#[cfg(test)]
mod tests;
