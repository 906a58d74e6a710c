//! The verifier: path-sensitive abstract interpretation in the manner of Linux's.
//!
//! [`Verifier::verify`] turns a [`Program`] into a [`Verified`] one, or a [`Rejection`]. It works in two passes over the same
//! transfer rules: `explore` searches all paths and leaves a certificate, `check` re-proves the certificate
//! on its own and gathers a [`Fact`] per instruction. The parts:
//!
//! | file | what |
//! |---|---|
//! | `domain/` | abstract numbers: known bits and bounds, at 64 and 32 bits |
//! | `value`, `stack`, `state` | abstract registers, stack bytes, frames; inclusion |
//! | `transfer`, `mem`, `branch`, `call`, `args`, `callback` | what each instruction demands and does |
//! | `helpers` | the signatures of all helpers |
//! | `depth` | the stack of a chain of calls |
//! | `live` | what may be forgotten, so that paths meet again |
//! | `explore`, `check` | the search, and the independent proof |
//! | `sketch` | states at a glance, for speed |
//! | `explain` | refusals in words |
//! | `trail`, `why/` | the way to a refusal, found by a second search, and what to change |
//! | `notation` | states as the kernel's log writes them |
//!
//! A program is accepted only if on every path, whatever context, maps and helper results are: each register and
//! stack byte is written before it is read; each access stays inside its context field, frame or map value, with the right to
//! do it; pointers are not used as numbers where they would leak; and every path ends.
//!
//! ```
//! use ringfence_translator::{Env, Program, RejectKind, verify::Verifier};
//! use std::sync::Arc;
//!
//! let env = Arc::new(Env::generic(16));
//! // r0 = *(u64 *)(r1 + 8); exit
//! let good = Program::from_code("f", &[0x79, 0x10, 8, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]).unwrap();
//! assert_eq!(Verifier::new(env.clone()).verify(good).unwrap().stats().insns, 2);
//! // The same at offset 9 leaves the buffer.
//! let bad = Program::from_code("f", &[0x79, 0x10, 9, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]).unwrap();
//! assert_eq!(Verifier::new(env).verify(bad).unwrap_err().kind(), RejectKind::CtxOob);
//! ```
//!
//! No other way leads to a [`Verified`]:
//!
//! ```compile_fail,E0451
//! use ringfence_translator::{Env, Program, Verified, verify::Stats};
//! fn forge(program: Program, env: std::sync::Arc<Env>) -> Verified {
//!     Verified { program, facts: vec![], ctx_reads: vec![], env, stats: Stats::default() }
//! }
//! ```

use crate::isa::Pc;
use crate::program::Program;
use crate::wasm::cost;
use std::sync::Arc;

mod args;
mod bound;
mod branch;
mod call;
mod callback;
mod check;
mod depth;
mod domain;
pub(crate) mod env;
mod explain;
mod explore;
pub(crate) mod fact;
mod ghost;
pub(crate) mod helpers;
mod join;
mod live;
mod log;
mod mem;
#[cfg(all(test, feature = "asm", feature = "interp"))]
mod mutation;
mod notation;
#[cfg(feature = "interp")]
mod oracle;
pub(crate) mod rejection;
mod sketch;
mod speculate;
mod stack;
mod state;
mod trail;
mod transfer;
mod value;
mod why;
mod widen;

pub use env::{ArgKind, CtxField, CtxLayout, Env, HelperSig, RankLabel, RetKind, ReturnRule, Rights};
pub use fact::{Access, CallFact, Fact, Region, Ways};
#[cfg(feature = "interp")]
pub use oracle::{Invariants, Trace};
pub use rejection::{RejectKind, Rejection};
pub use why::{Explanation, FixLine, Origin, PathKind, PathStep, Site};

/// Work done by the verifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Visited instructions.
    pub insns: u64,
    /// States kept for pruning.
    pub states: u64,
    /// Most instructions that a run of the program executes, whatever it is given (saturating); 0 where it was refused
    /// before that was known.
    pub max_insns: u64,
    /// Most fuel that a run of the translated program takes: Wasm instructions, a call counted as
    /// [`CALL_COST`](crate::wasm::cost::CALL_COST), and a word that a helper copies as one. 0 where `max_insns` is.
    pub max_fuel: u64,
}

