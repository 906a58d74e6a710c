//! A thousand communicators in one process: memory, threads and file descriptors stay what they are.

use anyhow::{Context, Result, ensure};

use super::common::{WORLD, call, expect_no_fault, init_all};
use super::natives::manifest;
use crate::job::{Job, Run};
use crate::scenario::{Findings, Lab, Scenario, install};
use crate::script::{Collective, Config, Func, Report, Step};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "endurance::a_thousand_communicators",
    about: "1000 communicators, made by ncclCommSplit and destroyed after a collective, with Ringfence as tuner and profiler: no thread and no file more at the end, and no more memory than NCCL takes without Ringfence.",
    run: a_thousand_communicators,
}];

/// Two ranks are split into a communicator of two, which are two communicators of the process.
const LAPS_OF_A_PART: u32 = 150;
const PARTS: u32 = 3;
const WARM_UP: u32 = 50;
const COMMUNICATORS: u32 = 2 * (WARM_UP + PARTS * LAPS_OF_A_PART);

/// What a communicator may cost for good, above what NCCL's own costs: less than the smallest thing that our plugin has for one (an endpoint
/// is larger than this, an instance much). A page of the allocator's that happens to be touched late is spread over all communicators.
const BYTES_FOR_GOOD: f64 = 256.0;

/// The profiler is there and asks for nothing. With kernel events NCCL itself crashes here, also below a native profiler: its proxy thread
/// reads the times of a communicator that shared its parent's resources and is gone (docs/profiler.md).
fn a_thousand_communicators(lab: &Lab) -> Result<Findings> {
    let dir = lab.policy_dir("policies")?;
    for policy in ["size_aware", "adaptive_channels"] {
        install(&lab.policy(policy), &dir, &format!("{policy}.bpf.o"))?;
    }
    manifest(
        lab,
        &dir,
        "[[policy]]\nfile = 'size_aware.bpf.o'\n[[policy]]\nfile = 'adaptive_channels.bpf.o'\n",
    )?;
    let job = lean(Job::new(lab, "with")?).policy(&dir).env("NCCL_PROFILER_PLUGIN", &lab.so);
    let with = job.run_one(steps(PARTS))?;
    with.expect_clean()?;
    expect_no_fault(&with)?;
    let inits = with.log.init_lines("tuner").len();
    ensure!(inits == COMMUNICATORS as usize + 2, "{inits} INIT lines\n{with}");
    // NCCL's own growth, over one part, is its share of every part.
    let without = lean(Job::new(lab, "without")?).run_one(steps(1))?;
    without.expect_clean()?;
    let (ours, own) = (growth(&with)?, growth(&without)?);
    ensure!(
        ours - own < BYTES_FOR_GOOD,
        "a communicator costs {ours} bytes for good, without Ringfence {own}"
    );
    let mut findings = Findings::new();
    findings.note("communicators", COMMUNICATORS);
    Ok(findings)
}

/// Small buffers, one channel, and the parent's proxy threads, each of which takes NCCL half a second to end.
fn lean(job: Job<'_>) -> Job<'_> {
    job.env("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1")
        .env("NCCL_MAX_NCHANNELS", "1")
        .env("NCCL_BUFFSIZE", "65536")
        .env("NCCL_DEBUG_SUBSYS", "INIT")
}

fn steps(parts: u32) -> Vec<Step> {
    let lap = vec![
        Step::Split {
            set: WORLD.into(),
            into: "child".into(),
            colors: vec![0, 0],
            config: Config::default(),
        },
        Step::Collective(Collective::new("child", Func::AllReduce, 256)),
        Step::Destroy { set: "child".into() },
    ];
    let mut steps = vec![init_all(2), call(Func::AllReduce, 256)];
    steps.extend([Step::Repeat { times: WARM_UP, body: lap.clone() }, Step::Usage]);
    for _ in 0..parts {
        steps.extend([Step::Repeat { times: LAPS_OF_A_PART, body: lap.clone() }, Step::Usage]);
    }
    steps.push(Step::Destroy { set: WORLD.into() });
    steps
}

/// Bytes that a communicator cost for good after the warm-up. Fails if threads or files changed.
fn growth(run: &Run) -> Result<f64> {
    let usage: Vec<&Report> = run.of("usage").collect();
    let (first, last) = (usage.first().context("no usage")?, usage.last().context("no usage")?);
    for what in ["threads", "fds"] {
        let counts: Vec<f64> = usage.iter().map(|report| report.values[what]).collect();
        ensure!(counts.iter().all(|count| *count == counts[0]), "{what} change: {counts:?}\n{run}");
    }
    let communicators = 2.0 * f64::from(LAPS_OF_A_PART) * (usage.len() - 1) as f64;
    Ok((last.values["rss_kib"] - first.values["rss_kib"]) * 1024.0 / communicators)
}
