//! [`Watch`]: what the search tells a looker-on; [`Recorder`], one that remembers the ways it went.
//!
//! A program that is accepted or refused is searched without a watch. To explain a refusal the search is run again,
//! with one: it is deterministic, so that it goes the same ways.

use super::state::State;
use crate::isa::Pc;

/// Where a path stands: the number of its last step, from 1 in the order of the search; 0 before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// Remembers each step and the one before it.
#[derive(Default)]
#[cfg_attr(not(test), allow(dead_code, reason = "its user lands next"))]
pub(crate) struct Recorder {
    /// Step `i + 1`: its predecessor and its instruction.
    steps: Vec<(Trail, Pc)>,
    end: Trail,
}

impl Watch for Recorder {
    fn resume(&mut self, trail: Trail) {
        self.end = trail;
    }

    fn step(&mut self, trail: Trail, pc: Pc, _: &State) -> Trail {
        self.steps.push((trail, pc));
        self.end = Trail(self.steps.len() as u32);
        self.end
    }

    fn covered(&mut self, _: Pc, _: &State) {}
}

#[cfg_attr(not(test), allow(dead_code, reason = "its user lands next"))]
impl Recorder {
    /// The path that the search is on, from the entry.
    pub(crate) fn path(&self) -> Vec<(Trail, Pc)> {
        let mut path = Vec::new();
        let mut at = self.end;
        while let Some(&(before, pc)) = (at.0 as usize).checked_sub(1).and_then(|i| self.steps.get(i)) {
            path.push((at, pc));
            at = before;
        }
        path.reverse();
        path
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
        let pcs: Vec<u32> = recorder.path().into_iter().map(|(_, pc)| pc.0).collect();
        assert_eq!((refused.pc().0, pcs), (6, vec![0, 1, 5, 6]));
    }
}
