//! [`Explanation`]: all that a person wants to know of a refusal: the way that leads there, where the value at fault
//! came from, what the registers hold, and what to change.
//!
//! Nothing of this is worked out while a program is verified. [`Verifier::explain`] runs the search of a refused program again, with
//! a recorder, and reads the path off it; the search is deterministic, so that it ends at the same refusal.
//!
//! | file | what |
//! |---|---|
//! | `trace` | the path with its values numbered |
//! | `flow`, `turns` | which of its jumps a reader needs |
//! | `words` | names and values in words |
//! | `source` | names out of the text of source lines |
//! | `advice/` | what to change, for the commonest mistakes |

use super::explore::explore_watched;
use super::rejection::RejectKind as K;
use super::stack::StackFault;
use super::state::State;
use super::trail::{Recorder, Trail};
use super::value::{Home, Value};
use super::{Machine, Rejection, Verifier, helpers};
use crate::isa::{Insn, Pc, Reg};
use crate::limits::STACK_BYTES;
use crate::program::{Program, SourceLine};
use std::collections::BTreeMap;
use trace::Trace;
use turns::{Missing, Turn, turns};
use words::Scene;
pub(super) use words::number_words;

mod advice;
mod flow;
mod source;
#[cfg(all(test, feature = "asm"))]
mod tests;
mod trace;
mod turns;
mod words;

/// Turns of a path that are told; earlier ones are only counted.
const MAX_TURNS: usize = 8;
/// Makers of the value at fault that are told: the latest two of those that it began with, and the latest others.
const MAX_ORIGINS: usize = 6;

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Function that holds the instruction.
    pub func: String,
    /// The instruction, in slots from the program's start.
    pub pc: Pc,
    /// Its source line, where the object has line info.
    pub source: Option<SourceLine>,
}

/// What a path does at a [`PathStep`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathKind {
    /// A conditional jump.
    Branch {
        /// The jump was taken.
        taken: bool,
        /// What is known after it, as `n_nodes <= 8`.
        condition: String,
        /// Line where the path goes on, if that is another one.
        next_line: Option<u32>,
    },
    /// The head of a loop that the refused instruction is in.
    Loop {
        /// Times that the path came there, from 1.
        round: usize,
        /// What is known after the loop's own test.
        condition: Option<String>,
    },
    /// A call that has not returned.
    Call {
        /// The function that is called.
        callee: String,
    },
}

/// One turn of the path to a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// Where.
    pub site: Site,
    /// What happens there.
    pub kind: PathKind,
}

/// A step that made the value at fault, or one that it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Where.
    pub site: Site,
    /// How it was made and what is known of it, as `r2 = 4 bytes of the context, n_nodes: any 32-bit number`.
    pub text: String,
    /// It is made of no other value: read from memory, returned by a helper, or a constant.
    pub is_source: bool,
}

/// A line of an example of how to change the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixLine {
    /// The line's number, for a line that is there.
    pub line: Option<u32>,
    /// ' ' stays, '-' goes, '+' comes.
    pub mark: char,
    /// The text.
    pub text: String,
}

/// Why a program is refused, at length.
#[derive(Clone, Debug)]
pub struct Explanation {
    rejection: Rejection,
    path: Vec<PathStep>,
    left_out: usize,
    origins: Vec<Origin>,
    registers: Vec<(String, String)>,
    hint: Option<String>,
    fix: Vec<FixLine>,
}

impl Explanation {
    /// The refusal, as [`Verifier::verify`] gives it.
    pub fn rejection(&self) -> &Rejection {
        &self.rejection
    }
    /// The turns of the path that leads there, the first one first. Of many, the last.
    pub fn path(&self) -> &[PathStep] {
        &self.path
    }
    /// Earlier turns that [`path`](Self::path) leaves out.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
    /// Where the value at fault came from, the first maker first.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }
    /// Registers and stack slots before the refused instruction, by name, in the notation of the kernel's log.
    pub fn registers(&self) -> &[(String, String)] {
        &self.registers
    }
    /// What to change: names the map, the variable and the bound where they are known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
    /// The change as an example, in lines; empty where none is known.
    pub fn fix(&self) -> &[FixLine] {
        &self.fix
    }
}

