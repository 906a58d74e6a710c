//! [`StackUse`]: how much of each function's stack is used, and the limit on a whole chain of calls, *as the kernel counts*
//! (`check_max_stack_depth`, kernel/bpf/verifier.c, with its JIT):
//!
//! - a function's stack is what lies between its r10 and the lowest byte that an accepted access may touch, in units of 16;
//! - the stacks of a chain of calls add up to at most 512 bytes, over at most eight functions, the entry included; taking
//!   a function's address counts as calling it, whether or not the code can be reached;
//! - a function other than the entry that makes tail calls has less than 256 bytes of its callers below it.
//!
//! Our runtime has room for 512 bytes in each of eight frames; what the kernel refuses is refused all the same.

use super::Machine;
use super::explain::{Refusal, refuse};
use super::helpers::TAIL_CALL;
use super::rejection::RejectKind as K;
use crate::isa::{Imm64, Insn, Pc};
use crate::limits::{MAX_FRAMES, STACK_BYTES};
use crate::program::{Func, Program};
use std::cell::Cell;
use std::collections::BTreeMap;

/// A function with tail calls may have so much stack below it, less one (Linux: 33 calls of 256 bytes are 8 KiB).
const TAIL_CALL_BYTES: u32 = 256;

/// The deepest byte of each function's stack that an access may touch.
pub(crate) struct StackUse {
    /// By function: its start, and bytes below its r10.
    used: Vec<(Pc, Cell<u32>)>,
}

/// A call, or an address taken.
struct Edge {
    at: Pc,
    to: usize,
}

impl StackUse {
    pub(crate) fn new(program: &Program) -> StackUse {
        StackUse { used: program.funcs().iter().map(|f| (f.start, Cell::new(0))).collect() }
    }

    /// Forgets what the search has noted: it may have looked at more than the proof does.
    pub(crate) fn reset(&self) {
        self.used.iter().for_each(|(_, used)| used.set(0));
    }

    /// Notes an access to the stack of the function that starts at `func`, from `off` bytes (negative) on.
    pub(crate) fn note(&self, func: Pc, off: i64) {
        if let Ok(i) = self.used.binary_search_by_key(&func, |(start, _)| *start) {
            let bytes = u32::try_from(off.saturating_neg()).unwrap_or(0).next_multiple_of(8);
            let used = &self.used[i].1;
            used.set(used.get().max(bytes));
        }
    }

    /// Bytes of function `i`, as the kernel rounds them.
    fn bytes(&self, i: usize) -> u32 {
        self.used[i].1.get().next_multiple_of(16)
    }
}

impl Machine<'_> {
    /// Holds every chain of calls against the limit; the call that goes too far.
    pub(crate) fn check_depth(&self) -> Result<(), (Pc, Box<Refusal>)> {
        let edges: Vec<Vec<Edge>> = self.program.funcs().iter().map(|f| self.edges(f)).collect();
        // By function: the most bytes that lie below its frame on a chain of so many calls, and the last of them.
        let funcs = self.program.funcs();
        let index = |pc: &Pc| funcs.binary_search_by_key(pc, |f| f.start).ok();
        let roots: Vec<Pc> = self.program.roots();
        let mut level: BTreeMap<usize, (u32, Pc)> =
            roots.iter().filter_map(|pc| Some((index(pc)?, (0, *pc)))).collect();
        for frames in 1..=MAX_FRAMES {
            let mut next: BTreeMap<usize, (u32, Pc)> = BTreeMap::new();
            for (&i, &(below, at)) in &level {
                let total = self.fits(i, below, at, frames)?;
                for e in &edges[i] {
                    let slot = next.entry(e.to).or_insert((total, e.at));
                    *slot = (*slot).max((total, e.at));
                }
            }
            level = next;
        }
        match level.first_key_value() {
            None => Ok(()),
            Some((&i, &(_, at))) => {
                let name = &self.program.funcs()[i].name;
                let why = format!("call of {name}: more than {MAX_FRAMES} frames");
                Err((at, Refusal::new(K::CallDepth, None, why)))
            }
        }
    }

    /// Bytes of the chain with the frame of function `i`, which is called at `at`.
    fn fits(&self, i: usize, below: u32, at: Pc, frames: u32) -> Result<u32, (Pc, Box<Refusal>)> {
        let func = &self.program.funcs()[i];
        let total = below + self.stack.bytes(i);
        let name = &func.name;
        if total > STACK_BYTES {
            let own = self.stack.bytes(i);
            let why = format!(
                "{name} has {own} bytes of stack and its callers {below}: {frames} frames of {total} bytes, at most \
                 {STACK_BYTES} are allowed together"
            );
            return refuse(K::StackDepth, why).map_err(|r| (at, r));
        }
        if i != 0 && below >= TAIL_CALL_BYTES && self.tail_calls(func) {
            let why = format!(
                "{name} makes tail calls, and its callers have {below} bytes of stack; less than {TAIL_CALL_BYTES} are allowed"
            );
            return refuse(K::StackDepth, why).map_err(|r| (at, r));
        }
        Ok(total)
    }

    fn insns(&self, func: &Func) -> impl Iterator<Item = (Pc, &crate::isa::Insn)> {
        let slots = (func.start.0..func.end.0).map(Pc);
        slots.filter_map(|pc| Some((pc, self.program.insn(pc)?)))
    }

    fn tail_calls(&self, func: &Func) -> bool {
        self.insns(func).any(|(_, insn)| matches!(insn, Insn::CallHelper { id: TAIL_CALL }))
    }

    fn edges(&self, func: &Func) -> Vec<Edge> {
        let target = |insn: &Insn| match *insn {
            Insn::CallLocal { target } | Insn::LoadImm64 { imm: Imm64::Func(target), .. } => Some(target),
            _ => None,
        };
        let funcs = self.program.funcs();
        let edge = |(at, insn): (Pc, &Insn)| {
            let to = funcs.binary_search_by_key(&target(insn)?, |f| f.start).ok()?;
            Some(Edge { at, to })
        };
        self.insns(func).filter_map(edge).collect()
    }
}
