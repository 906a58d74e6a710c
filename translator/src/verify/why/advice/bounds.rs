//! Indices: without a bound, one too far, possibly negative; values smaller than they are taken for.

use super::super::source;
use super::super::turns::Turn;
use super::{Advice, Scene, before_refused, new};
use crate::isa::{AluOp, Insn, MapIdx, Operand};
use crate::verify::domain::Scalar;
use crate::verify::mem::add_const;
use crate::verify::transfer::MAX_OFFSET;
use crate::verify::value::{Home, Value};

/// An access at an offset that is not in a region.
pub(super) struct Reach {
    /// First byte, from the region's start.
    pub(super) off: Scalar,
    /// Bytes of the access.
    pub(super) size: i64,
    pub(super) home: Home,
}

/// The refused load, store or atomic.
pub(super) fn reach(s: &Scene<'_>) -> Option<Reach> {
    let (base, off, size) = match *s.insn()? {
        Insn::Load { base, off, size, .. } | Insn::Store { base, off, size, .. } => (base, off, size.bytes()),
        Insn::Atomic { base, off, width, .. } => (base, off, width.bits() / 8),
        _ => return None,
    };
    let Value::Ptr(p) = s.value(base)? else { return None };
    Some(Reach { off: add_const(p.off, off.into()), size: size.into(), home: p.home })
}

/// How the source calls the index: what stands in the line's brackets, else a variable or field.
fn index_name(s: &Scene<'_>) -> Option<String> {
    if let Some(index) = source::index(s.text()) {
        return Some(index.to_string());
    }
    let fields = s.trace.slice(s.fault).into_iter().filter(|id| s.trace.root(*id) == *id);
    fields.filter_map(|id| s.variable(id).or_else(|| s.field(id))).next_back().map(str::to_string)
}

/// Outside a map's value.
pub(super) fn map(s: &Scene<'_>) -> Option<Advice> {
    let r = reach(s)?;
    let m = match r.home {
        Home::Map(m) => m,
        Home::Record(m, bytes) => {
            let what = format!("the record of {bytes} bytes in {}", s.m.map_name(m));
            return advise(s, &r, bytes.into(), &what);
        }
        _ => return None,
    };
    let map = s.m.map(m).ok()?;
    let (name, bytes) = (&map.name, i64::from(map.value_size));
    if r.size > bytes {
        return Some(Advice::new(format!(
            "map {name} is declared with values of {bytes} bytes, and this takes {} at once: declare a larger value, or use a \
             pointer to the declared type",
            r.size
        )));
    }
    advise(s, &r, bytes, &format!("the {bytes}-byte value of map {name}"))
}

/// Advice for an access that must start in `[0, bytes - size]`.
pub(super) fn advise(s: &Scene<'_>, r: &Reach, bytes: i64, what: &str) -> Option<Advice> {
    let (room, low, high) = (bytes - r.size, r.off.smin(), r.off.smax());
    if low == high {
        return Some(constant(s, low, r.size, bytes, what));
    }
    if low > room {
        return Some(Advice::new(format!(
            "{what} ends at byte {bytes}, and this takes byte {low} at the least"
        )));
    }
    let step = step_of(r);
    let index = index_name(s);
    let start = if index.as_ref().is_some_and(|i| source::is_plain(i)) && low >= 0 { low } else { 0 };
    let entries = (room - start) / step + 1;
    let name = called(index.as_deref());
    let why = match () {
        () if low < 0 && high <= room => format!("{name} may be as low as {}", low.div_euclid(step)),
        () if low < 0 => format!("{name} has no bound"),
        () if high == room + step => {
            format!("the test before lets {name} be {entries}, and the last entry is {}", entries - 1)
        }
        () if high > room + step * entries => format!("{name} has no bound that is small enough"),
        () => format!("the test before lets {name} be as large as {}", (high - start) / step),
    };
    let why = format!("{why}: {what} has room for {entries} entries of {}", bytes_words(step));
    Some(bounded(s, &why, index.as_deref(), low < 0, entries))
}

/// An index in words.
fn called(name: Option<&str>) -> String {
    name.map_or("the index".into(), |n| format!("`{n}`"))
}

