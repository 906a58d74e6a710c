//! Callbacks: `loop` and `for_each_map_elem`, which call a function of the program again and again.
//!
//! The call at `P` is one place of the abstract machine to which each lap comes back. It judges its arguments and then goes one
//! of two ways: *done*, on to the next instruction, with r0 to r5 as after any helper; or *one lap*, into a new frame of the
//! callback, which returns to `P`. The caller's frame keeps its registers while the helper runs, so that `P` finds the
//! arguments as they were; its flag `resumed` tells the first visit from those after a lap. `P` is a head, where states are
//! compared: what a callback does to its caller's stack must come to a fixed point, or stay within the budget.

use super::Machine;
use super::args::Args;
use super::domain::Scalar;
use super::env::{HelperSig, RankLabel};
use super::explain::{Duty, refuse, refuse_reg};
use super::rejection::RejectKind as K;
use super::state::State;
use super::transfer::Flow;
use super::value::{Home, Ptr, Value};
use crate::isa::{MapIdx, Pc, Reg};
use crate::limits::MAX_LOOPS;

/// What a helper that calls back gives when its arguments are refused at run time: `-EINVAL`, `-E2BIG`.
const ERRORS: [i64; 2] = [-22, -7];

/// What the laps of one call are.
struct Laps {
    /// r1 to r5 of the callback; `None` where no lap is possible.
    args: Option<[Value; 5]>,
    /// Most laps.
    most: u64,
    label: RankLabel,
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
        let mut lap = state.clone();
        let laps = match args.fact.map {
            Some(map) => self.laps_of_map(&mut lap, map, sig)?,
            None => self.laps_of_loop(state, sig)?,
        };
        let taken = match laps.args {
            None => None,
            Some(regs) => {
                let func = self.enterable(&lap, target)?;
                lap.push_callback(func.start, pc, regs, &self.live.across_callback(pc));
                Some((target, lap))
            }
        };
        state.end_laps();
        state.clobber();
        state.set(Reg::R0, Value::num(result(laps.most), laps.label));
        Ok(Flow::Branch { taken, fall: Some(next) })
    }

    /// `loop(n, callback, ctx, flags)`: `callback(i, ctx)`, `i` from 0; of `n` only the low half counts.
    fn laps_of_loop(&self, state: &State, sig: &HelperSig) -> Duty<Laps> {
        let Value::Num(n) = self.read(state, Reg::R1)? else {
            return refuse(K::Internal, "loop without a number of laps");
        };
        let count = n.s.zero_extend(32);
        let most = if count.umin() > MAX_LOOPS { 0 } else { count.umax().min(MAX_LOOPS) };
        let index = Scalar::at_most(most.saturating_sub(1));
        let none = Value::Uninit;
        let regs = [Value::num(index, n.label), state.reg(Reg::R3), none, none, none];
        Ok(Laps { args: (most > 0).then_some(regs), most, label: n.label.max(sig.label) })
    }

    /// `for_each_map_elem(map, callback, ctx, flags)`: `callback(map, key, value, ctx)`.
    fn laps_of_map(&self, lap: &mut State, m: MapIdx, sig: &HelperSig) -> Duty<Laps> {
        let key = Value::pointer(Home::Key(m), 0);
        let id = lap.fresh_id();
        let value = Ptr { home: Home::Map(m), off: Scalar::constant(0), id, nullable: false };
        let regs = [Value::MapObject(m), key, Value::Ptr(value), lap.reg(Reg::R3), Value::Uninit];
        Ok(Laps { args: Some(regs), most: self.map(m)?.max_entries.into(), label: sig.label })
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

/// The number of laps that were made, or an error.
fn result(most: u64) -> Scalar {
    ERRORS.iter().fold(Scalar::at_most(most), |s, e| s.join(Scalar::constant(*e as u64)))
}

/// What these helpers hand to each lap.
pub(crate) const CONTEXT: Reg = Reg::R3;
