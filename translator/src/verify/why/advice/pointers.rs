//! Pointers: not checked for null, used in arithmetic that loses them, leaked, or into read-only data.

use super::super::turns::Turn;
use super::{Advice, Scene, at_line, before_refused, gone, kept, new};
use crate::isa::{AluOp, Insn, Reg, Width};
use crate::verify::value::{Home, Ptr, Value};

/// Addresses below are NULL with the offset of a member.
const SMALL: u64 = 4096;

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
        Insn::Atomic { .. } => format!("atomic operations work on numbers, not on {what}"),
        Insn::Store { .. } => format!(
            "store what the pointer points to, not {what}: who reads it later could not use it, and would learn where the host's memory lies"
        ),
        _ => format!("pass on the data, not {what}"),
    };
    Some(Advice::new(hint))
}

/// An access through what is no address.
pub(super) fn number(s: &Scene<'_>) -> Option<Advice> {
    let reg = s.rejection.reg()?;
    let Some(Value::Num(n)) = s.value(reg) else { return None };
    if n.s.as_const().is_some_and(|x| x < SMALL) {
        return known_null(s);
    }
    let sources = s.trace.slice(s.fault).into_iter().filter_map(|id| s.trace.def(id));
    let from = sources.filter(|d| d.is_source()).filter_map(|d| d.step).next_back()?;
    let at = at_line(s.line(from), " at ");
    Some(Advice::new(match *s.m.program.insn(s.pc(from))? {
        Insn::Load { base, .. } => {
            let home = s.states.get(&s.trace.points[from].trail).map(|state| state.reg(base));
            match home {
                Some(Value::Ptr(p)) => format!(
                    "what is read from {}{at} is a number, never an address: only look-ups, the context and the stack give addresses",
                    s.m.home_words(p.home)
                ),
                _ => return None,
            }
        }
        Insn::CallHelper { id } => {
            format!("bpf_{} returns a number{at}, not an address", s.m.env.helper(id)?.name)
        }
        _ => return None,
    }))
}

/// Used where a test has found it to be null: compilers make the member's offset of it.
fn known_null(s: &Scene<'_>) -> Option<Advice> {
    let null = |i: usize, taken| s.condition(i, taken).is_some_and(|c| c.ends_with("is NULL"));
    let test = s.turns.iter().rev().find_map(|(i, turn)| match turn {
        Turn::Branch { taken } if null(*i, *taken) => Some(*i),
        _ => None,
    })?;
    let pointer = s.trace.points[test].uses[0];
    let name = s.variable(pointer).unwrap_or("the pointer");
    let found = s.helper_of(pointer).and_then(|(_, at)| s.line(at));
    Some(Advice::new(format!(
        "on this path {name}{} is NULL, as the test{} says: is that test the wrong way round? Use {name} only where it is not NULL",
        found.map_or(String::new(), |l| format!(", looked up in line {},", l.line)),
        at_line(s.line(test), " in "),
    )))
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
