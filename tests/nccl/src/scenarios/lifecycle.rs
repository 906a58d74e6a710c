//! How communicators begin and end.

use anyhow::{Result, ensure};

use super::common::{
    WORLD, call, calls, expect_no_fault, expect_route, expect_tuner, finish, init_all, init_rank,
};
use super::witness::{ask_each, describe};
use crate::job::{End, Job, Run};
use crate::scenario::{Findings, Lab, Scenario};
use crate::script::{Config, Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "lifecycle::nonblocking",
        about: "Nonblocking communicators (ncclCommInitRankConfig, blocking = 0): created, used and ended from NCCL's own threads.",
        run: nonblocking,
    },
    Scenario {
        name: "lifecycle::registered_buffers",
        about: "ncclCommRegister of both buffers: whether the tuner is told so (regBuff).",
        run: registered_buffers,
    },
    Scenario {
        name: "lifecycle::ends",
        about: "Destroy without finalize, abort at rest and with work under way, exit without an end: each leaves a clean process.",
        run: ends,
    },
    Scenario {
        name: "lifecycle::again",
        about: "Communicators created again after the last one ended: how often NCCL opens and closes the plugin.",
        run: again,
    },
    Scenario {
        name: "lifecycle::a_communicator_of_one",
        about: "A communicator of one rank, and communicators of different sizes side by side.",
        run: a_communicator_of_one,
    },
];

fn nonblocking(lab: &Lab) -> Result<Findings> {
    let config = Config { blocking: Some(false), name: Some("nonblocking".into()), ..Config::default() };
    let settle = || Step::Settle { set: WORLD.into(), timeout_ms: 60_000 };
    let mut steps = vec![
        Step::InitRank { set: WORLD.into(), ranks: 2, local: vec![0, 1], id_file: None, config },
        settle(),
        Step::Query { set: WORLD.into() },
        call(Func::AllReduce, 1 << 20),
        settle(),
    ];
    let [finalize, destroy] = finish(WORLD);
    steps.extend([finalize, settle(), destroy]);
    let run = Job::new(lab, "job")?.policy(&lab.policy("ring_simple_all")).run_one(steps)?;
    run.expect_clean()?;
    expect_tuner(&run, 2, "2 ranks")?;
    expect_route(&run, "RING/SIMPLE")?;
    expect_no_fault(&run)?;
    ensure!(run.of("settle").all(|report| report.code == 0), "all settle: {:?}", run.reports);
    let mut findings = Findings::new();
    for step in ["init_rank", "collective", "finalize"] {
        let code = run.first(step)?.code;
        findings.note(format!("{step} returns"), if code == 7 { "ncclInProgress" } else { "ncclSuccess" });
    }
    findings.note("tuner calls of one AllReduce, both ranks", calls(&run)?);
    Ok(findings)
}

fn registered_buffers(lab: &Lab) -> Result<Findings> {
    const BYTES: u64 = 4 << 20;
    let set = || WORLD.to_owned();
    let reduce = || call(Func::AllReduce, BYTES / 4);
    let phases = vec![
        vec![init_all(2), reduce()],
        vec![Step::Register { set: set(), bytes: BYTES }, reduce()],
        vec![Step::Deregister { set: set() }, reduce()],
    ];
    let (run, questions) = ask_each(lab, Job::new(lab, "job")?, phases, finish(WORLD).into())?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    let mut findings = Findings::new();
    for (when, questions) in ["before", "registered", "after ncclCommDeregister"].iter().zip(&questions) {
        ensure!(questions.len() == 1 && questions[0].bytes == BYTES, "{when}: {}", describe(questions));
        findings.note(format!("an AllReduce, {when}"), describe(questions));
    }
    Ok(findings)
}

fn ends(lab: &Lab) -> Result<Findings> {
    let mut findings = Findings::new();
    let destroy = || Step::Destroy { set: WORLD.into() };
    let abort = || Step::Abort { set: WORLD.into() };
    let here: [(&str, &str, Vec<Step>); 4] = [
        ("destroy without finalize", "destroy", vec![call(Func::AllReduce, 1 << 20), destroy()]),
        ("destroy of an idle communicator", "idle", vec![destroy()]),
        ("abort of an idle communicator", "abort", vec![abort()]),
        ("exit without an end", "exit", vec![call(Func::AllReduce, 1 << 20)]),
    ];
    for (what, name, steps) in here {
        let run = one_end(lab, name, steps)?;
        // What our plugin still counts when it was told for the last time.
        let left = run.metric("ringfence_communicators", "tuner")?;
        ensure!((left == 0.0) == (name != "exit"), "{what}: {left} communicators are left\n{run}");
        findings.note(format!("{what}: the tuner is finalized"), left == 0.0);
    }
    findings.note(
        "abort with a launch that cannot complete, of one rank in each of two processes",
        aborted(lab)?,
    );
    Ok(findings)
}

