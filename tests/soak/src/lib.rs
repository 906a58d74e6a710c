//! Programs that nobody wrote, against the verifier. The principal types, in the order in which they meet:
//!
//! [`generate::Generator`] writes a [`Code`] that believes itself safe, [`mutate::mutate`] changes it a little, the verifier judges it, and
//! [`oracle::Oracle`] runs what was accepted step by step: no step may leave what was proved.
//!
//! Everything is seeded: the same seed gives the same programs on every machine.

pub mod belief;
pub mod code;
pub mod generate;
pub mod kernel;
pub mod mutate;
pub mod oracle;
pub mod random;
pub mod samples;

pub use code::Code;
pub use generate::{Shape, generate, maps};
pub use random::Random;

use oracle::{Oracle, Tally, Violation};
use ringfence_translator::Env;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A batch of programs.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Seed of the whole soak.
    pub seed: u64,
    /// Number of the batch; with the seed, it determines the programs.
    pub batch: u64,
    /// How many.
    pub programs: u64,
}

/// What came of batches.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Programs as generated, and their verdicts.
    pub generated: Tally,
    /// Programs that were changed afterwards.
    pub mutated: Tally,
    /// Mutants that do not link, and were not counted.
    pub unlinked: u64,
    /// What must not be, with the place: batch and number.
    pub violations: Vec<(String, Violation)>,
    /// Place, time and text of programs that took long.
    pub slow: Vec<(String, std::time::Duration, String)>,
}

impl Outcome {
    /// Both together.
    pub fn add(&mut self, other: Outcome) {
        self.generated.add(&other.generated);
        self.mutated.add(&other.mutated);
        self.unlinked += other.unlinked;
        self.violations.extend(other.violations);
        self.slow.extend(other.slow);
    }
}

/// Of a hundred programs, how many are mutants.
const MUTANTS: u64 = 50;
/// Budget of the verifier, in visited instructions, for most programs: a few long ones would take most of the time.
const SHORT_BUDGET: u64 = 8_000;
/// Most instructions that a run of the others may execute: each is checked.
const LONG_RUN: u64 = 2_000_000;
/// Of a thousand programs, how many get the whole budget.
const PATIENT: u64 = 3;

/// A program that takes longer than this to verify and to run is told of.
const SLOW: std::time::Duration = std::time::Duration::from_secs(5);

/// The environment of [`Shape::generic`]: what the interpreter has.
pub fn env() -> Env {
    const OFFERED: [u32; 13] = [1, 2, 3, 5, 7, 8, 93, 94, 131, 132, 133, 164, 181];
    let mut helpers = Env::kernel_like_helpers();
    helpers.retain(|h| OFFERED.contains(&h.id));
    Env { helpers, ..Env::generic(64) }
}

/// Generates, mutates and judges a batch.
pub fn run_job(job: &Job, env: &Env) -> Outcome {
    let shape = Shape::generic();
    let maps = maps();
    let mut r = Random::new(job.seed.rotate_left(32) ^ job.batch);
    let hasty =
        Env { insn_budget: SHORT_BUDGET.min(env.insn_budget), run_budget: 8 * SHORT_BUDGET, ..env.clone() };
    let patient = Env { run_budget: LONG_RUN.min(env.run_budget), ..env.clone() };
    let oracles = [Oracle::new(&shape, hasty), Oracle::new(&shape, patient)];
    let mut out = Outcome::default();
    for n in 0..job.programs {
        let mut code = generate(&mut r, &shape);
        let mutant = r.chance(MUTANTS);
        if mutant {
            mutate::mutate(&mut code, &mut r);
        }
        let place = || format!("seed {} batch {} program {n}", job.seed, job.batch);
        match code.program(&maps) {
            Ok(program) => {
                let oracle = &oracles[usize::from(r.rarely(PATIENT))];
                let tally = if mutant { &mut out.mutated } else { &mut out.generated };
                let text = program.disassemble();
                let begun = std::time::Instant::now();
                let judged = catch_unwind(AssertUnwindSafe(|| oracle.judge(program, &mut r, tally)));
                if begun.elapsed() > SLOW {
                    out.slow.push((place(), begun.elapsed(), text.clone()));
                }
                match judged {
                    Ok(Ok(_)) => {}
                    Ok(Err(v)) => out.violations.push((place(), *v)),
                    Err(_) => out.violations.push((place(), Violation { why: "panic".into(), text })),
                }
            }
            Err(_) if mutant => out.unlinked += 1,
            Err(why) => {
                let text = format!("{:?}\n", code.items);
                out.violations.push((place(), Violation { why, text }));
            }
        }
    }
    out
}
