//! [`Ghost`]: what a loop's counter was when the run last came through the loop's invariant; [`Counter`], where it lies.
//!
//! A ghost is a register that no instruction can touch. It is linked with the counter like any copy, so that a path
//! which comes back to the invariant can show by how much the counter has moved: the measure that ends the loop.

use super::domain::Scalar;
use super::state::State;
use super::value::{Num, Value};
use crate::isa::{Pc, Reg};

/// Place of a loop's counter, in the frame that runs the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counter {
    /// A register.
    Reg(Reg),
    /// A spilled value: its first byte from the lowest of the frame, and its size.
    Stack(u16, u8),
    /// The laps of the helper that calls back.
    Laps,
}

/// The counter of one invariant as it was on the last pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    /// The invariant's node; one run has one ghost of each.
    pub(crate) of: u32,
    /// The frame that runs the loop.
    pub(crate) frame: u8,
    /// First and last instruction of the loop: outside them the ghost is forgotten.
    pub(crate) region: (Pc, Pc),
    pub(crate) num: Num,
}

/// An order in which a counter may go up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// Of the whole number, or of its low half.
    half: bool,
    signed: bool,
}

/// All orders; a [`Progress`] has a flag for each.
const ORDERS: [Order; 4] = [
    Order { half: false, signed: false },
    Order { half: false, signed: true },
    Order { half: true, signed: false },
    Order { half: true, signed: true },
];

impl Order {
    /// Lowest and highest number.
    fn limits(self) -> (i128, i128) {
        let bits = if self.half { 32 } else { 64 };
        match self.signed {
            true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            false => (0, (1 << bits) - 1),
        }
    }

    /// The bounds of `s` in this order.
    fn bounds(self, s: Scalar) -> (i128, i128) {
        let (unsigned, signed) = if self.half { s.half_bounds() } else { s.bounds() };
        match self.signed {
            true => (signed.0.into(), signed.1.into()),
            false => (unsigned.0.into(), unsigned.1.into()),
        }
    }
}

/// How far a counter has moved since the last pass, and in which orders that step did not wrap.
///
/// A loop needs one order for all its laps: numbers that go up in unsigned order on some laps and in signed order on
/// others may go round for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    up: bool,
    /// The least step, not 0.
    step: u64,
    /// By [`ORDERS`].
    holds: [bool; 4],
}

impl Progress {
    /// What holds of laps of both kinds; `None` if together they need not end.
    pub(crate) fn with(self, b: Progress) -> Option<Progress> {
        let holds = std::array::from_fn(|i| self.holds[i] && b.holds[i]);
        let both = Progress { up: self.up, step: self.step.min(b.step), holds };
        (self.up == b.up && holds.contains(&true)).then_some(both)
    }

    /// What holds of all laps, if `before` holds of those before this one.
    pub(crate) fn after(self, before: Option<Progress>) -> Option<Progress> {
        before.map_or(Some(self), |b| b.with(self))
    }

    /// Most laps while the counter stays in `range`.
    pub(crate) fn laps(self, range: Scalar) -> u64 {
        let widths = ORDERS.iter().zip(self.holds).filter(|(_, holds)| *holds).map(|(order, _)| {
            let (lo, hi) = order.bounds(range);
            u64::try_from(hi - lo).unwrap_or(u64::MAX)
        });
        widths.min().unwrap_or(u64::MAX) / self.step.max(1)
    }
}

impl State {
    /// The number at that place of the running frame.
    pub(crate) fn counter(&self, at: Counter) -> Option<Num> {
        let v = match at {
            Counter::Laps => return self.laps(),
            Counter::Reg(r) => self.reg(r),
            Counter::Stack(start, size) => {
                self.stack(self.current())?.read(start.into(), size.into()).ok()?
            }
        };
        match v {
            Value::Num(n) => Some(n),
            _ => None,
        }
    }

    /// Remembers the counter of invariant `of`, as at the start of a lap. False if it is no number that can be linked.
    pub(crate) fn haunt(&mut self, of: u32, at: Counter, region: (Pc, Pc)) -> bool {
        let Some(num) = self.link_counter(at) else { return false };
        let frame = self.current();
        self.ghosts_mut().retain(|g| g.of != of);
        self.ghosts_mut().push(Ghost { of, frame, region, num });
        true
    }

    fn link_counter(&mut self, at: Counter) -> Option<Num> {
        let mut n = self.counter(at)?;
        if n.s.as_const().is_some() {
            return None;
        }
        if n.id == 0 {
            n.id = self.fresh_id();
            match at {
                Counter::Laps => self.set_laps(n),
                Counter::Reg(r) => self.set(r, Value::Num(n)),
                Counter::Stack(start, size) => {
                    let frame = self.current();
                    self.stack_mut(frame)?.relink(start.into(), size.into(), n)?;
                }
            }
        }
        Some(n)
    }