/// Advice to test an index, with the test as it is to be written where its name is known.
fn bounded(s: &Scene<'_>, why: &str, name: Option<&str>, negative: bool, entries: i64) -> Advice {
    let Some(name) = name else {
        let from = if negative { "at 0 or above and " } else { "" };
        return Advice::new(format!("{why}. Keep it {from}below {entries} with a test before"));
    };
    let low = if negative { format!("{name} < 0 || ") } else { String::new() };
    let test = format!("if ({low}{name} >= {entries})");
    let hint = format!("{why}. Put `{test} return 0;` before this line");
    Advice::new(hint).with(before_refused(s, [new(test), new("        return 0;")]))
}

/// Bytes from one index to the next: what the offset is known to be a multiple of, at least the access itself.
fn step_of(r: &Reach) -> i64 {
    let mask = r.off.tnum().mask;
    let step = 1i64 << mask.trailing_zeros().min(12);
    if step < r.size { r.size } else { step }
}

/// `1 byte`, `4 bytes`.
pub(super) fn bytes_words(n: i64) -> String {
    format!("{n} byte{}", if n == 1 { "" } else { "s" })
}

fn constant(s: &Scene<'_>, at: i64, size: i64, bytes: i64, what: &str) -> Advice {
    let last = bytes - size;
    let round = s.turns.iter().rev().find_map(|(i, t)| match t {
        Turn::Loop { round, .. } => Some((*i, *round)),
        _ => None,
    });
    match round {
        Some((_, round)) if at > last && at % size == 0 => {
            let entries = bytes / size;
            Advice::new(format!(
                "in round {round} of the loop the index is {}, and {what} ends with entry {}: end the loop before, with `< {entries}`",
                at / size,
                entries - 1
            ))
        }
        _ if at < 0 => Advice::new(format!("this is {} bytes before {what}", -at)),
        _ => Advice::new(format!(
            "{what} ends at byte {bytes}, and this takes bytes {at} to {}",
            at + size - 1
        )),
    }
}

/// A map in the place of one of its values.
fn no_memory(s: &Scene<'_>, m: MapIdx) -> Advice {
    let how = "look an entry up with bpf_map_lookup_elem, and work with what that returns";
    Advice::new(format!("map {} itself is no memory: {how}", s.m.map_name(m)))
}

/// A pointer moved by a number without a bound.
pub(super) fn moved(s: &Scene<'_>) -> Option<Advice> {
    let Insn::Alu { dst, src, op, .. } = *s.insn()? else { return None };
    let Operand::Reg(src) = src else {
        if let Value::MapObject(m) = s.value(dst)? {
            return Some(no_memory(s, m));
        }
        return Some(Advice::new("no region is that large: the number can only be a mistake"));
    };
    let (pointer, by) = match (s.value(dst)?, s.value(src)?) {
        (Value::Num(_), Value::Ptr(_)) if op == AluOp::Sub => {
            return Some(Advice::new("a pointer cannot be taken from a number"));
        }
        (Value::Ptr(p), Value::Num(n)) | (Value::Num(n), Value::Ptr(p)) => (p, n.s),
        (Value::MapObject(m), _) | (_, Value::MapObject(m)) => return Some(no_memory(s, m)),
        _ if op == AluOp::Sub => {
            return Some(Advice::new("only pointers into one and the same object have a distance"));
        }
        _ => {
            return Some(Advice::new("pointers cannot be added to each other: add an offset to one of them"));
        }
    };
    if by.as_const().is_some() {
        return Some(Advice::new(
            "no region is that large: a negative number that was taken for an unsigned one?",
        ));
    }
    let (name, negative) = (index_name(s), by.smin() < 0);
    let why = match by.smax() < MAX_OFFSET && negative {
        true => {
            "may be negative, as the test before is a signed one from above only: make it unsigned, or test for that too"
        }
        false => "has no bound",
    };
    let why = format!("{} {why}", called(name.as_deref()));
    let step = 1i64 << by.tnum().mask.trailing_zeros().min(12);
    let Home::Map(m) = pointer.home else { return Some(Advice::new(why)) };
    Some(bounded(s, &why, name.as_deref(), negative, i64::from(s.m.map(m).ok()?.value_size) / step))
}
