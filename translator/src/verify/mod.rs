//! The verifier: path-sensitive abstract interpretation in the manner of Linux's.

use crate::program::Program;
use std::sync::Arc;

pub(crate) mod env;
pub(crate) mod fact;
pub(crate) mod rejection;

pub use env::{ArgKind, CtxField, CtxLayout, Env, HelperSig, RankLabel, RetKind, ReturnRule, Rights};
pub use fact::{Access, CallFact, Fact, Region, Ways};
pub use rejection::{RejectKind, Rejection};

/// Work done by the verifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Visited instructions.
    pub insns: u64,
    /// States kept for pruning.
    pub states: u64,
}

/// A program with a [`Fact`] per reachable instruction and the [`Env`] it was proved in.
/// Only [`Verifier::verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified {
    program: Program,
    facts: Vec<Option<Fact>>,
    env: Arc<Env>,
    stats: Stats,
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }
    /// The environment that it was proved in.
    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }
    /// What was proved about the instruction at `pc`; `None` if it cannot be reached.
    pub fn fact(&self, pc: crate::isa::Pc) -> Option<&Fact> {
        self.facts.get(pc.index())?.as_ref()
    }
    /// All facts, by slot.
    pub(crate) fn facts(&self) -> &[Option<Fact>] {
        &self.facts
    }
    /// Work done by the verifier.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}
