//! Which collectives reach a tuner, and with which numbers.

use anyhow::{Result, ensure};

use super::common::{WORLD, call, expect_no_fault, expect_tuner, finish, init_all, init_rank};
use super::witness::{Question, ask, describe};
use crate::job::Job;
use crate::scenario::{Findings, Lab, Scenario};
use crate::script::{Collective, DataType, Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "collectives::all",
        about: "Each call on four ranks of one process: what the tuner is asked, as our plugin shows it to a policy.",
        run: all,
    },
    Scenario {
        name: "collectives::sizes",
        about: "AllReduce from one byte to 16 GiB, other data types, and counts of zero: the bytes that the tuner is told.",
        run: sizes,
    },
    Scenario {
        name: "collectives::offered",
        about: "The algorithms and protocols that NCCL offers the tuner for each collective, by machine.",
        run: offered,
    },
    Scenario {
        name: "collectives::decisions_by_size",
        about: "The policy size_aware decides by size; NCCL's log names what it took.",
        run: decisions_by_size,
    },
];

const RANKS: u32 = 4;

fn all(lab: &Lab) -> Result<Findings> {
    let calls = [
        ("ncclBroadcast", Func::Broadcast),
        ("ncclReduce", Func::Reduce),
        ("ncclAllGather", Func::AllGather),
        ("ncclReduceScatter", Func::ReduceScatter),
        ("ncclAllReduce", Func::AllReduce),
        ("ncclSend and ncclRecv", Func::SendRecv),
        ("ncclAlltoAll", Func::AlltoAll),
    ];
    // Each has its own count, by which its questions are found again: primes, of which none is four times another.
    let count = |i: usize| [1031, 2053, 4099, 8209, 16_411, 32_771, 65_537_u64][i];
    let has = |func: Func| func != Func::AlltoAll || lab.since(2, 28, 0);
    let mut steps = vec![init_all(RANKS)];
    for (i, (_, func)) in calls.iter().enumerate().filter(|(_, (_, func))| has(*func)) {
        steps.push(call(*func, count(i)));
    }
    let (run, questions) = ask(lab, Job::new(lab, "job")?, steps, finish(WORLD).into())?;
    run.expect_clean()?;
    expect_tuner(&run, RANKS as usize, "4 ranks")?;
    expect_no_fault(&run)?;
    let mut findings = Findings::new();
    for (i, (name, func)) in calls.iter().enumerate() {
        if !has(*func) {
            findings.note(*name, "not in this NCCL");
            continue;
        }
        let of_ranks = matches!(func, Func::AllGather | Func::ReduceScatter | Func::AlltoAll);
        let bytes = count(i) * 4 * if of_ranks { u64::from(RANKS) } else { 1 };
        let asked: Vec<_> = questions.iter().filter(|q| q.bytes == bytes).cloned().collect();
        ensure!(asked.iter().all(|q| q.ranks == RANKS && q.nodes == 1), "{asked:?}");
        let tuned = !matches!(func, Func::SendRecv | Func::AlltoAll);
        ensure!(tuned != asked.is_empty(), "{name}: {asked:?} of {questions:?}");
        let names: Vec<_> = asked.iter().map(|q| format!("{} x{}", q.name(), q.calls)).collect();
        let whole = if of_ranks { "the whole buffer" } else { "the count" };
        findings.note(
            *name,
            if tuned { format!("{}, bytes of {whole}", names.join(", ")) } else { "nothing".into() },
        );
    }
    let known: u64 = questions.iter().map(|q| q.calls).sum();
    ensure!(known == super::common::calls(&run)? as u64, "the counters and the map tell the same\n{run}");
    Ok(findings)
}

fn sizes(lab: &Lab) -> Result<Findings> {
    let of = |count: u64, data_type: DataType| {
        let one = Collective { set: WORLD.into(), func: Func::AllReduce, count, data_type, root: 0 };
        Step::Collective(one)
    };
    let steps = vec![
        init_all(2),
        of(1, DataType::Int8),
        of(1, DataType::Float64),
        of(1000, DataType::Float16),
        of(1000, DataType::Float8e4m3),
        of(0, DataType::Float32),
        of((1 << 30) + 1, DataType::Int8),
        of(1 << 32, DataType::Float32),
    ];
    let (run, questions) = ask(lab, Job::new(lab, "job")?, steps, finish(WORLD).into())?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    let bytes: Vec<_> = questions.iter().map(|q| q.bytes).collect();
    ensure!(bytes == [1, 8, 1000, 2000, (1 << 30) + 1, 1 << 34], "{}", describe(&questions));
    ensure!(questions.iter().all(|q| q.calls == questions[0].calls), "{}", describe(&questions));
    let mut findings = Findings::new();
    findings.note("tuner calls of an AllReduce, both ranks", questions[0].calls);
    findings.note("tuner calls of an AllReduce of nothing", 0);
    Ok(findings)
}

