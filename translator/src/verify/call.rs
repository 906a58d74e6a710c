//! Calls and returns: helpers by their signatures, bpf-to-bpf calls into a new frame.

use super::Machine;
use super::domain::Scalar;
use super::env::{ArgKind, HelperSig, RetKind, ReturnRule};
use super::explain::{Duty, refuse, refuse_reg};
use super::fact::CallFact;
use super::rejection::RejectKind as K;
use super::state::State;
use super::transfer::{Flow, Outcome};
use super::value::{Home, Ptr, Value};
use crate::isa::{MapIdx, Pc, Reg};
use crate::limits::MAX_FRAMES;
use crate::map::MapKind;

/// Helpers that change the map: `map_update_elem`, `map_delete_elem`.
const CHANGE_MAP: [u32; 2] = [2, 3];

impl Machine<'_> {
    pub(crate) fn call_helper(&self, state: &mut State, id: u32, out: &mut Outcome) -> Duty {
        let Some(sig) = self.env.helper(id) else {
            let offered: Vec<String> =
                self.env.helpers.iter().map(|h| format!("{} {}", h.id, h.name)).collect();
            let list = if offered.is_empty() { "none".to_string() } else { offered.join(", ") };
            return refuse(
                K::UnknownHelper,
                format!("helper {id} is not offered to hook {}; offered: {list}", self.env.hook),
            );
        };
        let mut fact = CallFact { map: None, key: None, value: None };
        for (r, kind) in (1..=5).filter_map(Reg::new).zip(&sig.args) {
            self.argument(state, sig, r, *kind, &mut fact, out)?;
        }
        let result = match sig.ret {
            RetKind::Scalar => Value::num(Scalar::unknown(), sig.label),
            RetKind::MapValueOrNull => {
                let Some(map) = fact.map else {
                    return refuse(K::Internal, format!("helper {} returns a value of no map", sig.name));
                };
                let id = state.fresh_id();
                Value::Ptr(Ptr { home: Home::Map(map), off: Scalar::constant(0), id, nullable: true })
            }
        };
        state.clobber();
        state.set(Reg::R0, result);
        out.call = Some(fact);
        Ok(())
    }

    fn argument(
        &self,
        state: &State,
        sig: &HelperSig,
        r: Reg,
        kind: ArgKind,
        fact: &mut CallFact,
        out: &mut Outcome,
    ) -> Duty {
        let v = self.read(state, r)?;
        match kind {
            ArgKind::Scalar => match v {
                Value::Num(_) => Ok(()),
                v => self.wrong_argument(sig, r, &v, "a number"),
            },
            ArgKind::MapObject => match v {
                Value::MapObject(m) => {
                    self.map_argument(sig, r, m)?;
                    fact.map = Some(m);
                    Ok(())
                }
                v => self.wrong_argument(sig, r, &v, "a map"),
            },
            ArgKind::MapKey | ArgKind::MapValue => {
                let Some(m) = fact.map else {
                    return refuse(K::Internal, format!("helper {} takes a key of no map", sig.name));
                };
                let map = self.map(m)?;
                let size = if kind == ArgKind::MapKey { map.key_size } else { map.value_size };
                let place = self.readable(state, r, size)?;
                out.reads(&place);
                let access = Some(place.access(state.current()));
                if kind == ArgKind::MapKey {
                    fact.key = access;
                } else {
                    fact.value = access;
                }
                Ok(())
            }
        }
    }

    fn wrong_argument(&self, sig: &HelperSig, r: Reg, v: &Value, needed: &str) -> Duty {
        let found = self.describe(v);
        refuse_reg(K::HelperArg, r, format!("{}: {r} is {found}, must be {needed}", sig.name))
    }

    fn map_argument(&self, sig: &HelperSig, r: Reg, m: MapIdx) -> Duty {
        let map = self.map(m)?;
        if map.kind == MapKind::Global {
            let why = format!("{}: {} is global data, not a map for helpers", sig.name, map.name);
            return refuse_reg(K::HelperArg, r, why);
        }
        if map.read_only && CHANGE_MAP.contains(&sig.id) {
            return refuse_reg(K::ReadOnlyMap, r, format!("{}: map {} is read-only", sig.name, map.name));
        }
        Ok(())
    }

    pub(crate) fn call_local(&self, state: &mut State, pc: Pc, target: Pc, ret: Pc) -> Duty<Flow> {
        let func = self.program.func_at(target);
        if state.depth() >= MAX_FRAMES as usize {
            return refuse(K::CallDepth, format!("call of {}: more than {MAX_FRAMES} frames", func.name));
        }
        let caller = self.program.func_at(pc);
        let active = state.returns().any(|p| self.program.func_at(p).start == func.start);
        if active || caller.start == func.start {
            return refuse(K::CallDepth, format!("{} calls itself", func.name));
        }
        if ret >= caller.end {
            return refuse(K::FallsThrough, format!("the call returns past the end of {}", caller.name));
        }
        state.push(ret, &self.live.across(pc, ret));
        Ok(Flow::Next(target))
    }

    pub(crate) fn exit(&self, state: &mut State) -> Duty<Flow> {
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
        let v = self.read(state, Reg::R0)?;
        if self.env.ret == ReturnRule::Scalar && v.is_pointer() {
            let why = format!("r0 is {} at exit, must be a number", self.describe(&v));
            return refuse_reg(K::PointerLeak, Reg::R0, why);
        }
        Ok(Flow::Exit)
    }
}
