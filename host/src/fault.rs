//! [`Fault`]: why one call of a policy gave no decision. A fault never reaches NCCL: the decision so far stands,
//! the fault is counted, and the instance stays usable.

use ringfence_translator::SourceLine;
use ringfence_translator::isa::Pc;
use std::fmt;

/// Why a call ended without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The policy used up its fuel. All ranks run out at the same instruction.
    OutOfFuel,
    /// The sandbox stopped the policy. For a verified program this is the second line of defence.
    Trap(Trap),
    /// The host could not make the call (for example a buffer that is larger than the context area).
    Host(&'static str),
}

/// A trap of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// What the sandbox objected to.
    pub code: TrapCode,
    /// The instruction that trapped.
    pub place: Option<Box<Place>>,
}

/// An instruction of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the function.
    pub func: String,
    /// Slot from the program's start.
    pub pc: Pc,
    /// Line of the source, where the object has line info.
    pub line: Option<SourceLine>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.func, self.pc)?;
        match &self.line {
            Some(l) => write!(f, " ({}:{})", l.file, l.line),
            None => Ok(()),
        }
    }
}

/// Reason of a [`Trap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrapCode {
    /// Access outside the private memory or outside a map's memory.
    OutOfBounds,
    /// Atomic access at an address that is not a multiple of its size.
    Misaligned,
    /// The machine stack that Wasm code may use is exhausted.
    StackOverflow,
    /// An `unreachable`: a pointer whose tag names no memory, or code that the verifier proved dead.
    Unreachable,
    /// Any other reason.
    Other,
}

impl TrapCode {
    /// The stable name, in kebab case.
    pub const fn name(self) -> &'static str {
        match self {
            TrapCode::OutOfBounds => "out-of-bounds",
            TrapCode::Misaligned => "misaligned",
            TrapCode::StackOverflow => "stack-overflow",
            TrapCode::Unreachable => "unreachable",
            TrapCode::Other => "other",
        }
    }

    pub(crate) fn from_wasmtime(trap: wasmtime::Trap) -> TrapCode {
        use wasmtime::Trap as W;
        match trap {
            W::MemoryOutOfBounds | W::TableOutOfBounds => TrapCode::OutOfBounds,
            W::HeapMisaligned => TrapCode::Misaligned,
            W::StackOverflow => TrapCode::StackOverflow,
            W::UnreachableCodeReached => TrapCode::Unreachable,
            _ => TrapCode::Other,
        }
    }
}

impl Fault {
    /// The stable name of the kind, in kebab case: `out-of-fuel`, `trap` or `host`.
    pub const fn name(&self) -> &'static str {
        match self {
            Fault::OutOfFuel => "out-of-fuel",
            Fault::Trap(_) => "trap",
            Fault::Host(_) => "host",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::OutOfFuel => f.write_str("out of fuel"),
            Fault::Host(why) => write!(f, "host: {why}"),
            Fault::Trap(t) => {
                write!(f, "trap: {}", t.code.name())?;
                t.place.as_ref().map_or(Ok(()), |place| write!(f, " at {place}"))
            }
        }
    }
}

impl std::error::Error for Fault {}
