//! `ringfence-samples [--deep] OBJECT..`: how long the verifier takes for the programs of public objects.
//!
//! Each program is verified in an environment like the kernel's, and with `--deep` after it has been rewritten so that the
//! verifier follows it further (`ringfence_soak::samples`). Prints the slowest, and what came of all. Exit code: 1 if a program took
//! more than three seconds of CPU time.

use ringfence_soak::samples::{deep, plain_maps};
use ringfence_translator::verify::{ReturnRule, Stats, Verifier};
use ringfence_translator::{Env, Object, Program};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(3);
const SLOWEST: usize = 10;

struct Row {
    time: Duration,
    slots: usize,
    stats: Stats,
    name: String,
    verdict: String,
}

/// CPU time of this thread; the clock's time where the kernel does not tell.
fn cpu(since: Instant) -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = told.and_then(|t| t.split(' ').next()?.parse().ok());
    ns.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

fn verify(name: String, program: Program, env: &Arc<Env>) -> Row {
    let slots = program.len();
    let began = Instant::now();
    let start = cpu(began);
    let (verdict, stats) = match Verifier::new(env.clone()).verify(program) {
        Ok(v) => ("accepted".to_owned(), v.stats()),
        Err(r) => (r.to_string(), r.stats()),
    };
    Row { time: cpu(began).saturating_sub(start), slots, stats, name, verdict }
}

fn programs(path: &str, rewrite: bool, env: &Arc<Env>, rows: &mut Vec<Row>) -> Result<(), String> {
    let mut bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    if rewrite {
        bytes = plain_maps(&bytes).ok_or("no ELF file with maps as they should be")?;
    }
    let object = Object::parse(&bytes).map_err(|e| e.to_string())?;
    for spec in object.programs() {
        let name = format!("{path} {}", spec.name());
        let xdp = path.contains("xdp") || spec.section().contains("xdp");
        let program = object.program(spec.name()).map_err(|e| e.to_string());
        let program = program.and_then(|p| if rewrite { deep(&p, env, xdp) } else { Ok(p) });
        rows.push(match program {
            Ok(p) => verify(name, p, env),
            Err(e) => Row {
                time: Duration::ZERO,
                slots: 0,
                stats: Stats::default(),
                name,
                verdict: format!("not loaded: {e}"),
            },
        });
    }
    Ok(())
}

/// Verdicts without places, counted.
fn kinds(rows: &[Row]) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    for r in rows {
        let kind = r.verdict.split([' ', ':']).next().unwrap_or_default();
        *all.entry(kind.to_owned()).or_default() += 1;
    }
    all
}

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let rewrite = args.first().is_some_and(|a| a == "--deep");
    if rewrite {
        args.remove(0);
    }
    let (helpers, ret) = (Env::kernel_like_helpers(), ReturnRule::Any);
    let env = Arc::new(Env { hook: "kernel", helpers, ret, ..Env::generic(65535) });
    let mut rows = Vec::new();
    for path in &args {
        if let Err(e) = programs(path, rewrite, &env, &mut rows) {
            println!("{path}: {e}");
        }
    }
    rows.sort_by_key(|r| std::cmp::Reverse(r.time));
    for r in rows.iter().take(if std::env::var_os("ALL").is_some() { usize::MAX } else { SLOWEST }) {
        let Stats { insns, states, .. } = r.stats;
        let ms = r.time.as_secs_f64() * 1e3;
        println!(
            "{ms:9.3} ms {:5} slots {insns:8} visited {states:7} states {}: {}",
            r.slots, r.name, r.verdict
        );
    }
    println!("{} programs: {:?}", rows.len(), kinds(&rows));
    if rows.iter().any(|r| r.time > LIMIT) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
