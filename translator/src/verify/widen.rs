//! [`invariant`]: guesses a state that holds on every lap of a loop, so that the loop need not be unrolled.
//!
//! Nothing here is trusted. The guess starts at the state at hand, is widened by what comes back after a lap, number by
//! number up to the next rung of a [`Ladder`] (the numbers that the loop compares with), until what comes back is included;
//! then the search goes on from it as from any state, and [`check`](super::check) proves it like any other.

use super::Machine;
use super::domain::{Scalar, Tnum};
use super::ghost::{Counter, Ghost, Progress};
use super::state::State;
use super::transfer::Flow;
use super::value::Num;
use crate::isa::{Insn, Operand, Pc, Reg, Width};
use std::collections::{BTreeSet, HashMap};

/// Laps after which a guess that still grows is given up.
const MAX_ROUNDS: u32 = 32;
/// Rungs of a ladder.
const MAX_RUNGS: usize = 64;
/// States seen at one place inside the loop until its numbers are let go.
const INNER_STATES: usize = 6;
/// Numbers of one loop that are looked at as its counter.
const MAX_COUNTERS: usize = 16;
/// Instructions that one guess may look at.
pub(crate) const MAX_STEPS: u64 = 50_000;

/// A loop that has an invariant: where, and what shows that it ends.
pub(crate) struct Guess {
    pub(crate) state: State,
    pub(crate) counter: Counter,
}

/// Places with a ghost each, and its name.
type Counters = Vec<(u32, Counter)>;

/// Numbers that a growing bound is rounded to, outwards.
#[derive(Default)]
struct Ladder(BTreeSet<u64>);

impl Ladder {
    /// The ends of a number that is compared with, and their neighbours: tests are strict or not, before or after the step.
    fn note(&mut self, s: Scalar, width: Width) {
        let s = if width == Width::W32 { s.zero_extend(32) } else { s };
        for end in [s.umin(), s.umax(), s.smin() as u64, s.smax() as u64] {
            if self.0.len() < MAX_RUNGS {
                self.0.extend([end.wrapping_sub(1), end, end.wrapping_add(1)]);
            }
        }
    }

    /// A number that includes `old` and `new`, and is on the ladder where `new` is outside of `old`.
    fn widen(&self, old: Scalar, new: Scalar) -> Scalar {
        let up = |x: u64| self.0.range(x..).next().copied().unwrap_or(u64::MAX);
        let down = |x: u64| self.0.range(..=x).next_back().copied().unwrap_or(0);
        let signed = |x: &u64| *x as i64;
        let sup = |x: i64| self.0.iter().map(signed).filter(|s| *s >= x).min().unwrap_or(i64::MAX);
        let sdown = |x: i64| self.0.iter().map(signed).filter(|s| *s <= x).max().unwrap_or(i64::MIN);
        let (u, v) = ((old.umin(), old.umax()), (new.umin(), new.umax()));
        let (s, t) = ((old.smin(), old.smax()), (new.smin(), new.smax()));
        let umin = if v.0 < u.0 { down(v.0) } else { u.0 };
        let umax = if v.1 > u.1 { up(v.1) } else { u.1 };
        let smin = if t.0 < s.0 { sdown(t.0) } else { s.0 };
        let smax = if t.1 > s.1 { sup(t.1) } else { s.1 };
        // Bits below the first that changed stay: a step of 8 keeps the counter aligned.
        let joined = old.tnum().join(new.tnum());
        let changed = joined.mask & !(old.tnum().mask);
        let bits = if changed == 0 {
            joined
        } else {
            let mask = joined.mask | (u64::MAX << changed.trailing_zeros());
            Tnum { value: joined.value & !mask, mask }
        };
        Scalar::from_bounds(bits, (umin, umax), (smin, smax))
    }
}

struct Prober<'a> {
    m: &'a Machine<'a>,
    head: Pc,
    region: (Pc, Pc),
    depth: usize,
    ladder: Ladder,
    /// Ghosts of numbers that have grown since the start.
    widened: Vec<u32>,
    steps: u64,
}

/// Guesses an invariant of the loop `region` that includes `start`, a state at its head. Also the work done, in instructions.
pub(crate) fn invariant(m: &Machine<'_>, start: &State, region: (Pc, Pc)) -> (Option<Guess>, u64) {
    let (head, depth) = (region.0, start.depth());
    let mut p = Prober { m, head, region, depth, ladder: Ladder::default(), widened: Vec::new(), steps: 0 };
    let guess = p.solve(start);
    (guess, p.steps)
}

