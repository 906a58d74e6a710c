//! What is taken and must be given back: ring-buffer records and spin locks.

use super::super::trace::ValueId;
use super::{Advice, Scene, at_line, before_refused, new};
use crate::isa::Insn;
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
        let record = s.trace.root(s.trace.at_end(reg));
        return Some(Advice::new(match given_back(s, record) {
            Some(i) => format!(
                "the record was given back{} already, and is gone since then",
                at_line(s.line(i), " at ")
            ),
            None => format!("pass the very pointer that ringbuf_reserve gave, not {reg}"),
        }));
    }
    let reserves = |id| s.m.env.helper(id).is_some_and(|h| h.ret == RetKind::RecordOrNull);
    let made = |i| s.trace.made_by(i);
    let reserved = last_call(s, |i, id| reserves(id) && made(i).is_some_and(|v| given_back(s, v).is_none()))?;
    let name = made(reserved).and_then(|v| s.variable(v)).unwrap_or("the record");
    let hint = format!(
        "{name}, reserved{}, is neither submitted nor discarded on this path: call bpf_ringbuf_discard({name}, 0) before it ends",
        at_line(s.line(reserved), " at ")
    );
    Some(Advice::new(hint).with(before_refused(s, [new(format!("bpf_ringbuf_discard({name}, 0);"))])))
}

/// A lock that is still held, or code that may not run under one.
pub(super) fn lock(s: &Scene<'_>) -> Option<Advice> {
    let locked = last_call(s, |_, id| id == SPIN_LOCK)?;
    let at = at_line(s.line(locked), " at ");
    Some(match *s.insn()? {
        Insn::Exit => Advice::new(format!(
            "the lock taken{at} is still held on this path: call bpf_spin_unlock before it ends"
        )),
        Insn::CallHelper { .. } | Insn::CallLocal { .. } => {
            Advice::new(format!("make this call before the lock is taken{at}, or after it is given back"))
        }
        _ => return None,
    })
}
