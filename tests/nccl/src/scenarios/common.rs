//! What several scenarios need: usual steps, and what must hold for our plugin in any [`Run`].

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::job::Run;
use crate::script::{Collective, Config, Func, Step};

/// The set that most scenarios use.
pub(super) const WORLD: &str = "world";

/// All ranks in one process.
pub(super) fn init_all(ranks: u32) -> Step {
    Step::InitAll { set: WORLD.into(), ranks }
}

/// One rank of several processes.
pub(super) fn init_rank(ranks: u32, rank: u32, id: &Path) -> Step {
    let config = Config::default();
    Step::InitRank { set: WORLD.into(), ranks, local: vec![rank], id_file: Some(id.to_owned()), config }
}

/// A collective of 32-bit floats on the world.
pub(super) fn call(func: Func, count: u64) -> Step {
    Step::Collective(Collective::new(WORLD, func, count))
}

/// The usual end of a set.
pub(super) fn finish(set: &str) -> [Step; 2] {
    [Step::Finalize { set: set.into() }, Step::Destroy { set: set.into() }]
}

/// So many communicators took our tuner, and each says so in one line with `part`.
pub(super) fn expect_tuner(run: &Run, communicators: usize, part: &str) -> Result<()> {
    let lines = run.log.init_lines("tuner");
    ensure!(
        lines.len() == communicators,
        "{} INIT lines for {communicators} communicators\n{run}",
        lines.len()
    );
    ensure!(lines.iter().all(|line| line.contains(part)), "{part}: {lines:?}");
    Ok(())
}

/// Something was planned, and all of it by this algorithm and protocol. NCCL's log has the plans of rank 0 only.
pub(super) fn expect_route(run: &Run, route: &str) -> Result<()> {
    let planned = run.log.planned();
    ensure!(!planned.is_empty(), "NCCL's log tells of no plan\n{run}");
    ensure!(planned.iter().all(|plan| plan.route() == route), "{route} was decided, and {planned:?}");
    Ok(())
}

/// Channels of the communicators, which all must have the same number.
pub(super) fn coll_channels(run: &Run) -> Result<u32> {
    let channels = run.log.coll_channels();
    let first = *channels.first().with_context(|| format!("NCCL printed no number of channels\n{run}"))?;
    ensure!(channels.iter().all(|count| *count == first), "{channels:?}");
    Ok(first)
}

/// Calls of policies on the tuner's hook, by our own counters.
pub(super) fn calls(run: &Run) -> Result<f64> {
    run.metric("ringfence_policy_calls_total", "hook=\"tuner\"")
}

/// Nothing went wrong in a policy, and our plugin warned of nothing.
pub(super) fn expect_no_fault(run: &Run) -> Result<()> {
    for name in ["ringfence_policy_faults_total", "ringfence_defects_total"] {
        let count = run.metric(name, "")?;
        ensure!(count == 0.0, "{name}: {count}\n{run}");
    }
    let ours = run.log.lines.iter().find(|line| line.warning && line.text.contains("Ringfence"));
    ensure!(ours.is_none(), "our plugin warns: {ours:?}");
    Ok(())
}