fn one_end(lab: &Lab, name: &str, steps: Vec<Step>) -> Result<Run> {
    let job = Job::new(lab, name)?.policy(&lab.policy("ring_simple_all"));
    // A thread of our plugin tells of the communicators when they begin; a process that ends at once would be quicker.
    let told = Step::WaitFile { path: job.file("process0/metrics.prom"), timeout_ms: 60_000 };
    let mut all = vec![init_all(2), told];
    all.extend(steps);
    let run = job.run_one(all)?;
    run.expect_clean()?;
    expect_tuner(&run, 2, "2 ranks")?;
    Ok(run)
}

/// Over the network a launch waits for a kernel, which the fake GPU does not run: work that is under way.
fn aborted(lab: &Lab) -> Result<String> {
    let mut job = Job::new(lab, "network")?.policy(&lab.policy("ring_simple_all"));
    let id = job.file("id");
    for (rank, node) in [(0, "node0"), (1, "node1")] {
        let steps =
            vec![init_rank(2, rank, &id), call(Func::AllReduce, 1 << 20), Step::Abort { set: WORLD.into() }];
        job = job.process_with(steps, [("NCCL_HOSTID", node)]);
    }
    for run in job.run()? {
        run.expect_clean()?;
        run.expect_end(End::Exit(0))?;
        ensure!(calls(&run)? > 0.0, "the tuner was asked before\n{run}");
    }
    Ok("passes".to_owned())
}

fn again(lab: &Lab) -> Result<Findings> {
    const TIMES: u32 = 4;
    let lap = |ranks| {
        let mut body = vec![init_all(ranks), call(Func::AllReduce, 1 << 20)];
        body.extend(finish(WORLD));
        body
    };
    let mut findings = Findings::new();
    for ranks in [1, 2] {
        let steps = vec![Step::Repeat { times: TIMES, body: lap(ranks) }];
        let run =
            Job::new(lab, &format!("of{ranks}"))?.policy(&lab.policy("ring_simple_all")).run_one(steps)?;
        run.expect_clean()?;
        ensure!(run.first("repeat")?.values["laps"] == f64::from(TIMES), "{:?}", run.reports);
        expect_tuner(&run, (TIMES * ranks) as usize, "ranks")?;
        let inits = run.log.init_lines("tuner").len();
        let closed = run.log.containing("Closing tuner").count();
        findings.note(
            format!("{TIMES} times a communicator of {ranks}"),
            format!("opened {}, initialised {inits}, closed {closed}", opened(&run)),
        );
    }
    Ok(findings)
}

/// How often NCCL took our plugin as its tuner, in the words of 2.27 and of 2.28.
fn opened(run: &Run) -> usize {
    let new = run.log.containing("TUNER/Plugin: Using Ringfence").count();
    new + run.log.containing("TUNER/Plugin: Using tuner plugin").count()
}

fn a_communicator_of_one(lab: &Lab) -> Result<Findings> {
    let sets = [("one", 1), ("two", 2), ("three", 3)];
    let mut steps: Vec<Step> = sets.map(|(set, ranks)| Step::InitAll { set: set.into(), ranks }).into();
    steps.extend(
        sets.map(|(set, _)| Step::Collective(crate::script::Collective::new(set, Func::AllReduce, 1 << 20))),
    );
    steps.extend(sets.iter().flat_map(|(set, _)| finish(set)));
    let run = Job::new(lab, "job")?.policy(&lab.policy("ring_simple_all")).run_one(steps)?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    let inits = |ranks: &str| run.log.init_lines("tuner").iter().filter(|line| line.contains(ranks)).count();
    ensure!((inits("2 ranks"), inits("3 ranks")) == (2, 3), "{:?}", run.log.init_lines("tuner"));
    let mut findings = Findings::new();
    findings.note("tuner inits for the communicator of one", inits(" 1 ranks"));
    findings.note("tuner calls of an AllReduce on one, two and three ranks", calls(&run)?);
    Ok(findings)
}
