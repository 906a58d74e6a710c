//! [`Error`]: why the host cannot do something off the decision path. What goes wrong *during* a decision is a
//! [`Fault`](crate::fault::Fault), which is small and never carries text that must be allocated.

use std::fmt;

/// Kind of an [`Error`], for programs and tests to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The Wasm engine could not be made.
    Engine,
    /// A module could not be compiled to machine code (also: memory may not be made executable here).
    Compile,
    /// A module is not what the layout of `ringfence_translator::wasm::layout` demands.
    Module,
    /// A module could not be instantiated.
    Instantiate,
    /// A map has the name of another one but not its shape.
    MapShape,
    /// A map is larger than allowed, or all maps together are.
    MapLimit,
    /// A map definition that the host cannot serve.
    BadMap,
    /// The bytes are no eBPF object.
    Object,
    /// The object holds no program for the hook that was asked for.
    NoProgram,
}

/// An error of the host, one line of text with its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
}

/// Result of the host's fallible operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of that kind; `message` starts in lower case and says what, where and what to do.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into() }))
    }
    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The text.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}
