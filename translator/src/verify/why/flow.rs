//! [`Flow`]: the jumps of one function, and which of them decide whether a place is come to.

use crate::isa::{Insn, Pc};
use crate::program::{Func, Program};
use std::collections::{BTreeMap, BTreeSet};

/// Places from which others are judged; functions have seldom more jumps on one path.
const MAX_TARGETS: usize = 256;

/// A loop: its head, and the last jump back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) head: Pc,
    pub(super) last: Pc,
}

impl Loop {
    pub(super) fn holds(&self, pc: Pc) -> bool {
        self.head <= pc && pc <= self.last
    }
}

/// One function's control flow.
pub(super) struct Flow<'a> {
    program: &'a Program,
    start: Pc,
    end: Pc,
    before: Vec<Vec<Pc>>,
}

impl<'a> Flow<'a> {
    pub(super) fn new(program: &'a Program, func: &Func) -> Flow<'a> {
        let mut flow = Flow { program, start: func.start, end: func.end, before: Vec::new() };
        flow.before = vec![Vec::new(); func.end.index() - func.start.index()];
        for pc in flow.pcs() {
            for to in flow.after(pc) {
                flow.before[to.index() - func.start.index()].push(pc);
            }
        }
        flow
    }

    fn pcs(&self) -> impl Iterator<Item = Pc> + use<'a> {
        let program = self.program;
        (self.start.0..self.end.0).map(Pc).filter(|pc| program.insn(*pc).is_some())
    }

    /// Where execution may go on in this function; for a conditional jump, its target comes last.
    pub(super) fn after(&self, pc: Pc) -> Vec<Pc> {
        let Some(insn) = self.program.insn(pc) else { return Vec::new() };
        let next = pc.plus(insn.slots());
        let to = match *insn {
            Insn::Jump { target } => vec![target],
            Insn::JumpIf { target, .. } => vec![next, target],
            Insn::Exit => vec![],
            Insn::Alu { .. }
            | Insn::Neg { .. }
            | Insn::MovSx { .. }
            | Insn::Endian { .. }
            | Insn::LoadImm64 { .. }
            | Insn::Load { .. }
            | Insn::Store { .. }
            | Insn::Atomic { .. }
            | Insn::CallHelper { .. }
            | Insn::CallReg { .. }
            | Insn::CallLocal { .. } => vec![next],
        };
        to.into_iter().filter(|t| self.start <= *t && *t < self.end).collect()
    }

    /// Loops, by their heads.
    pub(super) fn loops(&self) -> Vec<Loop> {
        let mut loops: BTreeMap<Pc, Pc> = BTreeMap::new();
        for pc in self.pcs() {
            for head in self.after(pc).into_iter().filter(|t| *t <= pc) {
                let last = loops.entry(head).or_insert(pc);
                *last = pc.max(*last);
            }
        }
        loops.into_iter().map(|(head, last)| Loop { head, last }).collect()
    }

    /// Conditional jumps that decide whether `target` is come to: it cannot be missed on one way, and can on the other;
    /// and those that decide whether these are come to.
    pub(super) fn deciders(&self, target: Pc) -> BTreeSet<Pc> {
        let (mut found, mut work, mut done) = (BTreeSet::new(), vec![target], 0);
        while let Some(target) = work.pop() {
            let misses = self.can_miss(target);
            let misses = |pc: Pc| pc != target && misses[pc.index() - self.start.index()];
            for pc in self.pcs() {
                let ways = self.after(pc);
                let decides = ways.len() == 2 && misses(ways[0]) != misses(ways[1]);
                if decides && found.insert(pc) {
                    work.push(pc);
                }
            }
            done += 1;
            if done == MAX_TARGETS {
                break;
            }
        }
        found
    }

    /// By place: can the function be left from there without coming to `target`?
    fn can_miss(&self, target: Pc) -> Vec<bool> {
        let mut can = vec![false; self.before.len()];
        let mut work: Vec<Pc> = self
            .pcs()
            .filter(|pc| *pc != target && matches!(self.program.insn(*pc), Some(Insn::Exit)))
            .collect();
        while let Some(pc) = work.pop() {
            let at = pc.index() - self.start.index();
            if !std::mem::replace(&mut can[at], true) {
                work.extend(self.before[at].iter().filter(|p| **p != target));
            }
        }
        can
    }

    /// Does an instruction that `hit` picks lie on the way from `from` to a place where `stop` says so?
    pub(super) fn passes(&self, from: Pc, stop: impl Fn(Pc) -> bool, hit: impl Fn(&Insn) -> bool) -> bool {
        let (mut seen, mut work) = (BTreeSet::new(), vec![from]);
        while let Some(pc) = work.pop() {
            if stop(pc) || !seen.insert(pc) {
                continue;
            }
            if self.program.insn(pc).is_some_and(&hit) {
                return true;
            }
            work.extend(self.after(pc));
        }
        false
    }
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use super::*;
    use crate::isa::asm::assemble;

    fn deciders(text: &str, target: u32) -> Vec<u32> {
        let program = assemble(text, &[]).unwrap();
        let flow = Flow::new(&program, &program.funcs()[0]);
        flow.deciders(Pc(target)).into_iter().map(|pc| pc.0).collect()
    }

    /// A diamond before the place decides nothing; the jump around it does.
    #[test]
    fn only_jumps_that_can_miss_the_place_decide() {
        let text = "
            if r1 == 0 goto out
            if r1 == 1 goto other
            r3 = 1
        other:
            if r1 == 2 goto out
            r0 = 7
        out:
            exit";
        assert_eq!(deciders(text, 4), [0, 3]);
        assert_eq!(deciders(text, 2), [0, 1]);
        assert_eq!(deciders(text, 5), Vec::<u32>::new());
    }

    #[test]
    fn loops_have_a_head_and_a_last_jump() {
        let program = assemble("r1 = 0\nagain:\nr1 += 1\nif r1 < 9 goto again\nr0 = 0\nexit", &[]).unwrap();
        let flow = Flow::new(&program, &program.funcs()[0]);
        assert_eq!(flow.loops(), [Loop { head: Pc(1), last: Pc(2) }]);
        assert_eq!(flow.deciders(Pc(1)), BTreeSet::from([Pc(2)]));
    }
}
