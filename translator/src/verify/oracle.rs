//! [`Invariants`]: what the second pass saw before each instruction, to be held against concrete runs by a [`Trace`]. For tests (feature `interp`).
//!
//! *Facts contain the trace*: a program that was accepted is run by the reference interpreter, and at each
//! instruction the concrete registers and stack bytes must lie in one of the abstract states kept for that place.

use super::state::State;
use super::value::{Home, Num, Value};
use super::{Region, Rejection, Verified, Verifier};
use crate::interp::{Memory, Regs, key_address};
use crate::isa::semantics::{compare, operand};
use crate::isa::{Insn, MapIdx, Pc};
use crate::limits::STACK_BYTES;
use crate::program::Program;
use crate::wasm::layout::{CTX_PTR, MAP_OBJECT_TAG, MAP_TAG, PRIVATE_TAG, STACK_TOP};

/// The abstract states before each instruction.
#[derive(Debug)]
pub struct Invariants {
    states: Vec<Vec<State>>,
}

impl Verifier {
    /// [`Verifier::verify`], with the invariants that it proved. Takes memory in proportion to the work done.
    ///
    /// # Errors
    /// As [`Verifier::verify`].
    pub fn verify_traced(&self, program: Program) -> Result<(Verified, Invariants), Rejection> {
        let mut states: Vec<Vec<State>> = vec![Vec::new(); program.len()];
        let verified = self.prove(program, |pc, s| {
            if let Some(at) = states.get_mut(pc.index()) {
                at.push(s.clone());
            }
        })?;
        Ok((verified, Invariants { states }))
    }
}

impl Invariants {
    /// Abstract states kept before `pc`.
    pub fn count(&self, pc: Pc) -> usize {
        self.states.get(pc.index()).map_or(0, Vec::len)
    }

    /// To be held against one run.
    pub fn trace(&self) -> Trace<'_> {
        Trace { states: &self.states, last: vec![0; self.states.len()] }
    }
}

/// One run beside its invariants.
#[derive(Debug)]
pub struct Trace<'a> {
    states: &'a [Vec<State>],
    /// By slot: the state in which the run lay when it came there last. Where a loop was unrolled,
    /// the next round lies in one of the next.
    last: Vec<usize>,
}

