//! [`Advice`]: what to change, for the mistakes that policies are refused for most often. Each names the map, the bound, the
//! variable and the line, as far as they are known.

use super::FixLine;
use super::words::Scene;
use crate::program::SourceLine;
use crate::verify::RejectKind as K;

mod bounds;
mod calls;
mod context;
mod held;
mod loops;
mod pointers;
mod stack;

/// What to change, in words and as an example.
pub(super) struct Advice {
    pub(super) hint: String,
    pub(super) fix: Vec<FixLine>,
}

impl Advice {
    fn new(hint: impl Into<String>) -> Advice {
        Advice { hint: hint.into(), fix: Vec::new() }
    }

    fn with(mut self, fix: impl IntoIterator<Item = FixLine>) -> Advice {
        self.fix = fix.into_iter().collect();
        self
    }
}

/// The advice for this refusal; `None` where there is no better one than the kind's.
pub(super) fn advise(s: &Scene<'_>) -> Option<Advice> {
    match s.kind() {
        K::NullDeref => pointers::null(s),
        K::PointerArith => pointers::arithmetic(s),
        K::PointerLeak => pointers::leak(s),
        K::NotPointer => pointers::number(s),
        K::MapOob => bounds::map(s),
        K::StackOob => stack::out_of_bounds(s),
        K::UninitStack => stack::uninitialised(s),
        K::UninitRegister => calls::unset_register(s),
        K::CtxOob | K::CtxField => context::read(s),
        K::CtxWrite => context::write(s),
        K::ReadOnlyMap => pointers::read_only(s),
        K::HelperArg => calls::argument(s),
        K::UnknownHelper => calls::unknown(s),
        K::CallDepth => calls::depth(s),
        K::UnboundedLoop => loops::endless(s),
        K::Reference => held::record(s),
        K::SpinLock => held::lock(s),
        // The kind's own advice says it.
        K::Callback
        | K::StackDepth
        | K::Misaligned
        | K::PointerCompare
        | K::FramePointer
        | K::Budget
        | K::FallsThrough
        | K::BadReturn
        | K::Unsupported
        | K::Internal => None,
    }
}

/// A line that is there.
fn kept(line: &SourceLine) -> FixLine {
    FixLine { line: Some(line.line), mark: ' ', text: line.text.trim().to_string() }
}

/// A line that goes.
fn gone(line: &SourceLine) -> FixLine {
    FixLine { mark: '-', ..kept(line) }
}

/// A line that comes.
fn new(text: impl Into<String>) -> FixLine {
    FixLine { line: None, mark: '+', text: text.into() }
}

/// New lines before the refused one.
fn before_refused(s: &Scene<'_>, lines: impl IntoIterator<Item = FixLine>) -> Vec<FixLine> {
    let refused = s.rejection.source().filter(|l| !l.text.trim().is_empty());
    lines.into_iter().chain(refused.map(kept)).collect()
}

/// `line 12`, or nothing where the line is not known.
fn at_line(line: Option<&SourceLine>, before: &str) -> String {
    line.map_or(String::new(), |l| format!("{before}line {}", l.line))
}