impl Verifier {
    /// Explains why a program is refused; `None` for one that is accepted. Takes a multiple of the time of [`Verifier::verify`].
    pub fn explain(&self, program: &Program) -> Option<Explanation> {
        let m = Machine::new(program, &self.env);
        let mut recorder = Recorder::default();
        let searched = explore_watched(&m, Some(&mut recorder)).err();
        let in_search = searched.is_some();
        // What is refused after the search, for all paths together, has no path to tell.
        let rejection = searched.or_else(|| self.verify(program.clone()).err())?;
        let scene =
            if in_search { Scene::set(&m, &rejection, &recorder) } else { Scene::bare(&m, &rejection) };
        let (hint, fix) = match advice::advise(&scene) {
            Some(advice) => (Some(advice.hint), advice.fix),
            None => (rejection.hint().map(str::to_owned), Vec::new()),
        };
        let (path, left_out) = scene.path();
        let registers = scene.state().map_or(Vec::new(), |s| m.notation(s));
        let origins = scene.origins();
        Some(Explanation { path, left_out, origins, registers, hint, fix, rejection: rejection.clone() })
    }
}

impl<'a> Scene<'a> {
    /// Without a path.
    fn bare(m: &'a Machine<'a>, rejection: &'a Rejection) -> Scene<'a> {
        let (trace, states) = (Trace::new(m.program, &[]), BTreeMap::new());
        Scene { m, rejection, trace, last: None, states, fault: 0, missing: None, turns: Vec::new() }
    }

    fn set(m: &'a Machine<'a>, rejection: &'a Rejection, recorder: &Recorder) -> Scene<'a> {
        let trace = Trace::new(m.program, &recorder.path());
        let fault = rejection.reg().map_or(0, |r| trace.at_end(r));
        let last = recorder.last_state().cloned();
        let mut scene = Scene { trace, fault, last, ..Scene::bare(m, rejection) };
        scene.missing = scene.find_missing();
        if !scene.trace.points.is_empty() {
            scene.turns = turns(m.program, &scene.trace, fault, scene.missing);
        }
        scene.states = scene.revisit();
        scene
    }

    /// Runs the search once more and keeps the states that are told of.
    fn revisit(&self) -> BTreeMap<Trail, State> {
        let made = self.trace.slice(self.fault).into_iter().filter_map(|id| self.trace.maker(id));
        let steps = self.turns.iter().map(|(i, _)| *i).chain(made);
        let mut recorder = Recorder::keeping(steps.map(|i| self.trace.points[i].trail));
        // It is refused again; what counts is the record.
        drop(explore_watched(self.m, Some(&mut recorder)));
        recorder.into_states()
    }

    /// What was never written, for a refusal that says so.
    fn find_missing(&self) -> Option<Missing> {
        match (self.kind(), self.rejection.reg()) {
            (K::UninitRegister, Some(reg)) => Some(Missing::Register(reg)),
            (K::UninitStack, Some(reg)) => self.unwritten_byte(reg).map(Missing::Stack),
            (K::Reference, None) => Some(Missing::Call(&[helpers::RINGBUF_SUBMIT, helpers::RINGBUF_DISCARD])),
            (K::SpinLock, None) => Some(Missing::Call(&[helpers::SPIN_UNLOCK])),
            _ => None,
        }
    }

    /// The first byte that was never written, from r10, of what `reg` points to.
    fn unwritten_byte(&self, reg: Reg) -> Option<i64> {
        let state = self.state()?;
        let Value::Ptr(p) = state.reg(reg) else { return None };
        let Home::Stack(frame) = p.home else { return None };
        let off = match self.insn()? {
            Insn::Load { off, .. } | Insn::Atomic { off, .. } => i64::from(*off),
            _ => 0,
        };
        let start = usize::try_from(p.off.smin() + off + i64::from(STACK_BYTES)).ok()?;
        let len = (STACK_BYTES as usize).checked_sub(start)?;
        match state.stack(frame)?.check_numbers(start, len) {
            Err(StackFault::Uninit(at)) => Some(at as i64 - i64::from(STACK_BYTES)),
            _ => None,
        }
    }

    fn site(&self, pc: Pc) -> Site {
        let program = self.m.program;
        Site { func: program.func_at(pc).name.clone(), pc, source: program.line_at(pc).cloned() }
    }

    /// The turns in words, and how many are left out.
    fn path(&self) -> (Vec<PathStep>, usize) {
        let steps = self.turns.iter().filter_map(|(i, turn)| self.path_step(*i, *turn)).collect();
        let steps = merge_loops(steps);
        let left_out = steps.len().saturating_sub(MAX_TURNS);
        (steps[left_out..].to_vec(), left_out)
    }

    fn path_step(&self, step: usize, turn: Turn) -> Option<PathStep> {
        let pc = self.pc(step);
        Some(match turn {
            Turn::Branch { taken } => {
                let (here, next) = (self.line(step), self.line(step + 1));
                let next_line = next.map(|l| l.line).filter(|l| here.is_none_or(|h| h.line != *l));
                let condition = self.condition(step, taken)?;
                PathStep { site: self.site(pc), kind: PathKind::Branch { taken, condition, next_line } }
            }
            Turn::Loop { the_loop, round } => {
                let mut lines = [the_loop.last, the_loop.head].map(|pc| self.site(pc)).into_iter();
                let says_so = |s: &Site| s.source.as_ref().is_some_and(|l| source::is_loop(&l.text));
                let site = lines.find(says_so).unwrap_or_else(|| self.site(the_loop.head));
                PathStep { site, kind: PathKind::Loop { round, condition: None } }
            }
            Turn::Call => {
                let callee = self.m.program.func_at(self.pc(step + 1)).name.clone();
                PathStep { site: self.site(pc), kind: PathKind::Call { callee } }
            }
        })
    }

    /// The makers of the value at fault, the latest of them.
    fn origins(&self) -> Vec<Origin> {
        let defs = self.trace.slice(self.fault).into_iter().filter_map(|id| self.trace.def(id));
        let mut made: Vec<(usize, Reg, bool)> =
            defs.filter_map(|d| Some((d.step?, d.reg, d.is_source()))).collect();
        made.sort_unstable();
        let mut room = MAX_ORIGINS - made.iter().filter(|m| m.2).count().min(2);
        let (mut sources, mut kept) = (MAX_ORIGINS - room, Vec::new());
        for m in made.iter().rev() {
            let left = if m.2 && sources > 0 { &mut sources } else { &mut room };
            if *left > 0 {
                *left -= 1;
                kept.push(m);
            }
        }
        let origin = |&(i, reg, is_source): &(usize, Reg, bool)| Origin {
            site: self.site(self.pc(i)),
            text: self.making(i, reg),
            is_source,
        };
        kept.into_iter().rev().map(origin).collect()
    }
}

/// A loop and the tests on its line become one step: compilers test before the loop and at its end.
fn merge_loops(steps: Vec<PathStep>) -> Vec<PathStep> {
    let line = |s: &PathStep| s.site.source.as_ref().map(|l| (l.file.clone(), l.line));
    let is_loop = |s: &PathStep| matches!(s.kind, PathKind::Loop { .. });
    let loops: Vec<_> = steps.iter().filter(|s| is_loop(s)).filter_map(line).collect();
    let mut tests = BTreeMap::new();
    let mut out: Vec<PathStep> = Vec::new();
    for step in steps {
        match (&step.kind, line(&step)) {
            (PathKind::Branch { condition, .. }, Some(at)) if loops.contains(&at) => {
                tests.insert(at, condition.clone());
            }
            _ => out.push(step),
        }
    }
    for step in &mut out {
        let test = line(step).and_then(|at| tests.get(&at).cloned());
        if let PathKind::Loop { condition, .. } = &mut step.kind {
            *condition = test;
        }
    }
    out
}
