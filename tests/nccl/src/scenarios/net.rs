//! Two processes on two nodes, whose NCCL reaches the other through our net plugin and, behind it, a plugin over TCP (tests/netplug).
//! Connections, registrations and posted receives are NCCL's own. Sends are not: only a kernel hands their data over.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::common::{WORLD, call, finish, init_rank};
use super::natives::{lines, manifest, netplug, two_ranks};
use super::outcome::outcome;
use crate::job::{Job, Run};
use crate::native;
use crate::scenario::{Findings, Lab, Scenario, install};
use crate::script::{Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "net::connections",
        about: "Two ranks connect through Ringfence and a TCP plugin behind it: what NCCL asks of a net plugin, that all is closed in the end, and that policies hear of each call.",
        run: connections,
    },
    Scenario {
        name: "net::a_collective",
        about: "An AllReduce over the network is launched and aborted: NCCL's proxy thread posts receives through Ringfence.",
        run: a_collective,
    },
    Scenario {
        name: "net::a_denied_connection",
        about: "A policy denies every connection: what NCCL makes of ncclSystemError from a net plugin.",
        run: a_denied_connection,
    },
    Scenario {
        name: "net::no_plugin_behind",
        about: "Without a plugin behind it, Ringfence has no devices, and NCCL takes its own sockets.",
        run: no_plugin_behind,
    },
];

/// A run of the two ranks, and what the plugin behind ours was asked in each.
struct Pair {
    runs: Vec<Run>,
    asked: Vec<Vec<String>>,
}

/// Two ranks with some programs of a policy's object.
fn pair(lab: &Lab, policy: &Path, programs: &[&str], body: &[Step]) -> Result<Pair> {
    let dir = lab.policy_dir("policies")?;
    let name = policy.file_name().context("an object has a name")?.to_string_lossy();
    install(policy, &dir, &name)?;
    let entry = |program: &&str| format!("[[policy]]\nfile = '{name}'\nprogram = '{program}'\n");
    manifest(lab, &dir, &programs.iter().map(entry).collect::<String>())?;
    let mut job = Job::new(lab, "job")?
        .env("NCCL_NET_PLUGIN", &lab.so)
        .env("RINGFENCE_CHAIN_NET", netplug(lab)?)
        .env("RINGFENCE_POLICY", &dir)
        .env("NCCL_P2P_DISABLE", "1")
        .env("NCCL_SHM_DISABLE", "1")
        .env("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING,COLL,NET");
    let id = job.file("id");
    let log = |rank: u32| lab.scratch.join(format!("rank{rank}.netplug"));
    for rank in 0..2 {
        let mut steps = vec![init_rank(2, rank, &id)];
        steps.extend_from_slice(body);
        let (host, log) = (format!("node{rank}"), log(rank).display().to_string());
        job = job.process_with(steps, [("NCCL_HOSTID", host.as_str()), ("NETPLUG_LOG", log.as_str())]);
    }
    let runs = job.run()?;
    let asked = (0..2).map(|rank| lines(&log(rank))).collect::<Result<_>>()?;
    Ok(Pair { runs, asked })
}

/// How often the plugin behind ours was called so.
fn times(asked: &[String], call: &str) -> usize {
    asked.iter().filter(|line| line.split(' ').next() == Some(call)).count()
}

/// The version in which ours wraps the plugin, as our line says it.
fn wrapped(run: &Run) -> Result<String> {
    let line = run.log.ours().find_map(|line| line.split_once(" wrapped as ").map(|(_, version)| version));
    Ok(line.with_context(|| format!("nothing was wrapped\n{run}"))?.to_owned())
}

/// The programs of policies/ops.bpf.c, but for transfers.
const OPS: &[&str] = &[
    "init",
    "listen",
    "accept",
    "connected",
    "reg_mr",
    "dereg_mr",
    "close_send",
    "close_recv",
    "close_listen",
];