    /// How the counter has moved since the run last passed invariant `of`, if it has for sure.
    pub(crate) fn progress(&self, of: u32, at: Counter) -> Option<Progress> {
        let ghost = self.ghosts().iter().find(|g| g.of == of && g.frame == self.current())?;
        let now = self.counter(at)?;
        if now.id == 0 || now.id != ghost.num.id {
            return None;
        }
        moved(now.s, now.delta.wrapping_sub(ghost.num.delta), now.half || ghost.num.half)
    }

    /// Forgets the ghosts of loops that the run, now at `pc`, has left.
    pub(crate) fn lay_ghosts(&mut self, pc: Pc) {
        let current = self.current();
        let gone =
            |g: &Ghost| g.frame > current || (g.frame == current && !(g.region.0 <= pc && pc <= g.region.1));
        if self.ghosts().iter().any(gone) {
            self.ghosts_mut().retain(|g| !gone(g));
        }
    }
}

/// `now` is the old number plus `by`, modulo 2^64, or 2^32 for the low halves alone. If `now` is not among the numbers that
/// wrapping leads to, nothing wrapped.
fn moved(now: Scalar, by: i64, half: bool) -> Option<Progress> {
    let low = i64::from(by as i32);
    // The step of the halves is that of the whole only if it is small.
    let (by, whole) = if half { (low, false) } else { (by, true) };
    let step = i128::from(by).abs();
    let holds = ORDERS.map(|order| {
        let applies = if order.half { by == low } else { whole };
        let ((lowest, highest), (lo, hi)) = (order.limits(), order.bounds(now));
        // An upward step that wraps ends below `step` above the lowest number; a downward one as near to the highest.
        applies && if by > 0 { lo >= lowest + step } else { hi <= highest - step }
    });
    let step = u64::try_from(step).ok()?;
    (by != 0 && holds.contains(&true)).then_some(Progress { up: by > 0, step, holds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{AluOp, Width};
    use crate::verify::domain::Tnum;

    fn between(lo: i64, hi: i64) -> Scalar {
        let bits = Scalar::from_tnum(Tnum::range(0, (hi - lo) as u64));
        assert_eq!(bits.umax(), (hi - lo) as u64, "a range that a tnum can say");
        bits.alu(AluOp::Add, Scalar::constant(lo as u64), Width::W64)
    }

    /// Up, step, and whether it holds in the orders of the whole (unsigned, signed) and of the half.
    fn orders(now: Scalar, by: i64, half: bool) -> Option<(bool, u64, [bool; 4])> {
        moved(now, by, half).map(|p| (p.up, p.step, p.holds))
    }

    #[test]
    fn a_step_counts_only_if_nothing_wraps() {
        let all = [true; 4];
        assert_eq!(orders(between(1, 8), 1, false), Some((true, 1, all)));
        assert_eq!(orders(Scalar::unknown(), 1, false), None);
        assert_eq!(orders(Scalar::unknown(), -1, false), None);
        assert_eq!(orders(between(0, 7), 0, false), None);
        assert_eq!(orders(between(0, 7), 1, false), Some((true, 1, [false, true, false, true])));
        assert_eq!(orders(between(0, 7), -1, false), Some((false, 1, all)));
        assert_eq!(orders(between(-8, -1), 1, false), Some((true, 1, all)));
        assert_eq!(orders(between(-8, 7), -3, false), Some((false, 3, [false, true, false, true])));
        assert_eq!(orders(between(-8, 7), i64::MIN, false), None);
        // Of the halves nothing follows for the whole, and a step that is only small in its low half is none of the whole.
        assert_eq!(orders(between(0, 7), -1, true), Some((false, 1, [false, false, true, true])));
        assert_eq!(orders(between(0, 7), -1 << 32, true), None);
        assert_eq!(orders(between(0, 7), (1 << 32) - 1, true), Some((false, 1, [false, false, true, true])));
        assert_eq!(
            orders(between(0, 7), -(1 << 33), false),
            Some((false, 1 << 33, [true, true, false, false]))
        );
    }

    /// 0 to 2^63 goes up in unsigned order, 2^63 to 0 in signed order: together they make a circle.
    #[test]
    fn laps_of_different_orders_do_not_make_a_measure() {
        let unsigned = Progress { up: true, step: 1, holds: [true, false, false, false] };
        let signed = Progress { up: true, step: 1, holds: [false, true, false, false] };
        assert_eq!(unsigned.with(signed), None);
        assert_eq!(unsigned.with(Progress { up: false, ..unsigned }), None);
        assert_eq!(unsigned.with(Progress { step: 4, ..unsigned }), Some(unsigned));
    }

    #[test]
    fn laps_are_bounded_in_an_order_that_holds() {
        let all = Progress { up: true, step: 1, holds: [true; 4] };
        assert_eq!(all.laps(between(0, 1023)), 1023);
        assert_eq!(Progress { step: 4, ..all }.laps(between(0, 1023)), 255);
        assert_eq!(all.laps(between(-8, 7)), 15);
        assert_eq!(Progress { holds: [true, false, false, false], ..all }.laps(between(-8, 7)), u64::MAX);
        assert_eq!(
            Progress { holds: [false, false, true, false], ..all }.laps(between(-8, 7)),
            u32::MAX.into()
        );
    }
}
