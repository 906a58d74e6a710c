//! [`turns`]: of all jumps on a path to a refusal, those that a reader needs: each decides whether the refused
//! instruction is come to, tests the value at fault, or passes by what would have initialised it. Rounds of a loop become one
//! turn; of a jump that was passed often, the last time counts.

use super::flow::{Flow, Loop};
use super::trace::{Point, Trace, ValueId};
use crate::isa::{Insn, Pc, Reg};
use crate::program::Program;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a reader should know of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A conditional jump.
    Branch {
        /// It jumped.
        taken: bool,
    },
    /// The head of a loop that the refused instruction is in.
    Loop {
        the_loop: Loop,
        /// Times that the head was come to, from 1.
        round: usize,
    },
    /// A call that has not returned.
    Call,
}

/// What was never written, or never done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Register(Reg),
    /// The byte so far from r10, in the running function.
    Stack(i64),
    /// A call of one of these helpers.
    Call(&'static [u32]),
}

impl Missing {
    /// Does the instruction make up for it?
    fn is_written_by(self, insn: &Insn) -> bool {
        match (self, *insn) {
            (Missing::Register(r), insn) => sets(&insn) == Some(r),
            (Missing::Stack(at), Insn::Store { size, base: Reg::FP, off, .. }) => {
                (off.into()..i64::from(off) + i64::from(size.bytes())).contains(&at)
            }
            (Missing::Call(ids), Insn::CallHelper { id }) => ids.contains(&id),
            (Missing::Stack(_) | Missing::Call(_), _) => false,
        }
    }
}

/// The register that an instruction sets.
pub(super) fn sets(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Endian { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. } => Some(dst),
        Insn::Atomic { fetch: true, src, .. } => Some(src),
        Insn::CallHelper { .. } | Insn::CallReg { .. } | Insn::CallLocal { .. } => Some(Reg::R0),
        Insn::Atomic { .. } | Insn::Store { .. } | Insn::Jump { .. } | Insn::JumpIf { .. } | Insn::Exit => {
            None
        }
    }
}

/// The steps that matter, in order, by their index.
pub(super) fn turns(
    program: &Program,
    trace: &Trace,
    fault: ValueId,
    missing: Option<Missing>,
) -> Vec<(usize, Turn)> {
    let mut found: BTreeMap<usize, Turn> = BTreeMap::new();
    for r in trace.running.iter().skip(1) {
        found.insert(r.called_at, Turn::Call);
    }
    let judge = Judge::new(program, trace, fault, missing);
    let mut last: HashMap<(usize, Pc), usize> = HashMap::new();
    for (i, p) in trace.points.iter().enumerate() {
        let Some(taken) = judge.branch(i).filter(|taken| judge.matters(i, *taken)) else { continue };
        if let Some(earlier) = last.insert((p.call, p.pc), i) {
            found.remove(&earlier);
        }
        found.insert(i, Turn::Branch { taken });
    }
    for (i, turn) in judge.rounds() {
        found.entry(i).or_insert(turn);
    }
    found.into_iter().collect()
}

struct Judge<'a> {
    program: &'a Program,
    trace: &'a Trace,
    /// By running call: its control flow, its deciding jumps.
    running: BTreeMap<usize, (Flow<'a>, BTreeSet<Pc>)>,
    /// What the value at fault is a copy of, or was made of.
    roots: BTreeSet<ValueId>,
    missing: Option<Missing>,
    /// The innermost call, and the places of the path in it.
    innermost: (usize, BTreeSet<Pc>),
    /// Answers of `other_way_writes`, by the jump and its outcome.
    passed: RefCell<HashMap<(Pc, bool), bool>>,
}

impl<'a> Judge<'a> {
    fn new(program: &'a Program, trace: &'a Trace, fault: ValueId, missing: Option<Missing>) -> Judge<'a> {
        let of = |at: usize| {
            let pc = trace.points[at].pc;
            let flow = Flow::new(program, program.func_at(pc));
            let deciders = flow.deciders(pc);
            (flow, deciders)
        };
        let running = trace.running.iter().map(|r| (r.call, of(r.at))).collect();
        let roots = trace.slice(fault).into_iter().map(|id| trace.root(id)).collect();
        let call = trace.running.last().map_or(0, |r| r.call);
        let places = trace.points.iter().filter(|p| p.call == call).map(|p| p.pc).collect();
        Judge {
            program,
            trace,
            running,
            roots,
            missing,
            innermost: (call, places),
            passed: RefCell::default(),
        }
    }

    /// Was the jump at that step taken? `None` if it is no conditional jump, or the path ends there.
    fn branch(&self, i: usize) -> Option<bool> {
        let (p, next) = (self.trace.points.get(i)?, self.trace.points.get(i + 1)?);
        match self.program.insn(p.pc)? {
            Insn::JumpIf { target, .. } => Some(next.pc == *target),
            _ => None,
        }
    }

    fn matters(&self, i: usize, taken: bool) -> bool {
        let p = &self.trace.points[i];
        let decides = self.running.get(&p.call).is_some_and(|(_, deciders)| deciders.contains(&p.pc));
        decides || self.tests_the_fault(p) || self.passes_by(p, taken)
    }

    fn tests_the_fault(&self, p: &Point) -> bool {
        p.uses.iter().any(|id| *id != 0 && self.roots.contains(&self.trace.root(*id)))
    }

    /// Would the other way have written what is missing?
    fn passes_by(&self, p: &Point, taken: bool) -> bool {
        if self.missing.is_none() {
            return false;
        }
        let known = self.passed.borrow().get(&(p.pc, taken)).copied();
        known.unwrap_or_else(|| {
            let passes = self.other_way_writes(p, taken);
            self.passed.borrow_mut().insert((p.pc, taken), passes);
            passes
        })
    }

    fn other_way_writes(&self, p: &Point, taken: bool) -> bool {
        let (call, places) = &self.innermost;
        let (Some(missing), true) = (self.missing, p.call == *call) else { return false };
        let Some((flow, _)) = self.running.get(call) else { return false };
        let ways = flow.after(p.pc);
        let other = ways.get(usize::from(!taken)).filter(|_| ways.len() == 2);
        other.is_some_and(|o| flow.passes(*o, |pc| places.contains(&pc), |i| missing.is_written_by(i)))
    }

    /// For each loop that a running call is in: the step where its last round began.
    fn rounds(&self) -> Vec<(usize, Turn)> {
        let mut found = Vec::new();
        for r in &self.trace.running {
            let Some((flow, _)) = self.running.get(&r.call) else { continue };
            let at = self.trace.points[r.at].pc;
            for the_loop in flow.loops().into_iter().filter(|l| l.holds(at)) {
                if let Some(turn) = self.round(r.call, r.at, the_loop) {
                    found.push(turn);
                }
            }
        }
        found
    }

    /// Where the last round of the loop around a step began, if it is not the first.
    fn round(&self, call: usize, at: usize, the_loop: Loop) -> Option<(usize, Turn)> {
        let mine = self.trace.points[..=at].iter().enumerate().rev().filter(|(_, p)| p.call == call);
        let (mut first, mut rounds, mut entered_at) = (None, 0, the_loop.head);
        for (i, p) in mine.take_while(|(_, p)| the_loop.holds(p.pc)) {
            entered_at = p.pc;
            if p.pc == the_loop.head {
                first.get_or_insert(i);
                rounds += 1;
            }
        }
        // Compilers let a loop begin behind its head.
        let round = rounds + usize::from(entered_at != the_loop.head);
        first.filter(|_| round > 1).map(|i| (i, Turn::Loop { the_loop, round }))
    }
}