impl Prober<'_> {
    fn solve(&mut self, start: &State) -> Option<Guess> {
        let mut s = start.clone();
        for _ in 0..MAX_ROUNDS {
            let (counters, arrivals) = self.lap(&s, start)?;
            let mut grown = s.clone();
            for a in &arrivals {
                if !a.is_subset(&grown) {
                    let ladder = &self.ladder;
                    grown = grown.widened(a, &mut |x, y| ladder.widen(x, y))?;
                    grown.clean(self.head, &self.m.live.at(self.head));
                }
            }
            if arrivals.iter().all(|a| a.is_subset(&s)) {
                if !start.is_subset(&s) {
                    return None;
                }
                let counter = measure(&s, &counters, &arrivals)?;
                return Some(Guess { state: s, counter });
            }
            s = grown;
        }
        None
    }

    /// Goes round once from `s`: the counters that have a ghost, by its name, and all states that come back.
    fn lap(&mut self, s: &State, first: &State) -> Option<(Counters, Vec<State>)> {
        let mut start = s.clone();
        let mut counters = Vec::new();
        self.widened.clear();
        for (i, at) in (0..).zip(counters_of(s)) {
            let name = u32::MAX - i;
            if start.haunt(name, at, self.region) {
                counters.push((name, at));
                let same = s.counter(at).map(|n| n.s) == first.counter(at).map(|n| n.s);
                self.widened.extend(Some(name).filter(|_| !same));
            }
        }
        let mut seen: HashMap<Pc, Vec<State>> = HashMap::new();
        let mut arrivals = Vec::new();
        let mut work = vec![(self.head, start, true)];
        while let Some((mut pc, mut state, mut fresh)) = work.pop() {
            while fresh || self.goes_on(&mut pc, &mut state, s, &mut seen, &mut arrivals) {
                fresh = false;
                self.steps += 1;
                if self.steps > MAX_STEPS {
                    return None;
                }
                self.note(pc, &state);
                match self.m.step(&mut state, pc).map(|out| out.flow) {
                    Ok(Flow::Next(to)) => pc = to,
                    Ok(Flow::Branch { taken, fall }) => {
                        work.extend(taken.map(|(to, other)| (to, other, false)));
                        let Some(fall) = fall else { break };
                        pc = fall;
                    }
                    // What is refused here will be judged where the guess is tried.
                    Ok(Flow::Exit) | Err(_) => break,
                }
            }
        }
        Some((counters, arrivals))
    }

    /// Before an instruction: does this path stay in the loop, at a place not seen like this?
    fn goes_on(
        &mut self,
        pc: &mut Pc,
        state: &mut State,
        start: &State,
        seen: &mut HashMap<Pc, Vec<State>>,
        arrivals: &mut Vec<State>,
    ) -> bool {
        let depth = state.depth();
        let inside = self.region.0 <= *pc && *pc <= self.region.1;
        if depth < self.depth || (depth == self.depth && !inside) {
            return false;
        }
        if !self.m.heads.contains(*pc) {
            return true;
        }
        state.clean(*pc, &self.m.live.at(*pc));
        if *pc == self.head && state.same_calls(start) {
            arrivals.push(state.clone());
            return false;
        }
        let states = seen.entry(*pc).or_default();
        if states.iter().any(|s| state.is_subset(s)) {
            return false;
        }
        let alike = states.iter().filter(|s| s.same_calls(state)).count();
        if alike >= INNER_STATES
            && let Some(last) = states.iter().rev().find(|s| s.same_calls(state))
        {
            let Some(wide) = last.widened(state, &mut |_, _| Scalar::unknown()) else { return false };
            *state = wide;
            state.clean(*pc, &self.m.live.at(*pc));
        }
        states.push(state.clone());
        true
    }

    fn note(&mut self, pc: Pc, state: &State) {
        if let Some(Insn::CallHelper { id }) = self.m.program.insn(pc)
            && let Some(most) = self.m.most_laps(state, *id)
        {
            self.ladder.note(most, Width::W64);
        }
        let Some(Insn::JumpIf { width, dst, src, .. }) = self.m.program.insn(pc) else { return };
        let operands = match src {
            Operand::Imm(k) => {
                self.ladder.note(Scalar::constant(i64::from(*k) as u64), *width);
                return;
            }
            Operand::Reg(r) => [*dst, *r],
        };
        for r in operands {
            if let Some(n) = state.counter(Counter::Reg(r))
                && !self.counts(state, n)
            {
                self.ladder.note(n.s, *width);
            }
        }
    }
}

impl Prober<'_> {
    /// Is that a counter on its way? Its own bounds are no rungs.
    fn counts(&self, state: &State, n: Num) -> bool {
        let mine = |g: &&Ghost| g.of > u32::MAX - MAX_COUNTERS as u32 && g.num.id == n.id && n.id != 0;
        let moved = |g: &Ghost| g.num.delta != n.delta || self.widened.contains(&g.of);
        state.ghosts().iter().filter(mine).any(moved)
    }
}

/// Numbers of the running frame that are not one constant: laps, registers, stack slots.
fn counters_of(s: &State) -> Vec<Counter> {
    let regs = (0..Reg::COUNT).filter_map(|i| Reg::new(i as u8)).map(Counter::Reg);
    let regs = std::iter::once(Counter::Laps).chain(regs);
    let spills = s.stack(s.current()).map_or(&[][..], |stack| stack.spills());
    let slots = spills.iter().map(|s| Counter::Stack(s.start(), s.size()));
    let varies = |at: &Counter| s.counter(*at).is_some_and(|n| n.s.as_const().is_none());
    regs.chain(slots).filter(varies).take(MAX_COUNTERS).collect()
}

/// The counter that moves the same way on every lap, and has the least room to do so in `s`; `None` if no lap comes back.
fn measure(s: &State, counters: &[(u32, Counter)], arrivals: &[State]) -> Option<Counter> {
    let laps = |(name, at): &(u32, Counter)| {
        let mut laps = arrivals.iter().map(|a| a.progress(*name, *at));
        let first = laps.next()??;
        let all = laps.try_fold(first, |all: Progress, p| all.with(p?))?;
        Some((s.counter(*at).map_or(u64::MAX, |n| all.laps(n.s)), *at))
    };
    counters.iter().filter_map(laps).min_by_key(|(laps, _)| *laps).map(|(_, at)| at)
}
