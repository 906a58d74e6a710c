//! From bytes to a [`Program`](crate::Program): [`Object`] is a parsed relocatable ELF file as clang, bpf-linker
//! and aya write it, and lists a [`ProgramSpec`] per entry point.
//!
//! The stages, each on what the one before it checked:
//! - `image`: sections, symbols, relocations, copied out of the file and bounds-checked;
//! - `funcs`: where functions start and end;
//! - `btf`, `lines`: type information and source lines;
//! - `maps`: map definitions and global data; `lock`, `types`: what BTF says of their values;
//! - `reloc`: one entry point with all that it calls, relocated.
//!
//! Whatever the bytes, parsing takes time linear in the file (bar sorting), allocates no more than a small
//! multiple of it, and ends in an object or an [`Error`].

mod btf;
mod funcs;
mod image;
mod lines;
mod lock;
mod maps;
mod object;
mod reloc;
mod types;

pub use object::{Object, ProgramSpec};

use crate::error::{At, Error, ErrorKind, Stage};
use crate::limits::MAX_NAME_BYTES;

/// An error at a byte of a section.
#[cold]
fn error_at(stage: Stage, kind: ErrorKind, section: &str, offset: u64, message: impl Into<String>) -> Error {
    Error::new(stage, kind, At::Section { name: section.to_owned(), offset }, message)
}

/// The bytes of the NUL-terminated string at `offset`; `None` if it starts outside the table, has no end, or
/// is longer than [`MAX_NAME_BYTES`] (so that overlapping strings cost no quadratic time).
fn c_str(table: &[u8], offset: usize) -> Option<&[u8]> {
    let tail = table.get(offset..)?;
    let window = tail.get(..=MAX_NAME_BYTES).unwrap_or(tail);
    let end = window.iter().position(|b| *b == 0)?;
    window.get(..end)
}

/// Text of an untrusted object, fit to print: no invalid UTF-8 and no control characters.
fn printable(bytes: &[u8]) -> String {
    let clean = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    String::from_utf8_lossy(bytes).chars().map(clean).collect()
}

/// The little-endian word at `offset`.
fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let word = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}