/// What a tuner is asked about.
const TUNED: [Func; 5] =
    [Func::Broadcast, Func::Reduce, Func::AllGather, Func::ReduceScatter, Func::AllReduce];

/// Planned only: no launch is needed to be asked.
fn offered(lab: &Lab) -> Result<Findings> {
    let mut findings = Findings::new();
    for (machine, topology, ranks) in [("2 ranks on PCI", "pci8", 2), ("4 ranks on NVLink", "nvlink8", 4)] {
        let job = Job::new(lab, topology)?.topology(topology);
        note_offers(&mut findings, machine, &offers(lab, job, vec![init_all(ranks)])?);
    }
    let mut job = Job::new(lab, "nodes")?;
    let id = job.file("id");
    for rank in 1..RANKS {
        let mut steps = vec![init_rank(RANKS, rank, &id)];
        steps.extend(plan_each());
        steps.push(Step::Destroy { set: WORLD.into() });
        job = job.process_with(steps, [("NCCL_HOSTID", format!("node{rank}").as_str())]);
    }
    let job = job.env("NCCL_HOSTID", "node0");
    let questions = offers(lab, job, vec![init_rank(RANKS, 0, &id)])?;
    ensure!(questions.iter().all(|q| q.nodes == RANKS), "a rank a node: {questions:?}");
    note_offers(&mut findings, "4 nodes with a rank each", &questions);
    Ok(findings)
}

fn plan_each() -> impl Iterator<Item = Step> {
    TUNED.into_iter().map(|func| Step::Simulate { body: vec![Collective::new(WORLD, func, 1 << 20)] })
}

fn offers(lab: &Lab, job: Job<'_>, mut before: Vec<Step>) -> Result<Vec<Question>> {
    before.extend(plan_each());
    let (run, questions) = ask(lab, job, before, vec![Step::Destroy { set: WORLD.into() }])?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    ensure!(questions.len() == TUNED.len(), "one question a collective: {questions:?}");
    Ok(questions)
}

fn note_offers(findings: &mut Findings, machine: &str, questions: &[Question]) {
    for question in questions {
        findings.note(format!("{machine}: {}", question.name()), pairs(question.offered));
    }
}

/// The pairs of a policy's field `available`, by name.
fn pairs(bits: u64) -> String {
    const ALGORITHMS: [&str; 7] =
        ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
    const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];
    let pair = |i: usize| format!("{}/{}", ALGORITHMS[i / PROTOCOLS.len()], PROTOCOLS[i % PROTOCOLS.len()]);
    let pairs = (0..ALGORITHMS.len() * PROTOCOLS.len()).filter(|i| bits >> i & 1 == 1);
    pairs.map(pair).collect::<Vec<_>>().join(" ")
}

fn decisions_by_size(lab: &Lab) -> Result<Findings> {
    let sizes = [1 << 10, 4 << 10, (1 << 20) - 4, 1 << 20, 64 << 20_u64];
    let mut steps = vec![init_all(2)];
    steps.extend(sizes.map(|bytes| call(Func::AllReduce, bytes / 4)));
    steps.extend(finish(WORLD));
    let run = Job::new(lab, "decided")?.policy(&lab.policy("size_aware")).run_one(steps.clone())?;
    run.expect_clean()?;
    expect_no_fault(&run)?;
    let own = Job::new(lab, "own")?.run_one(steps)?;
    own.expect_clean()?;
    let (decided, own) = (run.log.planned(), own.log.planned());
    ensure!(decided.len() == sizes.len() && own.len() == sizes.len(), "{decided:?} {own:?}");
    let mut findings = Findings::new();
    for ((bytes, decided), own) in sizes.iter().zip(&decided).zip(&own) {
        ensure!(decided.bytes == *bytes, "{decided:?}");
        ensure!(
            decided.route() == size_aware(*bytes),
            "{bytes} B: size_aware says {}, {decided:?}",
            size_aware(*bytes)
        );
        findings.note(format!("{bytes} B without a tuner"), format!("{} {}", own.route(), own.channels));
        findings
            .note(format!("{bytes} B with size_aware"), format!("{} {}", decided.route(), decided.channels));
    }
    Ok(findings)
}

/// The rule of policies/c/size_aware.bpf.c.
fn size_aware(bytes: u64) -> &'static str {
    match bytes {
        ..4096 => "TREE/SIMPLE",
        4096..0x10_0000 => "RING/LL",
        _ => "RING/SIMPLE",
    }
}
