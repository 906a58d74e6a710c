//! [`Oracle`]: *facts contain the trace*. What the verifier accepts is run by the reference interpreter on random contexts, maps and
//! helper results. No run may fault, and before each instruction registers and stack must lie in what was proved there.

use crate::generate::Shape;
use crate::random::Random;
use ringfence_translator::interp::{FaultKind, Interp};
use ringfence_translator::verify::{Invariants, Verifier};
use ringfence_translator::{Env, MapKind, Program, Verified};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Runs of each accepted program.
const RUNS: u32 = 3;
/// Steps of a run that are held against the proof. A long loop says the same again and again.
const CHECKED_STEPS: u64 = 2_000;
/// Steps of a run, at most.
const MAX_STEPS: u64 = 200_000;

/// A run that left what was proved, or a verifier that contradicts itself.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What happened.
    pub why: String,
    /// The program, as the assembler reads it.
    pub text: String,
}

/// What came of many programs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Programs that were linked and judged.
    pub programs: u64,
    /// Accepted ones.
    pub accepted: u64,
    /// Steps that were run and held against the proof.
    pub steps: u64,
    /// Refused ones, by kind.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: &Tally) {
        self.programs += other.programs;
        self.accepted += other.accepted;
        self.steps += other.steps;
        for (kind, n) in &other.refused {
            *self.refused.entry(kind).or_default() += n;
        }
    }

    /// Of a hundred programs, how many were accepted.
    pub fn share(&self) -> f64 {
        100.0 * self.accepted as f64 / self.programs.max(1) as f64
    }
}

/// Judges programs.
pub struct Oracle {
    verifier: Verifier,
    ctx_bytes: u32,
    helpers: Vec<u32>,
    runs: u32,
}

impl Oracle {
    /// An oracle for programs of that shape, in that environment.
    pub fn new(shape: &Shape, env: Env) -> Oracle {
        Oracle {
            verifier: Verifier::new(Arc::new(env)),
            ctx_bytes: shape.ctx_bytes,
            helpers: shape.helpers.clone(),
            runs: RUNS,
        }
    }

    /// Runs each accepted program that often.
    pub fn runs(self, runs: u32) -> Oracle {
        Oracle { runs, ..self }
    }

    /// Verifies a program and, if it is accepted, holds runs of it against what was proved. `tally` counts it.
    ///
    /// # Errors
    /// The violation.
    pub fn judge(
        &self,
        program: Program,
        r: &mut Random,
        tally: &mut Tally,
    ) -> Result<Option<Verified>, Box<Violation>> {
        tally.programs += 1;
        let listing = program.clone();
        let violation = |why| Box::new(Violation { why, text: listing.disassemble() });
        let (verified, invariants) = match self.verifier.verify_traced(program) {
            Ok(v) => v,
            Err(e) if e.kind().name() == "internal" => return Err(violation(e.to_string())),
            Err(e) => {
                *tally.refused.entry(e.kind().name()).or_default() += 1;
                return Ok(None);
            }
        };
        tally.accepted += 1;
        for _ in 0..self.runs {
            tally.steps += self.run(&verified, &invariants, r).map_err(violation)?;
        }
        Ok(Some(verified))
    }

    /// One run, checked at each step.
    fn run(&self, verified: &Verified, invariants: &Invariants, r: &mut Random) -> Result<u64, String> {
        let mut interp =
            interp(verified.program(), random_context(self.ctx_bytes, r), &self.helpers, r.bits());
        fill_maps(&mut interp, r);
        let (mut wrong, mut steps) = (None, 0);
        let mut trace = invariants.trace();
        let end = interp.budget(MAX_STEPS).run_hooked(|pc, regs, memory| {
            steps += 1;
            if wrong.is_none() && steps <= CHECKED_STEPS {
                wrong = trace.admit(verified, pc, regs, memory).err();
            }
        });
        let most = verified.stats().max_insns;
        match (wrong, end) {
            (Some(w), _) => Err(w),
            _ if steps > most => {
                Err(format!("{steps} instructions were executed, {most} at most were proved"))
            }
            (None, Err(fault)) if fault.kind != FaultKind::Budget => Err(fault.to_string()),
            (None, _) => Ok(steps),
        }
    }
}

/// An interpreter with helpers that give random numbers.
pub fn interp<'a>(program: &'a Program, ctx: Vec<u8>, helpers: &'a [u32], seed: u64) -> Interp<'a> {
    let mut numbers = Random::new(seed);
    Interp::new(program, ctx).helpers(move |id, _, _| helpers.contains(&id).then(|| numbers.edge()))
}

/// A context of numbers near borders.
pub fn random_context(bytes: u32, r: &mut Random) -> Vec<u8> {
    (0..bytes.div_ceil(8)).flat_map(|_| r.edge().to_le_bytes()).take(bytes as usize).collect()
}

/// Some keys of each map that is looked up, with random values.
pub fn fill_maps(interp: &mut Interp<'_>, r: &mut Random) {
    for map in interp.memory_mut().maps_mut() {
        if map.decl().kind == MapKind::Global || !map.decl().kind.has_values() {
            continue;
        }
        for key in 0..map.decl().max_entries.min(3) {
            let words = map.decl().value_size.div_ceil(8);
            let mut value: Vec<u8> = (0..words).flat_map(|_| r.edge().to_le_bytes()).collect();
            value.truncate(map.decl().value_size as usize);
            // A key that does not fit is not there.
            let _ = map.update(&key.to_le_bytes(), &value, 0);
        }
    }
}
