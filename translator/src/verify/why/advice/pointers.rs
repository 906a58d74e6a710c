//! Pointers: not checked for null, used in arithmetic that loses them, leaked, or into read-only data.

use super::{Advice, Scene, at_line, before_refused, gone, kept, new};
use crate::isa::{AluOp, Insn, Reg, Width};
use crate::verify::value::{Home, Ptr, Value};

/// The pointer that a register holds.
fn pointer(s: &Scene<'_>, reg: Reg) -> Option<Ptr> {
    match s.value(reg)? {
        Value::Ptr(p) => Some(p),
        _ => None,
    }
}

fn map_of(s: &Scene<'_>, p: Ptr) -> String {
    s.m.home_words(p.home)
}

/// Used without a check for null.
pub(super) fn null(s: &Scene<'_>) -> Option<Advice> {
    let p = pointer(s, s.rejection.reg()?)?;
    let name = s.variable(s.fault).unwrap_or("p");
    let found = s.helper_of(s.fault).and_then(|(_, at)| s.line(at));
    let check = format!("if (!{name})");
    let after = at_line(found, " after ");
    let why = match p.home {
        Home::Map(m) => {
            let map = s.m.map_name(m);
            format!("a look-up gives NULL where the map has no such entry, so {name} may be NULL (map {map})")
        }
        Home::Record(m, _) => {
            format!("ringbuf_reserve gives NULL while {} is full, so {name} may be NULL", s.m.map_name(m))
        }
        _ => format!("{name} may be NULL"),
    };
    let hint = format!("{why}: test it before it is used, `{check} return 0;`{after}");
    let lines = found.map(kept).into_iter().chain([new(check), new("        return 0;")]);
    Some(Advice::new(hint).with(before_refused(s, lines)))
}

/// Arithmetic that pointers do not take.
pub(super) fn arithmetic(s: &Scene<'_>) -> Option<Advice> {
    let reg = s.rejection.reg()?;
    let p = pointer(s, reg);
    if p.is_some_and(|p| p.nullable) {
        return null(s).map(|a| Advice { hint: format!("{}; only then move it", a.hint), ..a });
    }
    let what = p.map_or("the pointer".to_string(), |p| format!("a pointer into {}", map_of(s, p)));
    match *s.insn()? {
        Insn::Alu { width: Width::W32, .. } => Some(Advice::new(format!(
            "{reg} holds {what}, and 32 bits cannot hold an address: keep it in a pointer (or a __u64), and add offsets to that"
        ))),
        Insn::Alu { width: Width::W64, op: AluOp::Add | AluOp::Sub, .. } => super::bounds::moved(s),
        Insn::Alu { op, .. } => Some(Advice::new(format!(
            "`{}` makes no sense of {what}: do arithmetic on an index or offset first, and add the result to the pointer last",
            op.symbol().0
        ))),
        _ => None,
    }
}

/// An address where others could read it.
pub(super) fn leak(s: &Scene<'_>) -> Option<Advice> {
    let p = pointer(s, s.rejection.reg()?);
    let what = p.map_or("an address".to_string(), |p| format!("an address ({})", map_of(s, p)));
    let hint = match *s.insn()? {
        Insn::Exit => {
            format!("return a number that says what to do, not {what}; to hand data on, write it to a map")
        }
        Insn::Store { .. } | Insn::Atomic { .. } => format!(
            "store what the pointer points to, not {what}: who reads it later could not use it, and would learn where the host's memory lies"
        ),
        _ => format!("pass on the data, not {what}"),
    };
    Some(Advice::new(hint))
}

/// A store to constant data.
pub(super) fn read_only(s: &Scene<'_>) -> Option<Advice> {
    let Home::Map(m) = pointer(s, s.rejection.reg()?)?.home else { return None };
    let map = s.m.map(m).ok()?;
    let hint = if map.name.starts_with(".rodata") {
        "the variable is declared const: drop the const (then it is shared data that the policy may write), or write to a copy"
            .to_string()
    } else {
        format!(
            "map {} is declared with BPF_F_RDONLY_PROG: drop that flag if the policy has to write it",
            map.name
        )
    };
    let line = s.rejection.source().filter(|l| !l.text.trim().is_empty());
    Some(Advice::new(hint).with(line.map(gone)))
}
