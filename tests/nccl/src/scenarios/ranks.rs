//! How ranks are spread over processes and nodes.

use anyhow::{Result, ensure};

use super::common::{
    WORLD, call, calls, coll_channels, expect_no_fault, expect_route, expect_tuner, finish, init_all,
    init_rank,
};
use crate::job::{Job, Run};
use crate::scenario::{Findings, Lab, Scenario};
use crate::script::{Collective, Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "ranks::one_process",
        about: "Two ranks in one process (ncclCommInitAll): each takes the tuner and its decision.",
        run: one_process,
    },
    Scenario {
        name: "ranks::a_process_each",
        about: "Four ranks in four processes of one node.",
        run: a_process_each,
    },
    Scenario {
        name: "ranks::a_thread_each",
        about: "Four ranks in four threads of one process, each on its own: the tuner is called from all of them at once.",
        run: a_thread_each,
    },
    Scenario {
        name: "ranks::nodes",
        about: "Four ranks on two nodes (NCCL_HOSTID), planned by ncclGroupSimulateEnd and then launched.",
        run: nodes,
    },
    Scenario {
        name: "ranks::eight_with_nvlink",
        about: "Eight ranks in one process on a machine with NVLink switches (NCCL_TOPO_FILE).",
        run: eight_with_nvlink,
    },
];

fn one_process(lab: &Lab) -> Result<Findings> {
    let [finalize, destroy] = finish(WORLD);
    let steps = vec![
        Step::Version,
        init_all(2),
        Step::Query { set: WORLD.into() },
        call(Func::AllReduce, 1 << 20),
        finalize,
        destroy,
    ];
    let run = Job::new(lab, "job")?.policy(&lab.policy("ring_simple_all")).run_one(steps)?;
    run.expect_clean()?;
    let version = run.first("version")?.values["version"];
    ensure!(version == f64::from(lab.version.code()), "it says that it is {version}");
    expect_tuner(&run, 2, "2 ranks")?;
    expect_route(&run, "RING/SIMPLE")?;
    let query = &run.first("query")?.values;
    for (name, value) in [("members", 2.0), ("count0", 2.0), ("rank1", 1.0), ("device1", 1.0)] {
        ensure!(query.get(name) == Some(&value), "{name}: {query:?}");
    }
    let mut findings = Findings::new();
    findings.note("channels", coll_channels(&run)?);
    findings.note("tuner calls of one AllReduce, both ranks", calls(&run)?);
    Ok(findings)
}

fn a_process_each(lab: &Lab) -> Result<Findings> {
    const RANKS: u32 = 4;
    let mut job = Job::new(lab, "job")?.policy(&lab.policy("ring_simple_all"));
    let id = job.file("id");
    for rank in 0..RANKS {
        let [finalize, destroy] = finish(WORLD);
        job = job.process(vec![
            init_rank(RANKS, rank, &id),
            Step::Query { set: WORLD.into() },
            call(Func::AllReduce, 1 << 20),
            finalize,
            destroy,
        ]);
    }
    let runs = job.run()?;
    for (rank, run) in runs.iter().enumerate() {
        run.expect_clean()?;
        expect_tuner(run, 1, "4 ranks")?;
        let query = &run.first("query")?.values;
        ensure!(query["rank0"] == rank as f64 && query["count0"] == 4.0, "{query:?}");
    }
    expect_route(&runs[0], "RING/SIMPLE")?;
    let mut findings = Findings::new();
    findings.note("channels", coll_channels(&runs[0])?);
    findings.note("transport between the processes", transports(&runs[0]).join(", "));
    findings.note("tuner calls of one AllReduce, a rank", calls(&runs[0])?);
    Ok(findings)
}

