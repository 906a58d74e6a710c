//! [`Error`]: why bytes are no program. A refusal by the verifier is a [`Rejection`](crate::verify::Rejection).

use crate::isa::Pc;
use std::fmt;

/// Stage that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Reading the ELF file.
    Elf,
    /// Reading BTF or BTF.ext.
    Btf,
    /// A map definition.
    Map,
    /// A relocation, or joining functions into a program.
    Link,
    /// Decoding instructions.
    Decode,
    /// Emitting Wasm.
    Translate,
}

/// Kind of failure, for programs to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Not an ELF file for eBPF (wrong magic, class, machine or type).
    NotEbpf,
    /// Big-endian eBPF.
    BigEndian,
    /// The file ends early, or a table points outside it.
    Malformed,
    /// More than [`limits`](crate::limits) allow.
    TooLarge,
    /// A relocation type, section or feature that is not supported.
    Unsupported,
    /// A symbol, function or section that is not there.
    NotFound,
    /// An opcode that RFC 9669 does not define, or a non-zero unused field.
    BadInsn,
    /// A jump or call outside its function or into the middle of an instruction.
    BadJump,
    /// A map definition that makes no sense.
    BadMap,
}

/// Where it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum At {
    /// The file as a whole.
    File,
    /// A byte offset in a section.
    Section {
        /// Name of the section.
        name: String,
        /// Bytes from its start.
        offset: u64,
    },
    /// A slot of a function.
    Insn {
        /// Name of the function.
        func: String,
        /// Slot from the program's start.
        pc: Pc,
    },
    /// A map.
    Map(String),
}

/// An error of the loader, decoder, linker or translator. One line; says what, where and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    stage: Stage,
    kind: ErrorKind,
    at: At,
    message: String,
}

impl Error {
    #[cold]
    pub(crate) fn new(stage: Stage, kind: ErrorKind, at: At, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { stage, kind, at, message: message.into() }))
    }
    /// The stage.
    pub fn stage(&self) -> Stage {
        self.0.stage
    }
    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The place.
    pub fn at(&self) -> &At {
        &self.0.at
    }
    /// The text without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::File => f.write_str("object"),
            At::Section { name, offset } => write!(f, "section {name}+{offset:#x}"),
            At::Insn { func, pc } => write!(f, "{func}@{pc}"),
            At::Map(name) => write!(f, "map {name}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.at, self.0.message)
    }
}

impl std::error::Error for Error {}