fn connections(lab: &Lab) -> Result<Findings> {
    let policy = native::policy("ops", &lab.scratch, &[])?;
    let pair = pair(lab, &policy, OPS, &finish(WORLD))?;
    for (run, asked) in pair.runs.iter().zip(&pair.asked) {
        run.expect_clean()?;
        ensure!(run.log.containing("via NET/netplug").next().is_some(), "NCCL does not use it\n{run}");
        let calls = balanced(asked)?;
        let seen = run.metric("ringfence_policy_submitted_total", "policy=\"ops\"")?;
        ensure!(seen == calls as f64, "policies saw {seen} of {calls} calls\n{run}");
        ensure!(run.metric("ringfence_policy_faults_total", "")? == 0.0, "a policy faulted\n{run}");
    }
    let count = |call: &str| times(&pair.asked[0], call);
    let mut findings = Findings::new();
    findings.note("interface", wrapped(&pair.runs[0])?);
    findings.note("connections of a rank", count("connect"));
    findings.note("registrations of a rank", count("regMr"));
    findings.note("finalize", count("finalize"));
    findings.note("setNetAttr", if count("setNetAttr") > 0 { "called" } else { "not called" });
    Ok(findings)
}

/// Whatever was opened or registered was given back. The number of calls for which a program of [`OPS`] submits, each for its own kind;
/// our counters of them are one, as they have one name.
fn balanced(asked: &[String]) -> Result<usize> {
    // With a context, a listen has two lines.
    let listens = asked.iter().filter(|line| line.starts_with("listen dev")).count();
    let count = |call: &str| times(asked, call);
    let pairs = [
        (count("accept"), count("closeRecv")),
        (count("connect"), count("closeSend")),
        (listens, count("closeListen")),
        (count("regMr"), count("deregMr")),
    ];
    for (opened, closed) in pairs {
        ensure!(opened > 0 && opened == closed, "{opened} opened, {closed} closed: {asked:?}");
    }
    Ok(count("init") + pairs.iter().map(|(opened, closed)| opened + closed).sum::<usize>())
}

fn a_collective(lab: &Lab) -> Result<Findings> {
    let policy = native::policy("ops", &lab.scratch, &[])?;
    let body = [call(Func::AllReduce, 1 << 18), Step::Sleep { ms: 1000 }, Step::Abort { set: WORLD.into() }];
    let pair = pair(lab, &policy, &["irecv"], &body)?;
    let mut findings = Findings::new();
    for (rank, (run, asked)) in pair.runs.iter().zip(&pair.asked).enumerate() {
        run.expect_clean()?;
        let posted = times(asked, "irecv");
        ensure!(posted > 0, "no receive was posted: {asked:?}\n{run}");
        let seen = run.metric("ringfence_policy_submitted_total", "policy=\"ops\"")?;
        ensure!(seen == posted as f64, "policies saw {seen} of {posted} receives\n{run}");
        if rank == 0 {
            findings.note("plan", super::outcome::plans(run));
            findings.note(
                "buffers of a receive",
                asked.iter().find_map(|l| l.strip_prefix("irecv ")).unwrap_or_default(),
            );
        }
    }
    Ok(findings)
}

fn a_denied_connection(lab: &Lab) -> Result<Findings> {
    let policy = native::policy("deny", &lab.scratch, &[])?;
    let pair = pair(lab, &policy, &["deny"], &[])?;
    let mut outcomes = Vec::new();
    for (rank, (run, asked)) in (0..).zip(pair.runs.iter().zip(&pair.asked)) {
        ensure!(times(asked, "connect") == 0, "the plugin was asked to connect: {asked:?}");
        let said = run.log.containing("a net policy denied a connection on device 0").next();
        ensure!(said.is_some(), "NCCL's log does not say why\n{run}");
        outcomes.push(outcome(run, &[init_rank(2, rank, Path::new("id"))])?);
    }
    ensure!(outcomes.iter().any(|o| o.contains("ncclSystemError")), "{outcomes:?}");
    let mut findings = Findings::new();
    findings.note("ranks", outcomes.join(", "));
    Ok(findings)
}

fn no_plugin_behind(lab: &Lab) -> Result<Findings> {
    let run = Job::new(lab, "job")?
        .env("NCCL_NET_PLUGIN", &lab.so)
        .env("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET")
        .run_one(two_ranks([]))?;
    run.expect_clean()?;
    ensure!(run.log.containing("Using network Socket").next().is_some(), "it took no sockets\n{run}");
    let loaded = "Loaded net plugin Ringfence (";
    let line = run.log.containing(loaded).next().with_context(|| format!("it was not loaded\n{run}"))?;
    let version = line.split_once(loaded).map(|(_, version)| version.trim_end_matches(')'));
    let mut findings = Findings::new();
    findings.note("interface", version.unwrap_or_default());
    let tuner = run.log.containing("TUNER/Plugin: Using").next().is_some();
    findings.note("takes the tuner of a net plugin's library, though NCCL_TUNER_PLUGIN is none", tuner);
    Ok(findings)
}
