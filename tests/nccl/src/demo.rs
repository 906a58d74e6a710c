//! [`run`]: what `make demo` shows with a real NCCL. It prints NCCL's own log, and what follows from it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::job::{Job, Run};
use crate::scenario::{Lab, install};
use crate::script::{Collective, Func, Step};

const RANKS: u32 = 2;
const SIZES: [u64; 4] = [1 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Decisions by size without and with a policy, then a reload while a job runs.
///
/// # Errors
/// NCCL or our plugin did something else than the demo tells.
pub fn run(lab: &Lab) -> Result<()> {
    decisions(lab)?;
    reload(lab)
}

fn decisions(lab: &Lab) -> Result<()> {
    let script = || {
        let mut steps = vec![Step::InitAll { set: "world".into(), ranks: RANKS }];
        steps.extend(SIZES.map(|bytes| all_reduce("world", bytes)));
        steps.push(Step::Destroy { set: "world".into() });
        steps
    };
    let own = Job::new(lab, "own")?.run_one(script())?;
    let decided = Job::new(lab, "decided")?.policy(&lab.policy("size_aware")).run_one(script())?;
    for run in [&own, &decided] {
        run.expect_clean()?;
    }
    print_lines(&decided, "Using Ringfence", 1);
    print_lines(&decided, "Ringfence 0", 1);
    println!("\n   AllReduce of    NCCL alone      with size_aware (as NCCL logs them)");
    let (own, decided) = (routes(&own), routes(&decided));
    for bytes in SIZES {
        let of = |routes: &BTreeMap<u64, String>| routes.get(&bytes).cloned().unwrap_or_default();
        println!("   {bytes:>9} B     {:<15} {}", of(&own), of(&decided));
    }
    ensure!(own != decided, "the policy changed nothing");
    Ok(())
}

/// The ranks of a communicator must decide alike, so it is not the directory that decides when a living one changes; a new one has the
/// new policy.
fn reload(lab: &Lab) -> Result<()> {
    let dir = lab.policy_dir("policies")?;
    for name in ["size_aware", "ring_simple_all"] {
        install(&lab.policy(name), &dir, &format!("{name}.bpf.o"))?;
    }
    choose(lab, &dir, "size_aware")?;
    let job = Job::new(lab, "reload")?.policy(&dir);
    let (ready, go) = (job.file("ready"), job.file("go"));
    let set = |name: &str| Step::InitAll { set: name.into(), ranks: RANKS };
    let steps = vec![
        set("before"),
        all_reduce("before", 1 << 10),
        Step::Touch { path: ready.clone() },
        Step::WaitFile { path: go.clone(), timeout_ms: 60_000 },
        all_reduce("before", 1 << 10),
        set("after"),
        all_reduce("after", 1 << 10),
        Step::Destroy { set: "before".into() },
        Step::Destroy { set: "after".into() },
    ];
    let mut running = job.process(steps).start()?;
    running.wait_for(&ready)?;
    choose(lab, &dir, "ring_simple_all")?;
    running.wait_for_status(0, "ring_simple_all")?;
    std::fs::write(&go, "")?;
    let runs = running.wait()?;
    let run = runs[0].expect_clean()?;
    let planned = run.log.planned();
    ensure!(planned.len() == 3, "three AllReduces were called: {planned:?}");
    println!("\n   ring_simple_all replaces size_aware while the job runs; AllReduce of 1 KiB:");
    for (what, plan) in ["before the reload", "after it, same communicator", "after it, new communicator"]
        .iter()
        .zip(&planned)
    {
        println!("   {what:<28} {}", plan.route());
    }
    ensure!(planned[2].route() == "RING/SIMPLE", "the new communicator has the new policy: {planned:?}");
    Ok(())
}

/// The manifest names the policy; it is replaced in one step.
fn choose(lab: &Lab, dir: &Path, name: &str) -> Result<()> {
    let manifest = lab.scratch.join("ringfence.toml");
    std::fs::write(&manifest, format!("[[policy]]\nfile = \"{name}.bpf.o\"\n"))?;
    install(&manifest, dir, "ringfence.toml").map(|_| ())
}

fn all_reduce(set: &str, bytes: u64) -> Step {
    Step::Collective(Collective::new(set, Func::AllReduce, bytes / 4))
}

fn routes(run: &Run) -> BTreeMap<u64, String> {
    run.log.planned().iter().map(|plan| (plan.bytes, plan.route())).collect()
}

fn print_lines(run: &Run, part: &str, most: usize) {
    for text in run.log.containing(part).take(most) {
        println!("   NCCL INFO {text}");
    }
}
