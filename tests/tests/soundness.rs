//! *Facts contain the trace*: generated and mutated programs, verified, then run by the reference interpreter on random
//! contexts and maps. No accepted program may fault, and at each instruction the registers and the stack must lie in a state
//! that the verifier's second pass saw there, and in the facts. The generator, the mutator and the oracle are `tests/soak`.
//!
//! Seeded; `RINGFENCE_SOUNDNESS_PROGRAMS=N` and `RINGFENCE_SOUNDNESS_SEED=N` change it. `make soak` runs many more, on all cores.

use ringfence_soak::oracle::{fill_maps, interp, random_context};
use ringfence_soak::{Job, Outcome, Random, Shape, env, generate, maps, run_job};
use ringfence_translator::Env;
use ringfence_translator::verify::Verifier;
use std::sync::Arc;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[test]
fn accepted_programs_stay_inside_what_was_proved() {
    let programs = setting("RINGFENCE_SOUNDNESS_PROGRAMS", 12_000);
    let seed = setting("RINGFENCE_SOUNDNESS_SEED", 0x0dd5_eed5);
    let mut total = Outcome::default();
    for batch in 0..programs.div_ceil(1000) {
        let programs = 1000.min(programs - 1000 * batch);
        total.add(run_job(&Job { seed, batch, programs }, &env()));
    }
    for (what, t) in [("generated", &total.generated), ("mutated", &total.mutated)] {
        println!(
            "{what}: {} of {} accepted, {} steps; refused: {:?}",
            t.accepted, t.programs, t.steps, t.refused
        );
    }
    let finds: Vec<String> =
        total.violations.iter().map(|(at, v)| format!("{at}: {}\n{}", v.why, v.text)).collect();
    assert!(finds.is_empty(), "{} violations\n{}", finds.len(), finds.join("\n"));
    assert!(total.generated.share() > 70.0 && total.mutated.share() > 20.0, "{total:?}");
    // Nearly right is what finds bugs: most mutants still link.
    assert!(total.unlinked * 10 < total.mutated.programs, "{total:?}");
}

/// The oracle itself can fail: what the verifier refuses does break when it is run all the same.
#[test]
fn the_interpreter_catches_what_a_blind_verifier_would_let_pass() {
    let (shape, maps) = (Shape { slack: 200, ..Shape::generic() }, maps());
    let mut r = Random::new(99);
    let verifier = Verifier::new(Arc::new(Env { insn_budget: 10_000, ..env() }));
    let mut faults = 0;
    for _ in 0..1000 {
        let program = generate(&mut r, &shape).program(&maps).expect("the generator's output links");
        if verifier.verify(program.clone()).is_err() {
            let mut faulty = || {
                let ctx = random_context(64, &mut r);
                let mut run = interp(&program, ctx, &shape.helpers, r.bits()).budget(100_000);
                fill_maps(&mut run, &mut r);
                run.run().is_err()
            };
            faults += u32::from((0..3).any(|_| faulty()));
        }
    }
    assert!(faults > 50, "{faults}");
}
