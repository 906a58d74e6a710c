//! What NCCL makes of a tuner that does what it must not: each fault provoked on purpose with the native tuner of tests/nccl/native, then
//! with the same tuner behind ours, which must keep it from NCCL, and by policies that would like to do the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::common::{call, coll_channels, expect_no_fault, expect_tuner};
use super::decisions::{expect_decided, hostile, offered};
use super::natives::{
    COUNTS, NativeTuner, all_reduces, manifest, two_ranks, two_ranks_to_the_end, two_roots,
};
use super::outcome::{outcome, plans};

use crate::job::{Job, Run};
use crate::native;
use crate::scenario::{Findings, Lab, Scenario, install};
use crate::script::{Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "traps::errors",
        about: "A tuner's call returns an error, which NCCL's headers promise to survive; behind Ringfence it is survived.",
        run: |lab| provoke(lab, &all_reduces(), ERRORS),
    },
    Scenario {
        name: "traps::costs",
        about: "A tuner writes negative costs and NaN over entries of the table; behind Ringfence that disables them in every NCCL.",
        run: |lab| provoke(lab, &all_reduces(), COSTS),
    },
    Scenario {
        name: "traps::revived_entries",
        about: "A tuner gives a cost to entries that NCCL marked as not available; behind Ringfence they stay so.",
        run: |lab| provoke(lab, &all_reduces(), REVIVED),
    },
    Scenario {
        name: "traps::channels",
        about: "A tuner asks for more channels than the communicator has, or for a number that does not fit; behind Ringfence it does not.",
        run: |lab| provoke(lab, &all_reduces(), CHANNELS),
    },
    Scenario {
        name: "traps::broadcasts_of_two_roots",
        about: "The same in a group of Broadcasts from two roots, which NCCL plans as one AllGatherV since 2.29.",
        run: |lab| provoke(lab, &[two_roots(256)], BATCHES),
    },
    Scenario {
        name: "traps::chunk_sizes",
        about: "A tuner returns a chunk size below the protocol's grain, or beyond all bounds; behind Ringfence it is a whole number of grains.",
        run: |lab| provoke(lab, &all_reduces(), CHUNKS),
    },
    Scenario {
        name: "traps::no_policy_can",
        about: "A policy that decides all 770 combinations of algorithms, protocols and channels, and all chunk sizes, the senseless included: every collective succeeds, with what was offered.",
        run: no_policy_can,
    },
    Scenario {
        name: "traps::no_constants_can",
        about: "A policy that makes every constant of the cost model 0, 1 or as large as it can: NCCL still finds an algorithm.",
        run: no_constants_can,
    },
    Scenario {
        name: "traps::costs_are_read_only",
        about: "A policy that writes to NCCL's costs, as a native tuner does, is refused, and NCCL decides alone.",
        run: costs_are_read_only,
    },
    Scenario {
        name: "traps::a_broken_promise",
        about: "An operator promises in limits.max_channels more channels than there are: what no policy can do alone, the manifest can.",
        run: a_broken_promise,
    },
];

/// A fault of a tuner.
struct Trap {
    /// In the table.
    name: &'static str,
    /// What the native tuner is told.
    env: &'static [(&'static str, &'static str)],
    /// What must come of it behind Ringfence.
    behind_ours: Behind,
}

