//! [`outcome`]: what a run came to, in one line of the table.

use anyhow::{Context, Result, ensure};

use crate::job::{End, Run};
use crate::script::Step;

/// What `ncclResult_t` is called in nccl.h.
fn code_name(code: i32) -> String {
    let names = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
        "ncclTimeout",
    ];
    usize::try_from(code)
        .ok()
        .and_then(|code| names.get(code))
        .map_or(format!("code {code}"), |s| (*s).into())
}

/// A step in a table.
fn step_name(step: &Step) -> String {
    match step {
        Step::InitAll { .. } | Step::InitRank { .. } => "init".into(),
        Step::Collective(c) => format!("{:?} of {} B", c.func, c.count * c.data_type.size()),
        Step::Group { body } => {
            let names: Vec<_> = body.iter().map(|c| format!("{:?}", c.func)).collect();
            format!("a group of {}", names.join(" and "))
        }
        Step::Destroy { .. } => "destroy".into(),
        other => format!("{other:?}").split([' ', '{', '(']).next().unwrap_or_default().to_lowercase(),
    }
}

/// What a run of these steps came to, in one line of a table: the first thing that went wrong, or the plans.
pub(super) fn outcome(run: &Run, steps: &[Step]) -> Result<String> {
    if run.end != End::Exit(0) {
        let at = steps.get(run.reports.len()).context("it died after the last step")?;
        return Ok(format!("{} in {}", run.end, step_name(at)));
    }
    ensure!(
        run.reports.len() == steps.len(),
        "{} results of {} steps\n{run}",
        run.reports.len(),
        steps.len()
    );
    let bad = run.reports.iter().zip(steps).find(|(report, _)| report.code != 0 && report.code != 7);
    Ok(match bad {
        Some((report, step)) => format!("{} from {}", code_name(report.code), step_name(step)),
        None => plans(run),
    })
}

/// The plans in NCCL's log: `RING/LL 1, RING/SIMPLE 4`, algorithm, protocol and channels of each. `ok` if it tells of none.
pub(super) fn plans(run: &Run) -> String {
    let plans: Vec<_> =
        run.log.planned().iter().map(|plan| format!("{} {}", plan.route(), plan.channels)).collect();
    if plans.is_empty() { "ok".into() } else { plans.join(", ") }
}
