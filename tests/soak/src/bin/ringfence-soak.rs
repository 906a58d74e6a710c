//! `ringfence-soak [PROGRAMS [SEED [THREADS [SECONDS]]]]`: generated and mutated programs against the verifier, on all cores.
//!
//! Prints what came of them; finds are printed as cases for `tests/corpus/verify`. Exit code: 0 if nothing left what was
//! proved, 1 if something did, 2 for bad arguments.

use ringfence_soak::{Job, Outcome, env, run_job};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Programs that share a seed of their own, so that a find can be had again quickly.
const BATCH: u64 = 1000;

struct Plan {
    programs: u64,
    seed: u64,
    threads: u64,
    limit: Duration,
}

fn plan() -> Result<Plan, String> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut numbers = [1_000_000, 1, cores, u64::from(u32::MAX)];
    for (i, arg) in std::env::args().skip(1).enumerate() {
        let slot = numbers.get_mut(i).ok_or("at most four arguments: PROGRAMS SEED THREADS SECONDS")?;
        *slot = arg.parse().map_err(|_| format!("{arg} is no number"))?;
    }
    let [programs, seed, threads, seconds] = numbers;
    Ok(Plan { programs, seed, threads: threads.max(1), limit: Duration::from_secs(seconds) })
}

fn main() -> ExitCode {
    match plan() {
        Ok(plan) => soak(&plan),
        Err(why) => {
            eprintln!("ringfence-soak: {why}");
            ExitCode::from(2)
        }
    }
}

fn soak(plan: &Plan) -> ExitCode {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let outcomes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.threads).map(|_| scope.spawn(|| work(plan, &next, start))).collect();
        workers.into_iter().map(|w| w.join()).collect::<Vec<_>>()
    });
    let mut total = Outcome::default();
    let mut panicked = 0;
    for outcome in outcomes {
        match outcome {
            Ok(o) => total.add(o),
            Err(_) => panicked += 1,
        }
    }
    report(plan, &total, panicked, start.elapsed());
    if total.violations.is_empty() && panicked == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Takes batches until there are none, or time is up.
fn work(plan: &Plan, next: &AtomicU64, start: Instant) -> Outcome {
    let mut total = Outcome::default();
    loop {
        let batch = next.fetch_add(1, Ordering::Relaxed);
        if batch * BATCH >= plan.programs || start.elapsed() > plan.limit {
            return total;
        }
        let programs = BATCH.min(plan.programs - batch * BATCH);
        total.add(run_job(&Job { seed: plan.seed, batch, programs }, &env()));
    }
}

fn report(plan: &Plan, total: &Outcome, panicked: u32, took: Duration) {
    for (n, (place, v)) in total.violations.iter().enumerate() {
        println!(
            "# {}\ncase soak-{n} # {place}\ncode\n{}expect accepted\n",
            v.why.replace('\n', "\n# "),
            v.text
        );
    }
    let mut all = total.generated.clone();
    all.add(&total.mutated);
    let seconds = took.as_secs_f64();
    for (what, tally) in [("generated", &total.generated), ("mutated", &total.mutated)] {
        let refused: Vec<String> = tally.refused.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        println!(
            "{what}: {}, {:.1} % accepted; refused: {}",
            tally.programs,
            tally.share(),
            refused.join(", ")
        );
    }
    println!("{} mutants do not link; {} steps held against the proof", total.unlinked, all.steps);
    println!(
        "{} programs, seed {}, {} threads, {seconds:.1} s, {:.0} a second and thread",
        all.programs,
        plan.seed,
        plan.threads,
        all.programs as f64 / seconds / plan.threads as f64,
    );
    println!(
        "{} accepted ({:.1} %), {} violations, {panicked} threads panicked",
        all.accepted,
        all.share(),
        total.violations.len()
    );
}