/// What NCCL must do when the faulty tuner stands behind Ringfence.
enum Behind {
    /// As without a tuner.
    NcclDecides,
    /// Succeed, and never choose this.
    Without(&'static str),
}

const fn trap(name: &'static str, env: &'static [(&'static str, &'static str)], behind_ours: Behind) -> Trap {
    Trap { name, env, behind_ours }
}

const ERRORS: &[Trap] = &[
    trap("init returns an error", &[("INIT_RC", "3")], Behind::NcclDecides),
    trap("getCollInfo returns an error", &[("GET_RC", "3")], Behind::NcclDecides),
    trap("getCollInfo returns \"in progress\"", &[("GET_RC", "7")], Behind::NcclDecides),
    trap("getChunkSize returns an error", &[("CHUNK_RC", "3")], Behind::NcclDecides),
];

const COSTS: &[Trap] = &[
    trap(
        "-1 over the best entry for small sizes (Ring/LL)",
        &[("SET", "1,0,-1")],
        Behind::Without("RING/LL"),
    ),
    trap(
        "-1 over an entry that is never best (Tree/Simple)",
        &[("SET", "0,2,-1")],
        Behind::Without("TREE/SIMPLE"),
    ),
    trap("NaN over Ring/LL", &[("SET", "1,0,nan")], Behind::Without("RING/LL")),
    trap("-1 over all entries", &[("ALL", "-1")], Behind::NcclDecides),
    trap("NaN over all entries", &[("ALL", "nan")], Behind::NcclDecides),
];

const REVIVED: &[Trap] = &[
    trap("Ring/LL128 costs 0", &[("SET", "1,1,0")], Behind::NcclDecides),
    trap("CollNetDirect/Simple costs 0", &[("SET", "2,2,0")], Behind::Without("COLLNET_DIRECT/SIMPLE")),
    trap("CollNetChain/Simple costs 0", &[("SET", "3,2,0")], Behind::Without("COLLNET_CHAIN/SIMPLE")),
    trap("NVLS/Simple costs 0", &[("SET", "4,2,0")], Behind::NcclDecides),
    trap("NVLSTree/Simple costs 0", &[("SET", "5,2,0")], Behind::NcclDecides),
    trap("PAT/Simple costs 0", &[("SET", "6,2,0")], Behind::NcclDecides),
];

const CHANNELS: &[Trap] = &[
    trap("64 channels", &[("CHANNELS", "64")], Behind::NcclDecides),
    trap("128 channels", &[("CHANNELS", "128")], Behind::NcclDecides),
    trap("256 channels", &[("CHANNELS", "256")], Behind::NcclDecides),
    trap("-1 channels", &[("CHANNELS", "-1")], Behind::NcclDecides),
];

const BATCHES: &[Trap] = &[
    trap("2 channels", &[("CHANNELS", "2")], Behind::NcclDecides),
    trap("5 channels", &[("CHANNELS", "5")], Behind::NcclDecides),
    trap("64 channels", &[("CHANNELS", "64")], Behind::NcclDecides),
];

const CHUNKS: &[Trap] = &[
    trap("0 bytes", &[("CHUNK", "0")], Behind::NcclDecides),
    trap("511 bytes", &[("CHUNK", "511")], Behind::NcclDecides),
    trap("2^33 bytes", &[("CHUNK", "8589934592")], Behind::NcclDecides),
    trap("-1 bytes", &[("CHUNK", "-1")], Behind::NcclDecides),
];

/// Each trap with the native tuner alone, which is recorded, and behind ours, which must be clean.
fn provoke(lab: &Lab, body: &[Step], traps: &[Trap]) -> Result<Findings> {
    let tuner = NativeTuner::build(lab)?;
    let steps = two_ranks(body.to_vec());
    let calm = tuner.alone(lab, "calm")?.run_one(steps.clone())?;
    calm.expect_clean().context("the native tuner that touches nothing")?;
    let mut findings = Findings::new();
    findings.note("nothing", outcome(&calm, &steps)?);
    for (number, trap) in traps.iter().enumerate() {
        let name = format!("alone{number}");
        let alone = told(tuner.alone(lab, &name)?, trap.env).run_one(steps.clone())?;
        findings.note(trap.name, outcome(&alone, &steps)?);
        let name = format!("chained{number}");
        let behind = told(tuner.chained(lab, &name)?, trap.env).run_one(steps.clone())?;
        expect_kept_away(trap, &behind, &calm).with_context(|| format!("behind Ringfence: {}", trap.name))?;
        let called = tuner.calls(&name)?.iter().any(|line| line.starts_with("init"));
        ensure!(called, "the tuner behind Ringfence was not called: {}", trap.name);
    }
    Ok(findings)
}

fn told<'a>(job: Job<'a>, env: &[(&str, &str)]) -> Job<'a> {
    let job = job.timeout(Duration::from_secs(20));
    env.iter().fold(job, |job, (name, value)| job.env(format!("NATIVE_TUNER_{name}"), value))
}

fn expect_kept_away(trap: &Trap, behind: &Run, calm: &Run) -> Result<()> {
    behind.expect_clean()?;
    match trap.behind_ours {
        Behind::NcclDecides => {
            ensure!(plans(behind) == plans(calm), "{} instead of {}\n{behind}", plans(behind), plans(calm));
        }
        Behind::Without(route) => {
            let planned = behind.log.planned();
            ensure!(planned.len() == COUNTS.len(), "{} plans\n{behind}", planned.len());
            ensure!(planned.iter().all(|plan| plan.route() != route), "{route} was chosen: {planned:?}");
        }
    }
    Ok(())
}

