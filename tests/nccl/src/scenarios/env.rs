//! NCCL's look-ups through our env plugin. `NCCL_MAX_NCHANNELS` shows who answered: NCCL prints how many channels a communicator has.

use anyhow::{Result, ensure};

use super::common::{coll_channels, expect_tuner};
use super::natives::{manifest, two_ranks};
use crate::job::{Job, Run};
use crate::native;
use crate::scenario::{Findings, Lab, Scenario, install};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "env::set",
        about: "A value of the manifest's [env.set] reaches NCCL, since it has env plugins (2.28.9).",
        run: set,
    },
    Scenario {
        name: "env::who_wins",
        about: "The process environment is stronger than [env.set], and `override` is stronger than the process.",
        run: who_wins,
    },
    Scenario {
        name: "env::a_policy_answers",
        about: "A policy on the hook env answers the one name that it may answer, and no other, whatever it would like.",
        run: a_policy_answers,
    },
    Scenario {
        name: "env::names_the_tuner",
        about: "Ringfence as the env plugin names itself as the tuner.",
        run: names_the_tuner,
    },
];

/// Since when NCCL has env plugins.
fn has_env(lab: &Lab) -> bool {
    lab.since(2, 28, 9)
}

/// Two ranks with our env plugin, this manifest, and these variables in the process.
fn run(lab: &Lab, name: &str, text: &str, process: &[(&str, &str)]) -> Result<Run> {
    let dir = lab.policy_dir(&format!("{name}.policies"))?;
    install(&native::policy("one", &lab.scratch, &[])?, &dir, "one.bpf.o")?;
    manifest(lab, &dir, text)?;
    let job = Job::new(lab, name)?.env("NCCL_ENV_PLUGIN", &lab.so).env("RINGFENCE_POLICY", &dir);
    let job = process.iter().fold(job, |job, (name, value)| job.env(name, value));
    let run = job.run_one(two_ranks([]))?;
    run.expect_clean()?;
    Ok(run)
}

/// Channels with and without the answer 1.
fn expect_channels(lab: &Lab, run: &Run, answered: bool) -> Result<u32> {
    let channels = coll_channels(run)?;
    let one = answered && has_env(lab);
    ensure!(
        (channels == 1) == one,
        "{channels} channels, and the answer should {}count\n{run}",
        if one { "" } else { "not " }
    );
    Ok(channels)
}

fn set(lab: &Lab) -> Result<Findings> {
    let run = run(lab, "job", "policy = []\n[env.set]\nNCCL_MAX_NCHANNELS = '1'\n", &[])?;
    let channels = expect_channels(lab, &run, true)?;
    let interface = run.log.containing("ENV/Plugin: Using Ringfence (").next();
    ensure!(interface.is_some() == has_env(lab), "{interface:?}\n{run}");
    let mut findings = Findings::new();
    let version =
        interface.and_then(|line| line.rsplit_once('(')).map(|(_, version)| version.trim_end_matches(')'));
    findings.note("interface", version.unwrap_or("none"));
    findings.note("channels with NCCL_MAX_NCHANNELS answered as 1", channels);
    Ok(findings)
}

fn who_wins(lab: &Lab) -> Result<Findings> {
    let text = "policy = []\n[env]\noverride = []\n[env.set]\nNCCL_MAX_NCHANNELS = '1'\n";
    let process = &[("NCCL_MAX_NCHANNELS", "2")];
    let run_process = run(lab, "process", text, process)?;
    expect_channels(lab, &run_process, false)?;
    let text = text.replace("[]\n[env.set]", "['NCCL_MAX_NCHANNELS']\n[env.set]");
    let run_override = run(lab, "override", &text, process)?;
    expect_channels(lab, &run_override, true)?;
    Ok(Findings::new())
}

fn a_policy_answers(lab: &Lab) -> Result<Findings> {
    let text = "[[policy]]\nfile = 'one.bpf.o'\n[env]\nallow = ['NCCL_MAX_NCHANNELS']\n";
    let allowed = run(lab, "allowed", text, &[])?;
    expect_channels(lab, &allowed, true)?;
    // It would answer this one, and every other, too.
    let other = text.replace("NCCL_MAX_NCHANNELS", "NCCL_GRAPH_REGISTER");
    let not_allowed = run(lab, "not_allowed", &other, &[])?;
    expect_channels(lab, &not_allowed, false)?;
    Ok(Findings::new())
}

fn names_the_tuner(lab: &Lab) -> Result<Findings> {
    // The process says that there is to be none.
    let so = lab.so.display();
    let text = format!(
        "policy = []\n[env]\noverride = ['NCCL_TUNER_PLUGIN']\n[env.set]\nNCCL_TUNER_PLUGIN = '{so}'\n"
    );
    let run = run(lab, "job", &text, &[])?;
    expect_tuner(&run, if has_env(lab) { 2 } else { 0 }, "policy none")?;
    Ok(Findings::new())
}
