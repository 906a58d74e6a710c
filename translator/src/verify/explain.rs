//! [`Refusal`]: what an instruction did wrong, before place and program are known; hints for common mistakes.

use super::domain::Scalar;
use super::rejection::{Inner, RejectKind, Rejection};
use super::value::{Home, Value};
use super::{Machine, Stats};
use crate::isa::{Pc, Reg};

/// Why an instruction is refused.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: RejectKind,
    reg: Option<Reg>,
    message: String,
    hint: Option<&'static str>,
}

impl Refusal {
    #[cold]
    pub(crate) fn new(kind: RejectKind, reg: Option<Reg>, message: impl Into<String>) -> Box<Refusal> {
        Box::new(Refusal { kind, reg, message: message.into(), hint: hint_for(kind) })
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Says before the message what it is about.
    #[cold]
    pub(crate) fn within(mut self: Box<Refusal>, what: impl std::fmt::Display) -> Box<Refusal> {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// Result of a duty.
pub(crate) type Duty<T = ()> = Result<T, Box<Refusal>>;

/// A refusal without register or hint.
#[cold]
pub(crate) fn refuse<T>(kind: RejectKind, message: impl Into<String>) -> Duty<T> {
    Err(Refusal::new(kind, None, message))
}

/// A refusal that a register is to blame for.
#[cold]
pub(crate) fn refuse_reg<T>(kind: RejectKind, reg: Reg, message: impl Into<String>) -> Duty<T> {
    Err(Refusal::new(kind, Some(reg), message))
}

/// Replaces the hint of a refusal by a better one.
pub(crate) fn advise<T>(duty: Duty<T>, hint: &'static str) -> Duty<T> {
    duty.map_err(|mut r| {
        r.hint = Some(hint);
        r
    })
}

pub(crate) const HINT_WIDTH: &str =
    "use the field's own type: read inside one element at its natural alignment, write the whole element";

/// Advice that fits the kind, where the kind alone tells the usual mistake.
fn hint_for(kind: RejectKind) -> Option<&'static str> {
    use RejectKind as K;
    Some(match kind {
        K::UninitRegister => {
            "set the register on every path that leads here; a call leaves r1 to r5 undefined"
        }
        K::UninitStack => {
            "initialise the variable, padding included, on every path (struct key k = {}; or memset)"
        }
        K::StackOob => {
            "a frame has 512 bytes below r10; bound the index by a compare or a mask before this access"
        }
        K::CtxOob => "the context of this hook is smaller; is the program written for another hook?",
        K::CtxWrite => "inputs are read-only; write to the decision fields only, each with its full width",
        K::CtxField => HINT_WIDTH,
        K::MapOob => "bound the index before the access: if (i >= N) return 0; or i &= N - 1",
        K::ReadOnlyMap => "drop const (or BPF_F_RDONLY_PROG) if the policy has to write this data",
        K::NullDeref => "check the result of the look-up first: if (!p) return 0;",
        K::PointerArith => "only adding or subtracting a bounded 64-bit number is allowed; bound it before",
        K::PointerLeak => "store or return the data that the pointer points to, not the pointer",
        K::PointerCompare => "compare a pointer with 0, or with a pointer into the same object, in 64 bits",
        K::FramePointer => "copy r10 to another register and change that",
        K::UnboundedLoop => {
            "give the loop a constant upper bound that the counter must reach: for (int i = 0; i < 64 && i < n; i++)"
        }
        K::Budget => "make the program smaller, or its loops shorter",
        K::CallDepth => "calls may nest eight deep and may not recurse",
        K::FallsThrough => "end the function with exit or a jump",
        K::UnknownHelper => {
            "call one of those on offer; helpers of the kernel that a hook has no use for are not there"
        }
        K::NotPointer => "only memory behind the context, the stack or a map value may be read or written",
        K::HelperArg => "look at the helper's signature: map, key, value, flags",
        K::Misaligned => "align the variable to its size",
        K::BadReturn => {
            "a frame's stack is gone after return; return a number, or let the caller pass a buffer"
        }
        K::Reference => {
            "on every path, call ringbuf_submit or ringbuf_discard once, with the pointer that reserve gave"
        }
        K::SpinLock => {
            "unlock on every path before the function ends; between lock and unlock only plain code is allowed"
        }
        K::Callback => "a callback returns 0 to go on or 1 to stop, and gives back what it took",
        K::StackDepth => "use less stack in the functions of this call chain, or make them inline",
        K::Unsupported | K::Internal => return None,
    })
}

/// A program that ends, but may take too long to.
#[cold]
pub(super) fn too_long(bound: &super::bound::Bound, budget: u64) -> (Box<Refusal>, Pc) {
    let most = format!("a run may execute {} instructions, more than the {budget} allowed", bound.work.insns);
    let (kind, pc, why) = match bound.busiest {
        Some((pc, laps)) => {
            (RejectKind::UnboundedLoop, pc, format!("this loop may go round {laps} times, and {most}"))
        }
        None => (RejectKind::Budget, Pc(0), most),
    };
    (Refusal::new(kind, None, why), pc)
}

/// `8` or `[-520, -8]`.
pub(crate) fn span(s: Scalar) -> String {
    match s.as_const() {
        Some(x) => (x as i64).to_string(),
        None => format!("[{}, {}]", s.smin(), s.smax()),
    }
}

impl Machine<'_> {
    /// A value in words.
    pub(crate) fn describe(&self, v: &Value) -> String {
        match v {
            Value::Uninit => "uninitialised".into(),
            Value::Num(n) => match n.s.as_const() {
                Some(x) if x <= 0xffff => format!("the number {x}"),
                Some(x) => format!("the number {x:#x}"),
                None => super::why::number_words(n.s),
            },
            Value::MapObject(m) => format!("the map {}", self.map_name(*m)),
            Value::Func(pc) => format!("the function {}", self.program.func_at(*pc).name),
            Value::Ptr(p) => {
                let what = format!("a pointer into {}", self.home_words(p.home));
                if p.nullable { format!("{what}, or null") } else { what }
            }
        }
    }

    /// A region in words.
    pub(crate) fn home_words(&self, home: Home) -> String {
        match home {
            Home::Ctx => "the context".into(),
            Home::Stack(_) => "the stack".into(),
            Home::Map(m) => format!("a value of map {}", self.map_name(m)),
            Home::Record(m, _) => format!("a record of {}", self.map_name(m)),
            Home::Key(m) => format!("a key of map {}", self.map_name(m)),
        }
    }

    /// Turns a refusal into the rejection of the program.
    #[cold]
    pub(crate) fn reject(&self, r: Refusal, pc: Pc, stats: Stats) -> Rejection {
        Rejection::new(Inner {
            kind: r.kind,
            func: self.program.func_at(pc).name.clone(),
            pc,
            source: self.program.line_at(pc).cloned(),
            reg: r.reg,
            message: r.message,
            hint: r.hint.map(str::to_owned),
            stats,
        })
    }
}
