//! Calls and returns: helpers by their signatures, bpf-to-bpf calls into a new frame. What the arguments of a helper must be
//! is in [`args`](super::args), what its callbacks do in [`callback`](super::callback).

use super::Machine;
use super::args::Args;
use super::domain::Scalar;
use super::env::{HelperSig, RankLabel, RetKind, ReturnRule};
use super::explain::{Duty, refuse, refuse_reg};
use super::helpers::{self, calls_back};
use super::rejection::RejectKind as K;
use super::state::State;
use super::transfer::{Flow, Outcome};
use super::value::{Home, Ptr, Value};
use crate::isa::{MapIdx, Pc, Reg};
use crate::limits::MAX_FRAMES;

/// The largest error number (Linux `MAX_ERRNO`).
const MAX_ERRNO: i64 = 4095;

impl Machine<'_> {
    /// A call of helper `id` at `pc`, which goes on at `next`.
    pub(crate) fn call_helper(
        &self,
        state: &mut State,
        (pc, next): (Pc, Pc),
        id: u32,
        out: &mut Outcome,
    ) -> Duty<Flow> {
        let Some(sig) = self.env.helper(id) else { return self.unknown_helper(id) };
        if state.lock().is_some() && id != helpers::SPIN_UNLOCK {
            return refuse(
                K::SpinLock,
                format!("{} is called while a spin lock is held; only spin_unlock may be", sig.name),
            );
        }
        let mut args = self.arguments(state, sig, out)?;
        out.call = Some(args.fact);
        self.fill(state, &args, sig)?;
        match id {
            helpers::SPIN_LOCK => state.set_lock(args.lock),
            helpers::SPIN_UNLOCK => state.set_lock(None),
            helpers::TAIL_CALL => return self.tail_call(state, args.fact.map, next),
            _ if calls_back(id) => return self.call_back(state, (pc, next), sig, &args),
            _ => {}
        }
        if let Some(reference) = args.released.take() {
            state.release(reference);
        }
        let result = self.result(state, sig, &args)?;
        state.clobber();
        state.set(Reg::R0, result);
        Ok(Flow::Next(next))
    }

    fn unknown_helper<T>(&self, id: u32) -> Duty<T> {
        let offered: Vec<String> = self.env.helpers.iter().map(|h| format!("{} {}", h.id, h.name)).collect();
        let list = if offered.is_empty() { "none".to_string() } else { offered.join(", ") };
        refuse(
            K::UnknownHelper,
            format!("helper {id} is not offered to hook {}; offered: {list}", self.env.hook),
        )
    }

    /// What the helper leaves in r0.
    fn result(&self, state: &mut State, sig: &HelperSig, args: &Args) -> Duty<Value> {
        let object = |home, id| Value::Ptr(Ptr { home, off: Scalar::constant(0), id, nullable: true });
        Ok(match (sig.ret, args.fact.map) {
            (RetKind::Scalar, _) => Value::num(Scalar::unknown(), sig.label),
            (RetKind::Length, _) => {
                let (any, bounds) = (Scalar::unknown(), (-MAX_ERRNO, args.most_bytes.into()));
                Value::num(Scalar::from_bounds(any.tnum(), (any.umin(), any.umax()), bounds), sig.label)
            }
            (RetKind::Void, _) => Value::Uninit,
            (RetKind::MapValueOrNull, Some(map)) => object(Home::Map(map), state.fresh_id()),
            (RetKind::RecordOrNull, Some(map)) => {
                object(Home::Record(map, args.record_bytes), state.acquire())
            }
            (RetKind::MapValueOrNull | RetKind::RecordOrNull, None) => {
                return refuse(K::Internal, format!("helper {} returns a value of no map", sig.name));
            }
        })
    }

    /// A tail call finds no program and goes on, or the function ends with what the program returns, which may be anything:
    /// the program itself ends if this is its entry function, whose result the target is verified to give. Targets in
    /// the slots are verified as programs of their own, from the entry state; the runtime has no stack for them below that of
    /// callers.
    fn tail_call(&self, state: &mut State, map: Option<MapIdx>, next: Pc) -> Duty<Flow> {
        let named = map.is_some_and(|m| self.program.tail_targets(m).next().is_some());
        if named && state.depth() > 1 {
            let why =
                "a tail call into a program array that holds programs is offered in entry functions alone";
            return refuse(K::Unsupported, why);
        }
        if !state.refs().is_empty() {
            let why =
                "tail_call while a ring-buffer record is held: the program that follows cannot give it back";
            return refuse(K::Reference, why);
        }
        state.clobber();
        if state.depth() == 1 {
            return Ok(Flow::Next(next));
        }
        let mut left = state.clone();
        left.set(Reg::R0, Value::num(Scalar::unknown(), RankLabel::RankLocal));
        match self.exit(&mut left)? {
            Flow::Next(ret) => Ok(Flow::Branch { taken: Some((ret, left)), fall: Some(next) }),
            _ => refuse(K::Internal, "a callee has no caller"),
        }
    }

    pub(crate) fn call_local(&self, state: &mut State, pc: Pc, target: Pc, ret: Pc) -> Duty<Flow> {
        let func = self.enterable(state, target)?;
        let caller = self.program.func_at(pc);
        if ret >= caller.end {
            return refuse(K::FallsThrough, format!("the call returns past the end of {}", caller.name));
        }
        if state.lock().is_some() && func.global {
            let why = format!("{} is called while a spin lock is held; make it static", func.name);
            return refuse(K::SpinLock, why);
        }
        state.push(func.start, ret, &self.live.across(pc, ret));
        Ok(Flow::Next(target))
    }

    /// May another frame, of that function, begin?
    pub(crate) fn enterable(&self, state: &State, target: Pc) -> Duty<&crate::program::Func> {
        let func = self.program.func_at(target);
        if state.depth() >= MAX_FRAMES as usize {
            return refuse(K::CallDepth, format!("call of {}: more than {MAX_FRAMES} frames", func.name));
        }
        if state.runs(func.start) {
            return refuse(K::CallDepth, format!("{} calls itself", func.name));
        }
        Ok(func)
    }

    pub(crate) fn exit(&self, state: &mut State) -> Duty<Flow> {
        if state.in_callback() {
            self.callback_returns(state)?;
            return Ok(state.pop().map_or(Flow::Exit, Flow::Next));
        }
        if state.depth() > 1 {
            // A function without a result leaves r0 unset; its caller cannot read it then.
            let v = state.reg(Reg::R0);
            if State::points_into(&v, state.current()) {
                return refuse_reg(
                    K::BadReturn,
                    Reg::R0,
                    "r0 points into the stack of the function that returns",
                );
            }
            return Ok(state.pop().map_or(Flow::Exit, Flow::Next));
        }
        if state.lock().is_some() {
            return refuse(K::SpinLock, "a spin lock is still held at exit");
        }
        if !state.refs().is_empty() {
            return refuse(K::Reference, self.held(state.refs().len()));
        }
        let v = self.read(state, Reg::R0)?;
        if self.env.ret == ReturnRule::Scalar && v.is_pointer() {
            let why = format!("r0 is {} at exit, must be a number", self.describe(&v));
            return refuse_reg(K::PointerLeak, Reg::R0, why);
        }
        Ok(Flow::Exit)
    }

    /// That so many references are still held, in words.
    pub(crate) fn held(&self, count: usize) -> String {
        match count {
            1 => "a ring-buffer record is still held at exit, neither submitted nor discarded".to_owned(),
            n => format!("{n} ring-buffer records are still held at exit, neither submitted nor discarded"),
        }
    }
}