/// A program with a [`Fact`] per reachable instruction and the [`Env`] it was proved in.
/// Only [`Verifier::verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified {
    program: Program,
    facts: Vec<Option<Fact>>,
    ctx_reads: Vec<bool>,
    env: Arc<Env>,
    stats: Stats,
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The environment that it was proved in. It may run in no other.
    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// What was proved of the instruction at `pc`; `None` where no path leads.
    pub fn fact(&self, pc: Pc) -> Option<&Fact> {
        self.facts.get(pc.index())?.as_ref()
    }

    /// All facts, by slot.
    pub(crate) fn facts(&self) -> &[Option<Fact>] {
        &self.facts
    }

    /// Work done.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// For each of [`CtxLayout::fields`], in order: may the program, or a helper that it calls, read it?
    /// Empty for a buffer. A host need not fill the fields that say no.
    pub fn ctx_reads(&self) -> &[bool] {
        &self.ctx_reads
    }
}

/// Proves programs safe for one [`Env`].
#[derive(Clone, Debug)]
pub struct Verifier {
    env: Arc<Env>,
}

/// What the rules need to know besides the state.
pub(crate) struct Machine<'a> {
    program: &'a Program,
    env: &'a Env,
    live: live::Live,
    heads: explore::Heads,
    stack: depth::StackUse,
    /// Fuel of each slot's instruction.
    weights: Vec<u64>,
}

impl<'a> Machine<'a> {
    fn new(program: &'a Program, env: &'a Env) -> Machine<'a> {
        let (live, heads) = (live::Live::new(program, env), explore::Heads::new(program));
        let mut weights = vec![0; program.len()];
        for (pc, insn) in program.iter() {
            let joins = heads.contains(pc.plus(insn.slots()));
            weights[pc.index()] = cost::weight(program, pc, joins);
        }
        Machine { program, env, live, heads, stack: depth::StackUse::new(program), weights }
    }

    /// What the instruction at `pc` takes.
    fn work(&self, pc: Pc) -> bound::Work {
        bound::Work { insns: 1, fuel: self.weights.get(pc.index()).copied().unwrap_or(0) }
    }
}

impl Verifier {
    /// A verifier for that environment.
    pub fn new(env: Arc<Env>) -> Verifier {
        Verifier { env }
    }

    /// Proves that the program is safe.
    ///
    /// # Errors
    /// The first refusal found, in the order of a depth-first walk that falls through before it jumps.
    pub fn verify(&self, program: Program) -> Result<Verified, Rejection> {
        self.prove(program, |_, _| {})
    }

    /// Both passes; `seen` is shown each state of the second.
    fn prove(&self, program: Program, seen: impl FnMut(Pc, &state::State)) -> Result<Verified, Rejection> {
        let m = Machine::new(&program, &self.env);
        let cert = explore::explore(&m)?;
        m.stack.reset();
        let mut stats =
            Stats { insns: cert.visited, states: cert.nodes.len() as u64, max_insns: 0, max_fuel: 0 };
        let proof = match check::check(&m, &cert, seen) {
            Ok(proof) => proof,
            Err(gap) => {
                let why = format!("the second pass does not agree with the first: {}", gap.why);
                let refusal = explain::Refusal::new(RejectKind::Internal, None, why);
                return Err(m.reject(*refusal, gap.pc, stats));
            }
        };
        let most = proof.bound.work;
        (stats.max_insns, stats.max_fuel) = (most.insns, most.fuel.saturating_add(cost::ENTRY + 1));
        if stats.max_insns > self.env.run_budget {
            let (refusal, pc) = explain::too_long(&proof.bound, self.env.run_budget);
            return Err(m.reject(*refusal, pc, stats));
        }
        if let Err((pc, refusal)) = m.check_depth() {
            return Err(m.reject(*refusal, pc, stats));
        }
        let env = self.env.clone();
        Ok(Verified { facts: proof.facts, ctx_reads: proof.ctx_reads, env, stats, program })
    }
}
