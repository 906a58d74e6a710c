//! [`Watch`]: what the search tells a looker-on; [`Recorder`], one that remembers the ways it went.
//!
//! A program that is accepted or refused is searched without a watch. To explain a refusal the search is run again,
//! with one: it is deterministic, so that it goes the same ways.

use super::state::State;
use crate::isa::Pc;
use std::collections::{BTreeMap, BTreeSet};

/// Where a path stands: the number of its last step, from 1 in the order of the search; 0 before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Trail(pub(crate) u32);

impl Trail {
    /// No step was made.
    pub(crate) const START: Trail = Trail(0);
}

/// Looks on while the search runs.
pub(crate) trait Watch {
    /// A path is taken up where `trail` ends.
    fn resume(&mut self, trail: Trail);
    /// The instruction at `pc` is about to be run on `state`; the trail with this step.
    fn step(&mut self, trail: Trail, pc: Pc, state: &State) -> Trail;
    /// The path ends before `pc`: a kept state includes what comes there.
    fn covered(&mut self, pc: Pc, state: &State);
}

/// A step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its number.
    pub(crate) trail: Trail,
    pub(crate) pc: Pc,
    /// Frames, the running one included.
    pub(crate) depth: usize,
}

/// Remembers each step with the one before it, and the states before the steps that are asked for.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Step `i + 1`: the one before it, and its own.
    steps: Vec<(Trail, Pc, u8)>,
    end: Trail,
    wanted: BTreeSet<Trail>,
    states: BTreeMap<Trail, State>,
    last: Option<State>,
}

impl Watch for Recorder {
    fn resume(&mut self, trail: Trail) {
        self.end = trail;
    }

    fn step(&mut self, trail: Trail, pc: Pc, state: &State) -> Trail {
        self.steps.push((trail, pc, state.depth() as u8));
        self.end = Trail(self.steps.len() as u32);
        if self.wanted.contains(&self.end) {
            self.states.insert(self.end, state.clone());
        }
        self.last = Some(state.clone());
        self.end
    }

    fn covered(&mut self, _: Pc, _: &State) {}
}

impl Recorder {
    /// Keeps the states before those steps.
    pub(crate) fn keeping(wanted: impl IntoIterator<Item = Trail>) -> Recorder {
        Recorder { wanted: wanted.into_iter().collect(), ..Recorder::default() }
    }

    /// The path that the search is on, from the entry.
    pub(crate) fn path(&self) -> Vec<Step> {
        let mut path = Vec::new();
        let mut at = self.end;
        while let Some(&(before, pc, depth)) = (at.0 as usize).checked_sub(1).and_then(|i| self.steps.get(i))
        {
            path.push(Step { trail: at, pc, depth: depth.into() });
            at = before;
        }
        path.reverse();
        path
    }

    /// The state before the last step.
    pub(crate) fn last_state(&self) -> Option<&State> {
        self.last.as_ref()
    }

    /// What was kept.
    pub(crate) fn into_states(self) -> BTreeMap<Trail, State> {
        self.states
    }
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use super::*;
    use crate::isa::asm::assemble;
    use crate::verify::explore::explore_watched;
    use crate::verify::{Env, Machine};

    /// The path to a refusal leaves out the ways that ended well before it.
    #[test]
    fn the_path_is_the_one_that_was_refused() {
        let text = "
            r0 = 0
            if r2 == 1 goto far
            if r1 == 0 goto out
            r0 = 1
        out:
            exit
        far:
            r3 = 7
            r0 = r4
            exit";
        let (program, mut env) = (assemble(text, &[]).unwrap(), Env::generic(16));
        env.ctx = crate::verify::CtxLayout::Buffer { size: 1 };
        let m = Machine::new(&program, &env);
        let mut recorder = Recorder::default();
        let refused = explore_watched(&m, Some(&mut recorder)).map(|_| ()).unwrap_err();
        let pcs: Vec<u32> = recorder.path().into_iter().map(|s| s.pc.0).collect();
        assert_eq!((refused.pc().0, pcs), (6, vec![0, 1, 5, 6]));
    }
}
