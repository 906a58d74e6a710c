//! What is taken and must be given back: ring-buffer records and spin locks.

use super::super::trace::ValueId;
use super::super::turns::Turn;
use super::{Advice, Scene, at_line};
use crate::isa::{Insn, Reg};
use crate::verify::env::RetKind;
use crate::verify::helpers::{RINGBUF_DISCARD, RINGBUF_SUBMIT, SPIN_LOCK};

/// Index of the last step of the path that calls such a helper.
fn last_call(s: &Scene<'_>, wanted: impl Fn(usize, u32) -> bool) -> Option<usize> {
    let id = |i: usize| match *s.m.program.insn(s.pc(i))? {
        Insn::CallHelper { id } => Some(id),
        _ => None,
    };
    let before = s.trace.points.len().saturating_sub(1);
    (0..before).rev().find(|i| id(*i).is_some_and(|id| wanted(*i, id)))
}

fn gives_back(id: u32) -> bool {
    matches!(id, RINGBUF_SUBMIT | RINGBUF_DISCARD)
}

/// The step that gave that record back.
fn given_back(s: &Scene<'_>, record: ValueId) -> Option<usize> {
    last_call(s, |i, id| gives_back(id) && s.trace.root(s.trace.points[i].uses[0]) == record)
}

/// A record that is not given back, or twice.
pub(super) fn record(s: &Scene<'_>) -> Option<Advice> {
    if let Some(reg) = s.rejection.reg() {
        let other = || Advice::new(format!("pass the very pointer that ringbuf_reserve gave, not {reg}"));
        return Some(gone(s, reg).unwrap_or_else(other));
    }
    let reserves = |id| s.m.env.helper(id).is_some_and(|h| h.ret == RetKind::RecordOrNull);
    let made = |i| s.trace.made_by(i);
    let reserved = last_call(s, |i, id| reserves(id) && made(i).is_some_and(|v| given_back(s, v).is_none()))?;
    let name = made(reserved).and_then(|v| s.variable(v)).unwrap_or("the record");
    Some(Advice::new(format!(
        "{name}, reserved{}, is neither submitted nor discarded on this path: call bpf_ringbuf_discard({name}, 0) before it ends{}",
        at_line(s.line(reserved), " at "),
        way_out(s)
    )))
}

/// The last test of the path, which led to the end.
fn way_out(s: &Scene<'_>) -> String {
    let test = s.turns.iter().rev().find(|(_, turn)| matches!(turn, Turn::Branch { .. }));
    let line = test.and_then(|(i, _)| s.line(*i));
    line.map_or(String::new(), |l| format!(", on the way that the test in line {} takes", l.line))
}

/// Advice for what is done with a record that is given back; `None` if the register holds none.
pub(super) fn gone(s: &Scene<'_>, reg: Reg) -> Option<Advice> {
    let record = s.trace.root(s.trace.at_end(reg));
    let given = given_back(s, record)?;
    let name = s.variable(record).unwrap_or("the record");
    let submits = matches!(s.m.program.insn(s.pc(given)), Some(Insn::CallHelper { id: RINGBUF_SUBMIT }));
    let how = if submits { "submitted" } else { "discarded" };
    Some(Advice::new(format!(
        "{name} was {how}{}, and is gone since then: do all that is to be done with it before",
        at_line(s.line(given), " at ")
    )))
}

/// A lock that is still held, or code that may not run under one.
pub(super) fn lock(s: &Scene<'_>) -> Option<Advice> {
    let locked = last_call(s, |_, id| id == SPIN_LOCK)?;
    let at = at_line(s.line(locked), " at ");
    Some(match *s.insn()? {
        Insn::Exit => Advice::new(format!(
            "the lock taken{at} is still held on this path: call bpf_spin_unlock before it ends{}",
            way_out(s)
        )),
        Insn::CallHelper { .. } | Insn::CallLocal { .. } => {
            Advice::new(format!("make this call before the lock is taken{at}, or after it is given back"))
        }
        _ => return None,
    })
}
