//! The stack: past its end, too large for it, or never written.

use super::super::source;
use super::super::turns::Missing;
use super::bounds::{advise, bytes_words, reach};
use super::{Advice, Scene, at_line, kept, new};
use crate::isa::{Insn, Reg};
use crate::limits::STACK_BYTES;
use crate::map::MapDecl;
use crate::verify::domain::Scalar;
use crate::verify::mem::add_const;
use crate::verify::value::{Home, Value};

/// Outside the 512 bytes of a frame.
pub(super) fn out_of_bounds(s: &Scene<'_>) -> Option<Advice> {
    if let Some(Insn::CallHelper { .. }) = s.insn() {
        return too_small(s);
    }
    let mut r = reach(s)?;
    let lowest = -i64::from(STACK_BYTES);
    if r.off.smax() < lowest || (r.off.as_const().is_some() && r.off.smin() < lowest) {
        return Some(Advice::new(format!(
            "a frame has {STACK_BYTES} bytes, and this variable lies {} below its end: move large arrays to a map (an array \
             map with one entry, looked up with key 0)",
            bytes_words(lowest - r.off.smin())
        )));
    }
    if r.off.smin() > -r.size {
        return Some(Advice::new("a frame's bytes lie below r10, at negative offsets"));
    }
    // An array that starts where the smallest index is; nobody knows where it ends.
    let start = r.off.smin().max(lowest);
    let bytes = -start;
    r.off = if r.off.smin() < lowest { Scalar::unknown() } else { add_const(r.off, -start) };
    advise(s, &r, bytes, &format!("the stack from r10{start:+} up"))
}

/// The map of the call, and is `reg` its key?
fn map_argument<'a>(s: &Scene<'a>, reg: Reg) -> Option<(&'a MapDecl, &'static str, u32)> {
    let Value::MapObject(m) = s.value(Reg::R1)? else { return None };
    let map = s.m.map(m).ok()?;
    let (what, size) = if reg == Reg::R2 { ("key", map.key_size) } else { ("value", map.value_size) };
    Some((map, what, size))
}

/// The variable whose address is that argument of the helper, by the text of the line.
fn variable<'a>(s: &'a Scene<'_>, reg: Reg) -> Option<&'a str> {
    let Insn::CallHelper { id } = *s.insn()? else { return None };
    let args = source::arguments(s.text(), s.m.env.helper(id)?.name)?;
    source::address_of(args.get(reg.index().checked_sub(1)?)?)
}

/// A key or value that is smaller than the map's.
fn too_small(s: &Scene<'_>) -> Option<Advice> {
    let reg = s.rejection.reg()?;
    let (map, what, size) = map_argument(s, reg)?;
    let Value::Ptr(p) = s.value(reg)? else { return None };
    let left = -p.off.smax();
    if left > i64::from(STACK_BYTES) - i64::from(size) {
        return None;
    }
    let name = variable(s, reg).map_or(format!("what {reg} points to"), |n| format!("`{n}`"));
    Some(Advice::new(format!(
        "a {what} of map {} has {size} bytes, and {name} has {left} at most: pass the address of a variable of the map's {what} \
         type",
        map.name
    )))
}

/// Read before it was written.
pub(super) fn uninitialised(s: &Scene<'_>) -> Option<Advice> {
    let (reg, Missing::Stack(at)) = (s.rejection.reg()?, s.missing?) else { return None };
    let Value::Ptr(p) = s.value(reg)? else { return None };
    let Home::Stack(_) = p.home else { return None };
    let start = p.off.smin();
    let Some((map, what, size)) = map_argument(s, reg) else {
        return Some(Advice::new(
            "give the variable a value where it is declared, so that it has one on every path",
        ));
    };
    let name = variable(s, reg);
    let written = s.trace.points.iter().any(|q| match s.m.program.insn(q.pc) {
        Some(Insn::Store { base: Reg::FP, off, .. }) => {
            (start..start + i64::from(size)).contains(&i64::from(*off))
        }
        _ => false,
    });
    if !written {
        return None;
    }
    let called = name.unwrap_or("the variable");
    let only_here = s.turns.iter().any(|(i, _)| s.line(*i).is_some());
    let hint = format!(
        "byte {} of the {size}-byte {what} for map {} was not written{}; the map compares or copies all of them, padding \
         included: start from zeroes, `= {{}}` where {called} is declared",
        at - start,
        map.name,
        if only_here { " on this path" } else { "" },
    );
    Some(Advice::new(hint).with(clear_first(s, start, size, name)))
}

/// An example that clears the variable before its first member is set.
fn clear_first(s: &Scene<'_>, start: i64, size: u32, name: Option<&str>) -> Vec<super::FixLine> {
    let Some(name) = name else { return Vec::new() };
    let stores = |pc| match s.m.program.insn(pc) {
        Some(Insn::Store { base: Reg::FP, off, .. }) => {
            (start..start + i64::from(size)).contains(&i64::from(*off))
        }
        _ => false,
    };
    let first = s.trace.points.iter().position(|p| stores(p.pc)).and_then(|i| s.line(i));
    let note = at_line(first, " /* before ");
    let note = if note.is_empty() { note } else { note + " */" };
    let clear = new(format!("__builtin_memset(&{name}, 0, sizeof({name}));{note}"));
    [clear].into_iter().chain(first.map(kept)).collect()
}