fn a_thread_each(lab: &Lab) -> Result<Findings> {
    const RANKS: u32 = 4;
    const TIMES: u32 = 50;
    let job = Job::new(lab, "job")?.policy(&lab.policy("ring_simple_all"));
    let id = job.file("id");
    let bodies = (0..RANKS).map(|rank| {
        let [finalize, destroy] = finish(WORLD);
        let calls = vec![call(Func::AllReduce, 1 << 20), call(Func::AllGather, 1 << 10)];
        vec![init_rank(RANKS, rank, &id), Step::Repeat { times: TIMES, body: calls }, finalize, destroy]
    });
    let run = job.run_one(vec![Step::Threads { bodies: bodies.collect() }])?;
    run.expect_clean()?;
    expect_tuner(&run, RANKS as usize, "4 ranks")?;
    expect_route(&run, "RING/SIMPLE")?;
    expect_no_fault(&run)?;
    let planned = run.log.planned().len();
    ensure!(planned == 2 * TIMES as usize, "rank 0 planned {planned} collectives of {}", 2 * TIMES);
    let mut findings = Findings::new();
    findings.note(format!("tuner calls of {} collectives, all ranks", 2 * TIMES), calls(&run)?);
    Ok(findings)
}

/// Two ranks a node. A launch over the network never completes without a kernel, so the communicators are aborted.
fn nodes(lab: &Lab) -> Result<Findings> {
    const RANKS: u32 = 4;
    let mut job = Job::new(lab, "job")?
        .policy(&lab.policy("ring_simple_all"))
        .env("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING,COLL,NET");
    let id = job.file("id");
    for rank in 0..RANKS {
        let reduce = Collective::new(WORLD, Func::AllReduce, 1 << 20);
        let steps = vec![
            init_rank(RANKS, rank, &id),
            Step::Simulate { body: vec![reduce.clone()] },
            Step::Collective(reduce),
            Step::Abort { set: WORLD.into() },
        ];
        job = job.process_with(steps, [("NCCL_HOSTID", if rank < 2 { "node0" } else { "node1" })]);
    }
    let runs = job.run()?;
    for run in &runs {
        run.expect_clean()?;
        expect_tuner(run, 1, "4 ranks")?;
        ensure!(run.log.containing("nNodes 2").next().is_some(), "NCCL should see two nodes\n{run}");
        let estimate = run.first("simulate")?.values["estimate_us"];
        ensure!(estimate >= 0.0, "an estimate of {estimate} us");
    }
    expect_route(&runs[0], "RING/SIMPLE")?;
    let mut findings = Findings::new();
    findings.note("channels", coll_channels(&runs[0])?);
    findings.note("transport between ranks 0 and 1", transports(&runs[0]).join(", "));
    findings.note("tuner calls of a plan and a launch, a rank", calls(&runs[0])?);
    findings.note("plans in NCCL's log of a plan and a launch", runs[0].log.planned().len());
    Ok(findings)
}

fn eight_with_nvlink(lab: &Lab) -> Result<Findings> {
    let [finalize, destroy] = finish(WORLD);
    let steps = vec![init_all(8), call(Func::AllReduce, 1 << 20), finalize, destroy];
    let run =
        Job::new(lab, "job")?.topology("nvlink8").policy(&lab.policy("ring_simple_all")).run_one(steps)?;
    run.expect_clean()?;
    expect_tuner(&run, 8, "8 ranks")?;
    expect_route(&run, "RING/SIMPLE")?;
    let mut findings = Findings::new();
    findings.note("channels", coll_channels(&run)?);
    findings.note("channels of a 4 MiB AllReduce", run.log.planned()[0].channels);
    findings.note("tuner calls of one AllReduce, all ranks", calls(&run)?);
    Ok(findings)
}

/// The transports of this process's connections, by name, each once.
fn transports(run: &Run) -> Vec<String> {
    let mut names: Vec<String> = run
        .log
        .containing(" via ")
        .filter(|text| text.starts_with("Channel "))
        .filter_map(|text| {
            Some(text.rsplit_once(" via ")?.1.split(['/', ' ']).take(2).collect::<Vec<_>>().join("/"))
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
