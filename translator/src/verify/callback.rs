//! Callbacks: `loop` and `for_each_map_elem`, which call a function of the program again and again.
//!
//! The call at `P` is one place of the abstract machine to which each lap comes back. It judges its arguments and then goes one
//! of two ways: *done*, on to the next instruction, with r0 to r5 as after any helper; or *one lap*, into a new frame of the
//! callback, which returns to `P`. The caller's frame keeps its registers while the helper runs, so that `P` finds the
//! arguments as they were, and counts the laps: a number like any other, which no instruction can touch. So a helper that calls
//! back is a loop of one instruction with a counter, and is proved to end as loops are: unrolled, or by an invariant
//! ([`widen`](super::widen)).

use super::Machine;
use super::args::Args;
use super::domain::{Rel, Scalar};
use super::env::{HelperSig, RankLabel};
use super::explain::{Duty, refuse, refuse_reg};
use super::helpers;
use super::rejection::RejectKind as K;
use super::state::State;
use super::transfer::Flow;
use super::value::{Home, Num, Ptr, Value};
use crate::isa::{MapIdx, Pc, Reg, Width};
use crate::limits::MAX_LOOPS;
use crate::map::MapKind;

/// What the helpers give at run time for flags that are not 0: `-EINVAL`.
const BAD_FLAGS: i64 = -22;
/// And for more laps than [`MAX_LOOPS`]: `-E2BIG`.
const TOO_MANY: i64 = -7;

/// What a visit of the call may come to.
struct Visit {
    /// How many laps there can be in all; `None` if there can be none.
    most: Option<Scalar>,
    /// What the helper may give without a lap: 0 for an empty loop, and errors.
    idle: Option<Scalar>,
    label: RankLabel,
}

impl Visit {
    fn may_give(&mut self, code: i64) {
        let code = Scalar::constant(code as u64);
        self.idle = Some(self.idle.map_or(code, |s| s.join(code)));
    }
}

impl Machine<'_> {
    pub(crate) fn call_back(
        &self,
        state: &mut State,
        (pc, next): (Pc, Pc),
        sig: &HelperSig,
        args: &Args,
    ) -> Duty<Flow> {
        let Some(target) = args.callback else {
            return refuse(K::Internal, format!("helper {} calls nothing back", sig.name));
        };
        let visit = self.visit(state, sig, args.fact.map)?;
        let made = state.laps().map_or(Scalar::constant(0), |n| n.s);
        let lap = visit.most.and_then(|most| Scalar::assume(made, most, Rel::Ult, Width::W64));
        let taken = match lap {
            None => None,
            Some((made, _)) => {
                let mut lap = state.clone();
                let index = begin_lap(&mut lap, made, visit.label);
                let func = self.enterable(&lap, target)?;
                let regs = lap_arguments(&mut lap, index, args.fact.map);
                lap.push_callback(func.start, pc, regs, &self.live.across_callback(pc));
                Some((target, lap))
            }
        };
        // Once a lap was made, its number is what the helper gives.
        let result = if state.laps().is_some() { Some(made) } else { visit.idle };
        state.end_laps();
        state.clobber();
        if let Some(s) = result {
            state.set(Reg::R0, Value::num(s, visit.label));
        }
        Ok(match (&taken, result) {
            (None, None) => Flow::Exit,
            _ => Flow::Branch { taken, fall: result.map(|_| next) },
        })
    }

    fn visit(&self, state: &State, sig: &HelperSig, map: Option<MapIdx>) -> Duty<Visit> {
        let Value::Num(flags) = self.read(state, Reg::R4)? else {
            return refuse(K::Internal, format!("{} without flags", sig.name));
        };
        let (label, empty, too_many) = match (map, state.reg(Reg::R1)) {
            (None, Value::Num(n)) => {
                let all = n.s.zero_extend(32);
                (n.label.max(sig.label), all.contains(0), all.umax() > MAX_LOOPS)
            }
            (Some(m), _) => (sig.label, self.map(m)?.kind.is_hash(), false),
            _ => return refuse(K::Internal, format!("{} without a number of laps", sig.name)),
        };
        let most = self.most_laps(state, sig.id).filter(|_| flags.s.contains(0));
        let mut visit = Visit { most, idle: None, label };
        if empty && flags.s.contains(0) {
            visit.may_give(0);
        }
        if flags.s.as_const() != Some(0) {
            visit.may_give(BAD_FLAGS);
        }
        if too_many {
            visit.may_give(TOO_MANY);
        }
        Ok(visit)
    }

    /// How many laps the arguments of a helper that calls back allow: for `loop(n, ..)` the low half of `n`, unless that is more
    /// than [`MAX_LOOPS`]; for `for_each_map_elem(map, ..)` one for each entry that there is. `None` if no lap is possible.
    pub(crate) fn most_laps(&self, state: &State, id: u32) -> Option<Scalar> {
        match (id, state.reg(Reg::R1)) {
            (helpers::LOOP, Value::Num(n)) => {
                let limit = Scalar::constant(MAX_LOOPS);
                Scalar::assume(n.s.zero_extend(32), limit, Rel::Ule, Width::W64).map(|(n, _)| n)
            }
            (helpers::FOR_EACH_MAP_ELEM, Value::MapObject(m)) => {
                let map = self.map(m).ok()?;
                let entries = Scalar::constant(map.max_entries.into());
                let fixed = matches!(map.kind, MapKind::Array | MapKind::PercpuArray);
                Some(if fixed { entries } else { Scalar::at_most(map.max_entries.into()) })
            }
            _ => None,
        }
    }

    /// The running callback returns: 0 or 1, with all given back that it took.
    pub(crate) fn callback_returns(&self, state: &State) -> Duty {
        let why = |found: &str| format!("r0 is {found} at the end of a callback, must be 0 or 1");
        match self.read(state, Reg::R0)? {
            Value::Num(n) if n.s.umax() <= 1 => {}
            Value::Num(n) => {
                return refuse_reg(K::Callback, Reg::R0, why(&super::explain::span(n.s)));
            }
            v => return refuse_reg(K::Callback, Reg::R0, why(&self.describe(&v))),
        }
        let mine = state.refs().iter().filter(|r| r.scope == state.current()).count();
        if mine > 0 {
            return refuse(K::Reference, self.held(mine));
        }
        Ok(())
    }
}

/// Counts a lap that begins after `made`, and its index.
fn begin_lap(lap: &mut State, made: Scalar, label: RankLabel) -> Value {
    let mut n = lap.laps().map_or(Num::new(made, label), |n| Num { s: made, ..n });
    if n.id == 0 && made.as_const().is_none() {
        n.id = lap.fresh_id();
    }
    lap.set_laps(n);
    Value::Num(n)
}

/// r1 to r5 of a callback: `(index, ctx)` of `loop`, `(map, key, value, ctx)` of `for_each_map_elem`.
fn lap_arguments(lap: &mut State, index: Value, map: Option<MapIdx>) -> [Value; 5] {
    let (context, none) = (lap.reg(CONTEXT), Value::Uninit);
    let Some(m) = map else { return [index, context, none, none, none] };
    let (off, id) = (Scalar::constant(0), lap.fresh_id());
    let value = Value::Ptr(Ptr { home: Home::Map(m), off, id, nullable: false });
    [Value::MapObject(m), Value::pointer(Home::Key(m), 0), value, context, none]
}

/// What these helpers hand to each lap.
pub(crate) const CONTEXT: Reg = Reg::R3;
