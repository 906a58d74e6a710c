//! `ringfence-soak [PROGRAMS [SEED [THREADS [SECONDS]]]]`: generated and mutated programs against the verifier, on all cores.
//!
//! Prints what came of them; finds are printed as cases for `tests/corpus/verify`. Exit code: 0 if nothing left what was
//! proved, 1 if something did, 2 for bad arguments.

use ringfence_soak::{Job, Outcome, env, run_job};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Programs that share a seed of their own, so that a find can be had again quickly.
const BATCH: u64 = 1000;
/// What threads get to end their batch when time is up.
const GRACE: Duration = Duration::from_secs(30);
/// How often the state is told on standard error.
const PROGRESS: Duration = Duration::from_secs(15);

#[derive(Clone, Copy)]
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

/// What the threads have in common.
struct Shared {
    next: AtomicU64,
    running: AtomicU64,
    total: Mutex<Outcome>,
    /// By thread: its batch and when that began.
    batches: Mutex<Vec<(u64, Instant)>>,
}

fn soak(plan: &Plan) -> ExitCode {
    let start = Instant::now();
    let shared = Arc::new(Shared {
        next: AtomicU64::new(0),
        running: AtomicU64::new(plan.threads),
        total: Mutex::default(),
        batches: Mutex::new(vec![(0, start); plan.threads as usize]),
    });
    for thread in 0..plan.threads as usize {
        let (plan, shared) = (*plan, shared.clone());
        std::thread::spawn(move || work(&plan, &shared, thread, start));
    }
    let mut told = start;
    while shared.running.load(Ordering::Acquire) > 0 && start.elapsed() < plan.limit + GRACE {
        std::thread::sleep(Duration::from_millis(100));
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            progress(&shared, start);
        }
    }
    // Threads that are still at it are left behind: what they found is not known, and that is an error.
    let stuck = shared.running.load(Ordering::Acquire);
    let total = lock(&shared.total);
    report(plan, &total, stuck, start.elapsed());
    if stuck > 0 {
        let batches = lock(&shared.batches);
        let late = batches.iter().filter(|(_, begun)| begun.elapsed() > GRACE);
        late.for_each(|(n, begun)| println!("batch {n} has taken {:.0} s", begun.elapsed().as_secs_f64()));
    }
    if total.violations.is_empty() && stuck == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn progress(shared: &Shared, start: Instant) {
    let total = lock(&shared.total);
    let programs = total.generated.programs + total.mutated.programs;
    let (seconds, violations) = (start.elapsed().as_secs_f64(), total.violations.len());
    eprintln!("{seconds:.0} s: {programs} programs, {violations} violations");
}

/// Takes batches until there are none, or time is up. (The judge catches panics.)
fn work(plan: &Plan, shared: &Shared, thread: usize, start: Instant) {
    loop {
        let batch = shared.next.fetch_add(1, Ordering::Relaxed);
        if batch * BATCH >= plan.programs || start.elapsed() > plan.limit {
            break;
        }
        if let Some(slot) = lock(&shared.batches).get_mut(thread) {
            *slot = (batch, Instant::now());
        }
        let programs = BATCH.min(plan.programs - batch * BATCH);
        let outcome = run_job(&Job { seed: plan.seed, batch, programs }, &env());
        lock(&shared.total).add(outcome);
    }
    shared.running.fetch_sub(1, Ordering::Release);
}

fn report(plan: &Plan, total: &Outcome, stuck: u64, took: Duration) {
    for (n, (place, v)) in total.violations.iter().enumerate() {
        println!(
            "# {}\ncase soak-{n} # {place}\ncode\n{}expect accepted\n",
            v.why.replace('\n', "\n# "),
            v.text
        );
    }
    for (place, took, text) in &total.slow {
        println!("# slow: {place}: {:.1} s\n{text}", took.as_secs_f64());
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
        "{} accepted ({:.1} %), {} violations, {stuck} threads not at their end",
        all.accepted,
        all.share(),
        total.violations.len()
    );
}
