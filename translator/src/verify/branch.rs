//! Conditional jumps: which ways are possible, and what each way teaches.

use super::Machine;
use super::domain::Scalar;
use super::explain::{Duty, refuse_reg};
use super::rejection::RejectKind as K;
use super::state::State;
use super::transfer::{Flow, assume, within};
use super::value::{Num, Ptr, Value};
use crate::isa::{Cond, Operand, Pc, Reg, Width};

impl Machine<'_> {
    /// Splits `state` at `if dst cond src goto target`; `src` comes with its value.
    #[expect(clippy::too_many_arguments, reason = "the parts of one instruction")]
    pub(crate) fn branch(
        &self,
        state: &mut State,
        width: Width,
        cond: Cond,
        dst: Reg,
        src: (Operand, Value),
        target: Pc,
        next: Pc,
    ) -> Duty<Flow> {
        let (taken, fall) = match (self.read(state, dst)?, src.1) {
            (Value::Num(a), Value::Num(b)) => {
                let known = linked_outcome(a, b, src.0 == Operand::Reg(dst), cond, width);
                let sides = |truth| match known {
                    Some(outcome) if outcome != truth => None,
                    _ => assume(a.s, b.s, cond, truth, width),
                };
                split(state, dst, src.0, sides(true), sides(false))
            }
            (a, b) => self.pointer_branch(state, width, cond, (dst, a), (src.0, b))?,
        };
        Ok(match (taken, fall) {
            // Both sides empty cannot be: then no concrete state reaches this place.
            (None, false) => Flow::Exit,
            (taken, fall) => Flow::Branch { taken: taken.map(|s| (target, s)), fall: fall.then_some(next) },
        })
    }

    /// A comparison with at least one pointer: with null, inside one object, or with a number (of which nothing is learnt:
    /// addresses are numbers of the sandbox, and give nothing away).
    fn pointer_branch(
        &self,
        state: &mut State,
        width: Width,
        cond: Cond,
        (dst, a): (Reg, Value),
        (src, b): (Operand, Value),
    ) -> Duty<(Option<State>, bool)> {
        let equality = matches!(cond, Cond::Eq | Cond::Ne);
        let zero = |v: &Value| matches!(v, Value::Num(n) if n.s.as_const() == Some(0));
        match (a, b) {
            _ if width == Width::W32 => {}
            (Value::Ptr(p), z) | (z, Value::Ptr(p)) if equality && zero(&z) => {
                return Ok(self.null_branch(state, cond, p));
            }
            (Value::MapObject(_), z) | (z, Value::MapObject(_)) if equality && zero(&z) => {
                return Ok(decided(state, cond == Cond::Ne));
            }
            (Value::Ptr(p), Value::Ptr(q)) if p.home == q.home && !p.nullable && !q.nullable => {
                let same = p.id == q.id && within(p.off) && within(q.off);
                if same && ordered(cond) {
                    return Ok(offset_branch(state, cond, (dst, p), (src, q)));
                }
                if equality {
                    return Ok((Some(state.clone()), true));
                }
            }
            (Value::Ptr(_), Value::Num(_)) | (Value::Num(_), Value::Ptr(_)) => {
                return Ok((Some(state.clone()), true));
            }
            _ => {}
        }
        let (x, y) = (self.describe(&a), self.describe(&b));
        let wide = if width == Width::W32 { " in 32 bits" } else { "" };
        refuse_reg(K::PointerCompare, dst, format!("comparison{wide} of {x} with {y}"))
    }

    fn null_branch(&self, state: &mut State, cond: Cond, p: Ptr) -> (Option<State>, bool) {
        if !p.nullable {
            return decided(state, cond == Cond::Ne);
        }
        let mut taken = state.clone();
        taken.settle_null(p.id, cond == Cond::Eq);
        state.settle_null(p.id, cond == Cond::Ne);
        (Some(taken), true)
    }
}

/// What a comparison of two numbers must give because they are one register, or at a known distance of each other.
fn linked_outcome(a: Num, b: Num, same: bool, cond: Cond, width: Width) -> Option<bool> {
    if !same && (a.id == 0 || a.id != b.id) {
        return None;
    }
    if !same && (a.half || b.half) && width == Width::W64 {
        return None;
    }
    let apart = if same { 0 } else { a.delta.wrapping_sub(b.delta) };
    let equal = if width == Width::W64 { apart == 0 } else { apart as i32 == 0 };
    match cond {
        Cond::Eq => return Some(equal),
        Cond::Ne => return Some(!equal),
        Cond::Set => return None,
        _ if equal => return Some(matches!(cond, Cond::Le | Cond::Ge | Cond::SLe | Cond::SGe)),
        // Halves may wrap where the whole does not.
        _ if width == Width::W32 => return None,
        _ => {}
    }
    // `a` is `b + apart`, unless that wraps.
    let signed = matches!(cond, Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe);
    let (lo, hi, limits) = if signed {
        (b.s.smin().into(), b.s.smax().into(), (i64::MIN.into(), i64::MAX.into()))
    } else {
        (i128::from(b.s.umin()), i128::from(b.s.umax()), (0, i128::from(u64::MAX)))
    };
    if lo + i128::from(apart) < limits.0 || hi + i128::from(apart) > limits.1 {
        return None;
    }
    let greater = matches!(cond, Cond::Gt | Cond::Ge | Cond::SGt | Cond::SGe);
    Some(greater == (apart > 0))
}

/// Unsigned order of addresses is signed order of offsets: addresses near an object do not wrap.
fn ordered(cond: Cond) -> bool {
    matches!(cond, Cond::Eq | Cond::Ne | Cond::Gt | Cond::Ge | Cond::Lt | Cond::Le)
}

fn offset_branch(
    state: &mut State,
    cond: Cond,
    (dst, p): (Reg, Ptr),
    (src, q): (Operand, Ptr),
) -> (Option<State>, bool) {
    let signed = match cond {
        Cond::Gt => Cond::SGt,
        Cond::Ge => Cond::SGe,
        Cond::Lt => Cond::SLt,
        Cond::Le => Cond::SLe,
        other => other,
    };
    let sides = |truth| assume(p.off, q.off, signed, truth, Width::W64);
    let apply = |s: &mut State, (x, y): (Scalar, Scalar)| {
        if let Operand::Reg(r) = src {
            s.set(r, Value::Ptr(Ptr { off: y, ..q }));
        }
        s.set(dst, Value::Ptr(Ptr { off: x, ..p }));
    };
    let taken = sides(true).map(|xy| {
        let mut s = state.clone();
        apply(&mut s, xy);
        s
    });
    let fall = sides(false).map(|xy| apply(state, xy)).is_some();
    (taken, fall)
}

/// Only one way is possible.
fn decided(state: &State, taken: bool) -> (Option<State>, bool) {
    if taken { (Some(state.clone()), false) } else { (None, true) }
}

/// The two states after a comparison of numbers; `None` where a side is impossible.
fn split(
    state: &mut State,
    dst: Reg,
    src: Operand,
    yes: Option<(Scalar, Scalar)>,
    no: Option<(Scalar, Scalar)>,
) -> (Option<State>, bool) {
    let learn = |s: &mut State, (x, y): (Scalar, Scalar)| {
        if let Operand::Reg(r) = src {
            s.refine(r, y);
        }
        s.refine(dst, x);
    };
    let taken = yes.map(|xy| {
        let mut s = state.clone();
        learn(&mut s, xy);
        s
    });
    let fall = no.map(|xy| learn(state, xy)).is_some();
    (taken, fall)
}