/// All that a decision can say, in every collective with a tuner, launched; then in groups of Broadcasts.
fn no_policy_can(lab: &Lab) -> Result<Findings> {
    let tuner = NativeTuner::build(lab)?;
    let funcs = [Func::Broadcast, Func::Reduce, Func::AllGather, Func::ReduceScatter, Func::AllReduce];
    let singles = funcs.iter().flat_map(|func| (1..=hostile::COMBINATIONS).map(|count| call(*func, count)));
    // An AllGatherV is asked for by the bytes of both roots' parts.
    let groups = (1..=hostile::COMBINATIONS / 2).map(two_roots);
    let steps = two_ranks_to_the_end(singles.chain(groups));
    let calm = tuner.alone(lab, "calm")?.run_one(steps.clone())?;
    calm.expect_clean()?;
    let hostile = native::policy("hostile", &lab.scratch, &[])?;
    let run = Job::new(lab, "hostile")?.policy(&hostile).run_one(steps)?;
    run.expect_clean()?;
    expect_tuner(&run, 2, "policy hostile.decide+1 ")?;
    let offered = offered(&tuner.calls("calm")?);
    let (calm, planned) = (calm.log.planned(), run.log.planned());
    ensure!(planned.len() == calm.len(), "{} plans instead of {}", planned.len(), calm.len());
    let channels = coll_channels(&run)?;
    for (at, (plan, calm)) in planned.iter().zip(&calm).enumerate() {
        ensure!((&plan.func, plan.bytes) == (&calm.func, calm.bytes), "{plan:?} instead of {calm:?}");
        ensure!(plan.channels <= channels, "{plan:?} has more than {channels} channels");
        // The groups, of which NCCL up to 2.28 tells as well, are decided by the sum of their parts.
        if at < funcs.len() * hostile::COMBINATIONS as usize {
            expect_decided(plan, calm, &offered)?;
        }
    }
    expect_no_fault(&run)?;
    let mut findings = Findings::new();
    for func in ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"] {
        findings.note(format!("offered for {func}"), offered.text(func));
    }
    Ok(findings)
}

fn no_constants_can(lab: &Lab) -> Result<Findings> {
    let mut findings = Findings::new();
    for (name, value) in [("0", "0"), ("1", "1"), ("4294967295", "4294967295u")] {
        let dir = lab.policy_dir(&format!("constants{name}"))?;
        let policy = native::policy("constants", &dir, &[&format!("VALUE={value}")])?;
        let job = Job::new(lab, &format!("with{name}"))?;
        let run = job.policy(&policy).run_one(two_ranks(all_reduces()))?;
        run.expect_clean().with_context(|| format!("every constant {name}"))?;
        ensure!(run.log.planned().len() == COUNTS.len(), "not every collective was planned\n{run}");
        findings.note(format!("every constant {name}"), plans(&run));
    }
    Ok(findings)
}

fn costs_are_read_only(lab: &Lab) -> Result<Findings> {
    let tuner = NativeTuner::build(lab)?;
    let steps = two_ranks(all_reduces());
    let calm = tuner.alone(lab, "calm")?.run_one(steps.clone())?;
    let policy = native::policy("costs", &lab.scratch, &[])?;
    let run = Job::new(lab, "job")?.policy(&policy).run_one(steps)?;
    run.expect_clean()?;
    ensure!(plans(&run) == plans(&calm), "{} instead of {}", plans(&run), plans(&calm));
    let said = run.log.containing("reject[ctx-write]").next();
    ensure!(said.is_some(), "NCCL's log does not say why the policy is not taken\n{run}");
    Ok(Findings::new())
}

/// The promise lifts the bound of AllGather and CollNet, for which NCCL up to 2.30 has none of its own.
fn a_broken_promise(lab: &Lab) -> Result<Findings> {
    let dir = lab.policy_dir("promise")?;
    let policy = native::policy("hostile", &lab.scratch, &[])?;
    install(&policy, &dir, "hostile.bpf.o")?;
    let mut findings = Findings::new();
    for promised in [2, 64] {
        let text = format!(
            "[limits]\nmax_channels = {promised}\n[[policy]]\nfile = 'hostile.bpf.o'\nprogram = 'decide'\n"
        );
        manifest(lab, &dir, &text)?;
        // Both roots' parts together are of combination 220: 64 channels.
        let steps = two_ranks([two_roots(hostile::count_for_channels(64) / 2)]);
        let run = Job::new(lab, &format!("promise{promised}"))?.policy(&dir).run_one(steps.clone())?;
        let came = outcome(&run, &steps)?;
        ensure!(promised > 2 || came == plans(&run), "2 channels are always there, but: {came}\n{run}");
        findings.note(format!("64 channels, promised {promised}"), came);
    }
    Ok(findings)
}
