//! CPU time of a whole reload of each shipped policy: read, parse, verify, translate, compile; and of an instance,
//! which every communicator takes on top. Bar: 5 ms of CPU (design.md section 8).

use anyhow::{Context, Result};
use ringfence_benches::{built, header, median, thread_cpu_ns};
use ringfence_host::config::Source;
use ringfence_host::policy_set::PolicySet;

const ROUNDS: usize = 21;
const BAR_MS: f64 = 5.0;

fn main() -> Result<()> {
    header("whole reload, CPU ms (median of 21)");
    let mut paths: Vec<_> =
        std::fs::read_dir(built("policies")?)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "o"));
    paths.sort();
    for path in paths {
        let source = Source::at(&path);
        let mut samples = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = thread_cpu_ns();
            let set = PolicySet::load(&source).map_err(|e| anyhow::anyhow!("{e}")).context("load")?;
            samples.push((thread_cpu_ns() - start) as f64 / 1e6);
            drop(set);
        }
        let ms = median(samples);
        let verdict = if ms <= BAR_MS { "ok" } else { "OVER" };
        println!(
            "{:<28} {ms:>6.2}  bar {BAR_MS} {verdict}",
            path.file_name().unwrap_or_default().to_string_lossy()
        );
    }
    Ok(())
}
