//! Groups, plans without a launch, communicators of communicators.

use anyhow::{Result, ensure};

use super::common::{
    WORLD, call, calls, coll_channels, expect_no_fault, expect_route, expect_tuner, finish, init_all,
};
use super::witness::{Question, ask_each, describe};
use crate::job::Job;
use crate::native;
use crate::scenario::{Findings, Lab, Scenario};
use crate::script::{Collective, Config, Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "groups::aggregates",
        about: "Several collectives in one group, two ranks in one process: what the tuner is asked.",
        run: aggregates,
    },
    Scenario {
        name: "groups::broadcasts_of_several_roots",
        about: "Broadcasts from two roots in one group, which newer NCCLs make an AllGatherV of.",
        run: broadcasts_of_several_roots,
    },
    Scenario {
        name: "groups::simulate",
        about: "ncclGroupSimulateEnd: the tuner is asked, nothing is launched.",
        run: simulate,
    },
    Scenario {
        name: "groups::split",
        about: "ncclCommSplit of four ranks into two communicators, and one rank left out.",
        run: split,
    },
];

/// What two ranks of one process are asked for each group, by its name.
fn asked<const N: usize>(
    lab: &Lab,
    groups: [(&'static str, Vec<Collective>); N],
) -> Result<Vec<(&'static str, Vec<Question>)>> {
    let mut phases: Vec<Vec<Step>> = vec![vec![init_all(2)]];
    phases.extend(groups.iter().map(|(_, body)| vec![Step::Group { body: body.clone() }]));
    let (run, questions) = ask_each(lab, Job::new(lab, "asked")?, phases, finish(WORLD).into())?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    ensure!(questions.len() == N + 1 && questions[0].is_empty(), "no group, no question: {questions:?}");
    Ok(groups.into_iter().map(|(name, _)| name).zip(questions.into_iter().skip(1)).collect())
}

fn aggregates(lab: &Lab) -> Result<Findings> {
    let reduce = |count| Collective::new(WORLD, Func::AllReduce, count);
    let groups: [(&str, Vec<Collective>); 6] = [
        ("AllReduce of 4 KiB, twice", vec![reduce(1024), reduce(1024)]),
        ("AllReduce of 4 KiB and 12 KiB", vec![reduce(1024), reduce(3072)]),
        ("AllReduce of 4 KiB and 16 KiB", vec![reduce(1024), reduce(4096)]),
        ("AllReduce of 4 KiB and 64 KiB", vec![reduce(1024), reduce(16384)]),
        ("AllReduce of 4 KiB, sixteen times", vec![reduce(1024); 16]),
        (
            "AllReduce and AllGather of 4 KiB",
            vec![reduce(1024), Collective::new(WORLD, Func::AllGather, 1024)],
        ),
    ];
    let bytes = |body: &[Collective]| -> u64 {
        body.iter().map(|one| one.count * 4 * if one.func == Func::AllGather { 2 } else { 1 }).sum()
    };
    let sent: Vec<u64> = groups.iter().map(|(_, body)| bytes(body)).collect();
    let mut findings = Findings::new();
    for ((name, questions), sent) in asked(lab, groups)?.into_iter().zip(sent) {
        let told: u64 = questions.iter().map(|q| q.bytes).sum();
        ensure!(told == sent, "{name}: {sent} B were sent, {}", describe(&questions));
        findings.note(name, describe(&questions));
    }
    Ok(findings)
}

fn broadcasts_of_several_roots(lab: &Lab) -> Result<Findings> {
    let broadcast = |root, count| Collective { root, ..Collective::new(WORLD, Func::Broadcast, count) };
    let two = vec![broadcast(0, 1024), broadcast(1, 2048)];
    let groups = [
        ("one root, 4 KiB twice", vec![broadcast(0, 1024), broadcast(0, 1024)]),
        ("two roots, 4 KiB and 8 KiB", two.clone()),
    ];
    let mut findings = Findings::new();
    for (name, questions) in asked(lab, groups)? {
        ensure!(!questions.is_empty(), "{name}: the tuner was not asked");
        findings.note(name, describe(&questions));
    }

    // Channels above the communicator's own are not clamped by NCCL on this path, and crash it: the policy's must not arrive.
    let policy = native::policy("channels", &lab.scratch, &["CHANNELS=64"])?;
    let mut steps = vec![init_all(2), Step::Group { body: two }];
    steps.extend(finish(WORLD));
    let run = Job::new(lab, "channels")?.policy(&policy).run_one(steps)?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    ensure!(coll_channels(&run)? < 64 && calls(&run)? > 0.0, "the policy asked for too many\n{run}");
    findings.note("two roots, with a policy that asks for 64 channels", "passes");
    Ok(findings)
}

fn simulate(lab: &Lab) -> Result<Findings> {
    let body = vec![Collective::new(WORLD, Func::AllReduce, 1 << 20)];
    let mut steps = vec![init_all(2), Step::Simulate { body: body.clone() }, Step::Simulate { body }];
    steps.extend(finish(WORLD));
    let own = Job::new(lab, "own")?.run_one(steps.clone())?;
    let estimate = own.expect_clean()?.first("simulate")?.values["estimate_us"];
    ensure!(estimate > 0.0, "NCCL alone estimates {estimate} us");
    let run = Job::new(lab, "job")?.policy(&lab.policy("ring_simple_all")).run_one(steps)?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    let asked = calls(&run)?;
    ensure!(asked > 0.0, "the tuner was not asked\n{run}");
    let estimates: Vec<f64> = run.of("simulate").map(|report| report.values["estimate_us"]).collect();
    ensure!(estimates.len() == 2 && estimates[0] == estimates[1], "the same twice: {estimates:?}");
    let mut findings = Findings::new();
    findings.note("tuner calls of two plans, both ranks", asked);
    findings.note("plans in NCCL's log", run.log.planned().len());
    findings.note("estimate after the tuner wrote a cost of 0", format!("{} us", estimates[0]));
    Ok(findings)
}

fn split(lab: &Lab) -> Result<Findings> {
    let into = |set: &str, colors: [i32; 4], share: bool| Step::Split {
        set: WORLD.into(),
        into: set.into(),
        colors: colors.to_vec(),
        config: Config { split_share: Some(share), ..Config::default() },
    };
    let reduce = |set: &str| Step::Collective(Collective::new(set, Func::AllReduce, 1 << 20));
    let mut steps = vec![init_all(4), into("halves", [0, 0, 1, 1], false), into("most", [0, -1, 0, 0], true)];
    steps.extend(["halves", "most"].map(|set| Step::Query { set: set.into() }));
    steps.extend([reduce("halves"), reduce("most"), call(Func::AllReduce, 1 << 20)]);
    for set in ["halves", "most", WORLD] {
        steps.extend(finish(set));
    }
    let run = Job::new(lab, "job")?.policy(&lab.policy("ring_simple_all")).run_one(steps)?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    expect_route(&run, "RING/SIMPLE")?;
    expect_tuner(&run, 4 + 4 + 3, "ranks")?;
    let of = |ranks: &str| run.log.init_lines("tuner").iter().filter(|line| line.contains(ranks)).count();
    ensure!((of("2 ranks"), of("3 ranks"), of("4 ranks")) == (4, 3, 4), "{:?}", run.log.init_lines("tuner"));
    let queries: Vec<_> = run.of("query").map(|report| &report.values).collect();
    ensure!(queries[0]["members"] == 4.0 && queries[1]["members"] == 3.0, "{queries:?}");
    ensure!(queries[0]["rank3"] == 1.0 && queries[1]["rank2"] == 2.0, "{queries:?}");
    let ids: std::collections::BTreeSet<&str> =
        run.log.init_lines("tuner").into_iter().filter_map(comm_id).collect();
    let mut findings = Findings::new();
    findings.note("communicator ids that the tuner saw, of the parent and three children", ids.len());
    findings.note("tuner calls of an AllReduce on each, all ranks", calls(&run)?);
    findings.note("channels are the same in all", coll_channels(&run).is_ok());
    Ok(findings)
}

/// `0x...` of an INIT line.
fn comm_id(line: &str) -> Option<&str> {
    line.split_once("comm ")?.1.split(',').next()
}