impl Trace<'_> {
    /// Do the registers and the stack before `pc` lie in one of the states, and in the facts?
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn admit(&mut self, v: &Verified, pc: Pc, regs: &Regs, memory: &Memory) -> Result<(), String> {
        let world = World { program: &v.program, regs, memory };
        let states = self.states.get(pc.index()).map_or(&[][..], Vec::as_slice);
        let last = self.last.get(pc.index()).copied().unwrap_or(0);
        let order = (last..states.len()).chain(0..last);
        let Some(found) = order.into_iter().find(|&i| world.lies_in(&states[i])) else {
            let shown = &states[..states.len().min(4)];
            return Err(format!("slot {pc}: {regs:#x?} lies in none of {} states: {shown:#?}", states.len()));
        };
        self.last[pc.index()] = found;
        match v.fact(pc) {
            None => Err(format!("slot {pc} is said to be out of reach")),
            Some(_) if !world.keeps_access(v, pc) => {
                Err(format!("slot {pc}: the access is not where the fact says"))
            }
            Some(_) if !world.keeps_ways(v, pc) => {
                Err(format!("slot {pc}: the jump goes where the fact says it cannot"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// A concrete state.
struct World<'a> {
    program: &'a Program,
    regs: &'a Regs,
    memory: &'a Memory,
}

impl World<'_> {
    fn lies_in(&self, s: &State) -> bool {
        let mut ids = Vec::new();
        s.depth() == self.memory.frames() as usize
            && s.regs().iter().zip(self.regs).all(|(v, x)| self.is(v, *x, &mut ids))
            && (0..s.depth()).all(|f| self.stack_lies_in(s, f, &mut ids))
    }

    fn stack_lies_in(&self, s: &State, frame: usize, ids: &mut Vec<(u32, u64, bool)>) -> bool {
        let Some(abstracted) = s.stack(frame as u8) else { return false };
        let size = STACK_BYTES as usize;
        let start = self.memory.stack().len() - size * (frame + 1);
        let bytes = &self.memory.stack()[start..start + size];
        abstracted.admits(bytes, |v, x| self.is(v, x, ids))
    }

    fn is(&self, v: &Value, x: u64, ids: &mut Vec<(u32, u64, bool)>) -> bool {
        let tag = |tag: u32, m: MapIdx| u64::from(tag + u32::from(m.0)) << 32;
        match v {
            Value::Uninit => true,
            Value::Num(n) => n.s.contains(x) && linked(n, x, ids),
            Value::MapObject(m) => x == tag(MAP_OBJECT_TAG, *m),
            Value::Func(pc) => x == u64::from(pc.0),
            Value::Ptr(p) if p.nullable && x == 0 => true,
            Value::Ptr(p) => match p.home {
                Home::Ctx => p.off.contains(x.wrapping_sub(CTX_PTR)),
                Home::Stack(f) => p.off.contains(x.wrapping_sub(frame_pointer(f))),
                Home::Map(m) => {
                    let rel = x.wrapping_sub(tag(MAP_TAG, m));
                    let entries = self.program.maps().get(usize::from(m.0)).map_or(0, |d| d.max_entries);
                    (0..u64::from(entries)).any(|e| p.off.contains(rel.wrapping_sub(e * self.stride(m))))
                }
                Home::Record(m, bytes) => self.memory.record_at(usize::from(m.0), bytes, |start| {
                    p.off.contains(x.wrapping_sub(tag(MAP_TAG, m) | u64::from(start)))
                }),
                Home::Key(_) => {
                    (0..self.memory.frames()).any(|f| p.off.contains(x.wrapping_sub(key_address(f))))
                }
            },
        }
    }

    fn stride(&self, m: MapIdx) -> u64 {
        let layout = self.program.maps().get(usize::from(m.0)).and_then(|d| d.layout());
        layout.map_or(8, |l| l.stride.into())
    }

    fn keeps_access(&self, v: &Verified, pc: Pc) -> bool {
        let (base, off) = match self.program.insn(pc) {
            Some(
                Insn::Load { base, off, .. } | Insn::Store { base, off, .. } | Insn::Atomic { base, off, .. },
            ) => (base, off),
            _ => return true,
        };
        let Some(access) = v.fact(pc).and_then(|f| f.access) else { return false };
        let addr = self.regs[base.index()].wrapping_add(i64::from(*off) as u64);
        let known = access.offset.map(|o| i64::from(o) as u64);
        let (tag, low) = ((addr >> 32) as u32, addr as u32);
        match access.region {
            Region::Mixed => true,
            Region::Ctx => {
                addr >= CTX_PTR && tag == PRIVATE_TAG && known.is_none_or(|o| addr == CTX_PTR.wrapping_add(o))
            }
            Region::Stack => {
                tag == PRIVATE_TAG
                    && low < STACK_TOP
                    && known.is_none_or(|o| addr == self.regs[10].wrapping_add(o))
            }
            Region::Key => tag == PRIVATE_TAG && low >= STACK_TOP && u64::from(low) < CTX_PTR & 0xffff_ffff,
            Region::Map(m) => {
                let fits = |o: u64| u64::from(low).wrapping_sub(o).is_multiple_of(self.stride(m));
                tag == MAP_TAG + u32::from(m.0) && known.is_none_or(fits)
            }
        }
    }

    fn keeps_ways(&self, v: &Verified, pc: Pc) -> bool {
        let Some(Insn::JumpIf { width, cond, dst, src, .. }) = self.program.insn(pc) else { return true };
        let Some(fact) = v.fact(pc) else { return false };
        let taken = compare(*width, *cond, self.regs[dst.index()], operand(*src, self.regs));
        if taken { fact.ways.taken } else { fact.ways.fallthrough }
    }
}

/// r10 of that frame.
fn frame_pointer(frame: u8) -> u64 {
    u64::from(PRIVATE_TAG) << 32 | u64::from(STACK_TOP - u32::from(frame) * STACK_BYTES)
}

/// Numbers with one id are equal, or their low halves are.
fn linked(n: &Num, x: u64, ids: &mut Vec<(u32, u64, bool)>) -> bool {
    if n.id == 0 {
        return true;
    }
    let x = x.wrapping_sub(n.delta as u64);
    match ids.iter_mut().find(|(id, ..)| *id == n.id) {
        Some((_, y, true)) if !n.half => {
            let same = *y as u32 == x as u32;
            // The whole is known now.
            ids.retain(|(id, ..)| *id != n.id);
            ids.push((n.id, x, false));
            same
        }
        Some((_, y, half)) => *y == x || ((*half || n.half) && *y as u32 == x as u32),
        None => {
            ids.push((n.id, x, n.half));
            true
        }
    }
}
