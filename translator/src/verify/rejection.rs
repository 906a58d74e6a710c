//! [`Rejection`]: a refusal by the verifier, with its place, reason and advice.

use crate::isa::{Pc, Reg};
use crate::program::SourceLine;
use crate::verify::Stats;
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Kind of a refusal, for programs and tests to match on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum RejectKind { $($(#[$doc])* $variant,)* }

        impl RejectKind {
            /// The stable name, in kebab case, as `ringfence check` prints it.
            pub const fn name(self) -> &'static str {
                match self { $(RejectKind::$variant => $name,)* }
            }
            /// All kinds.
            pub const ALL: &[RejectKind] = &[$(RejectKind::$variant,)*];
        }
    };
}

kinds! {
    /// A register is read before anything was written to it.
    UninitRegister = "uninit-register",
    /// Stack bytes are read before anything was written to them.
    UninitStack = "uninit-stack",
    /// Access outside the 512 bytes of a frame.
    StackOob = "stack-oob",
    /// Access outside the context.
    CtxOob = "ctx-oob",
    /// Write to an input field of the context, or to padding.
    CtxWrite = "ctx-write",
    /// Read of padding, across fields, or misaligned in a field.
    CtxField = "ctx-field",
    /// Access outside a map's value.
    MapOob = "map-oob",
    /// Write to a read-only map.
    ReadOnlyMap = "read-only-map",
    /// Access through a pointer that may be null.
    NullDeref = "null-deref",
    /// Access through something that is no pointer to memory.
    NotPointer = "not-pointer",
    /// Access at an address that is not a multiple of its size where that is needed (atomics, pointers on the stack).
    Misaligned = "misaligned",
    /// Arithmetic on a pointer that is not allowed.
    PointerArith = "pointer-arith",
    /// A pointer used as a number where it would leak: stored to a map or the context, or returned.
    PointerLeak = "pointer-leak",
    /// Comparison of pointers that means nothing.
    PointerCompare = "pointer-compare",
    /// Write to r10.
    FramePointer = "frame-pointer",
    /// A helper that this hook does not offer.
    UnknownHelper = "unknown-helper",
    /// An argument of a helper is of the wrong type.
    HelperArg = "helper-arg",
    /// A ring-buffer record that is not given back on some path, or given back twice, or not by its start.
    Reference = "reference",
    /// A spin lock that is still held, is not the one that is held, or whose bytes are touched.
    SpinLock = "spin-lock",
    /// A callback that does not keep to what its helper wants of it.
    Callback = "callback",
    /// The frames of nested calls take more than 512 bytes together.
    StackDepth = "stack-depth",
    /// A loop that may never end.
    UnboundedLoop = "unbounded-loop",
    /// The instruction budget is used up.
    Budget = "budget",
    /// Calls nest deeper than eight frames, or recurse.
    CallDepth = "call-depth",
    /// Execution can run past the end of a function.
    FallsThrough = "falls-through",
    /// r0 at exit is not what the hook wants.
    BadReturn = "bad-return",
    /// A feature that is not offered (callbacks, ...).
    Unsupported = "unsupported",
    /// The verifier contradicts itself: its second pass could not re-prove what the first found. A bug, please report it.
    Internal = "internal",
}

impl fmt::Display for RejectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a program was refused. `Display` is one line:
/// `reject[stack-oob] tune@12 (a.bpf.c:31): 8-byte read at r10+r3, r3 in [-520,-8], must be in [-512,-8]`.
#[derive(Clone, Debug)]
pub struct Rejection(Box<Inner>);

#[derive(Clone, Debug)]
pub(crate) struct Inner {
    pub(crate) kind: RejectKind,
    pub(crate) func: String,
    pub(crate) pc: Pc,
    pub(crate) source: Option<SourceLine>,
    pub(crate) reg: Option<Reg>,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) stats: Stats,
}

impl Rejection {
    #[cold]
    pub(crate) fn new(inner: Inner) -> Rejection {
        Rejection(Box::new(inner))
    }
    /// The kind.
    pub fn kind(&self) -> RejectKind {
        self.0.kind
    }
    /// Function that holds the instruction.
    pub fn func(&self) -> &str {
        &self.0.func
    }
    /// The instruction, in slots from the program's start.
    pub fn pc(&self) -> Pc {
        self.0.pc
    }
    /// The source line, where the object has line info.
    pub fn source(&self) -> Option<&SourceLine> {
        self.0.source.as_ref()
    }
    /// The register at fault, if one is.
    pub fn reg(&self) -> Option<Reg> {
        self.0.reg
    }
    /// What was found and what was needed, without place and kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// What to change.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
    /// Work done until the refusal.
    pub fn stats(&self) -> Stats {
        self.0.stats
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reject[{}] {}@{}", self.0.kind, self.0.func, self.0.pc)?;
        if let Some(s) = &self.0.source {
            write!(f, " ({}:{})", s.file, s.line)?;
        }
        write!(f, ": {}", self.0.message)
    }
}

impl std::error::Error for Rejection {}
