//! The plugin's interfaces that an NCCL takes, and decisions as they arrive: NCCL's own log names algorithm, protocol and channels.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::common::{call, coll_channels, expect_route, expect_tuner};
use super::natives::{NativeTuner, all_reduces, two_ranks, word};

use crate::job::{Job, Run};
use crate::log::Planned;
use crate::native;
use crate::scenario::{Findings, Lab, Scenario, install};
use crate::script::Func;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "decisions::interfaces",
        about: "One library for tuner, profiler, net and env at once: the version of each interface that NCCL takes, the highest that it knows.",
        run: interfaces,
    },
    Scenario {
        name: "decisions::arrive",
        about: "Every route that NCCL offers for an AllReduce of 1 MB, with every number of channels: NCCL does what the policy decided.",
        run: arrive,
    },
];

/// The decisions of policies/hostile.bpf.c, said again.
pub(super) mod hostile {
    use crate::log::Planned;

    /// How many there are: as many sizes ask for them all.
    pub(in crate::scenarios) const COMBINATIONS: u64 = 11 * 5 * 14;
    const CHANNELS: [u32; 14] =
        [0, 1, 2, 3, 5, 64, 65, 127, 128, 256, 1000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    const ALGOS: [&str; 7] = ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
    const PROTOS: [&str; 3] = ["LL", "LL128", "SIMPLE"];

    /// What the policy decides.
    #[derive(Debug)]
    pub(in crate::scenarios) struct Decision {
        algo: u64,
        proto: u64,
        /// Channels, 0 for NCCL's own.
        pub(in crate::scenarios) channels: u32,
    }

    impl Decision {
        /// What it decides for a plan of two ranks. NCCL's log has the bytes of one rank's part of an AllGather or ReduceScatter, and asks
        /// the tuner about the whole.
        pub(in crate::scenarios) fn of(plan: &Planned) -> Self {
            let whole = if ["AllGather", "ReduceScatter"].contains(&plan.func.as_str()) { 2 } else { 1 };
            let k = (whole * plan.bytes / 4).wrapping_sub(1) % COMBINATIONS;
            Self { algo: k % 11, proto: k / 11 % 5, channels: CHANNELS[(k / 55) as usize] }
        }

        /// Whether NCCL decides on the channels.
        pub(in crate::scenarios) fn leaves_channels(&self) -> bool {
            self.channels == 0 || self.is_coll_net()
        }

        /// Whether it asks for CollNet, with which the plugin passes no number of channels on: NCCL up to 2.30 does not bound it there.
        pub(in crate::scenarios) fn is_coll_net(&self) -> bool {
            (2..4).contains(&self.algo) && self.proto < 3
        }

        /// `RING/LL`, if it is one.
        pub(in crate::scenarios) fn route(&self) -> Option<String> {
            Some(format!("{}/{}", ALGOS.get(self.algo as usize)?, PROTOS.get(self.proto as usize)?))
        }
    }

    /// A number of floats for which so many channels are decided.
    pub(in crate::scenarios) fn count_for_channels(channels: u32) -> u64 {
        let at = CHANNELS.iter().position(|c| *c == channels).unwrap_or_default();
        55 * at as u64 + 2
    }
}

/// The whole plugin at work: four interfaces of one library, a net plugin below it.
fn interfaces(lab: &Lab) -> Result<Findings> {
    let netplug = super::natives::netplug(lab)?;
    let so = &lab.so;
    let dir = lab.policy_dir("policies")?;
    install(&lab.policy("ring_simple_all"), &dir, "ring_simple_all.bpf.o")?;
    super::natives::manifest(
        lab,
        &dir,
        "[[policy]]\nfile = 'ring_simple_all.bpf.o'\n[env.set]\nNCCL_MAX_NCHANNELS = '1'\n",
    )?;
    let run = Job::new(lab, "job")?
        .policy(&dir)
        .env("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING,COLL,NET")
        .env("NCCL_PROFILER_PLUGIN", so)
        .env("NCCL_NET_PLUGIN", so)
        .env("NCCL_ENV_PLUGIN", so)
        .env("RINGFENCE_CHAIN_NET", &netplug)
        .run_one(two_ranks(all_reduces()))?;
    run.expect_clean()?;
    expect_tuner(&run, 2, "policy ring_simple_all ")?;
    expect_route(&run, "RING/SIMPLE")?;
    let mut findings = Findings::new();
    for interface in ["tuner", "profiler", "env"] {
        findings.note(interface, taken(&run, interface));
    }
    let wrapped = run
        .log
        .ours()
        .find_map(|line| line.split_once(" wrapped as "))
        .context("no net plugin was wrapped")?;
    findings.note("net", wrapped.1);
    // Versions of tuner and profiler that NCCL 2.27 does not name, as the native plugins see them.
    findings.note("tuner, as a native one sees it", native_version(lab)?);
    Ok(findings)
}

/// What NCCL says of an interface of ours: `v6`, or how it says that it has it.
fn taken(run: &Run, interface: &str) -> String {
    let head = format!("{}/Plugin: ", interface.to_uppercase());
    let line = run.log.lines.iter().find_map(|line| {
        let said = line.text.strip_prefix(&head)?;
        (said.contains("Ringfence") && !said.contains("Closing")).then_some(said)
    });
    match line.map(|said| said.split_once(" (").map(|(_, version)| version.trim_end_matches(')'))) {
        Some(Some(version)) => version.to_owned(),
        Some(None) => "taken, version not said".into(),
        None => "not taken".into(),
    }
}

fn native_version(lab: &Lab) -> Result<String> {
    let tuner = NativeTuner::build(lab)?;
    tuner.alone(lab, "native")?.run_one(two_ranks([]))?.expect_clean()?;
    let calls = tuner.calls("native")?;
    let init = calls.iter().find_map(|line| line.strip_prefix("init ")).context("it was not called")?;
    Ok(init.split(' ').next().unwrap_or_default().to_owned())
}

/// A policy that decides by size, over all routes and numbers of channels, at sizes for which NCCL uses all channels.
fn arrive(lab: &Lab) -> Result<Findings> {
    let tuner = NativeTuner::build(lab)?;
    let large = 340 * hostile::COMBINATIONS;
    let steps = two_ranks((1..=hostile::COMBINATIONS).map(|count| call(Func::AllReduce, large + count)));
    let calm = tuner.alone(lab, "calm")?.run_one(steps.clone())?;
    calm.expect_clean()?;
    let policy = native::policy("hostile", &lab.scratch, &[])?;
    let run = Job::new(lab, "job")?.policy(&policy).run_one(steps)?;
    run.expect_clean()?;
    expect_tuner(&run, 2, "policy hostile.decide+1 ")?;
    let calls = tuner.calls("calm")?;
    let (offered, count) = (offered(&calls), coll_channels(&run)?);
    let (planned, calm) = (run.log.planned(), calm.log.planned());
    ensure!(
        planned.len() as u64 == hostile::COMBINATIONS && calm.len() == planned.len(),
        "{} plans",
        planned.len()
    );
    let mut channels = BTreeMap::<String, BTreeMap<u32, u32>>::new();
    for (plan, calm) in planned.iter().zip(&calm) {
        expect_decided(plan, calm, &offered)?;
        let wanted = hostile::Decision::of(plan);
        let most = if wanted.leaves_channels() { count } else { wanted.channels.min(count) };
        ensure!(plan.channels <= most, "{wanted:?} gave {plan:?} of {count} channels");
        if !wanted.is_coll_net() {
            channels.entry(plan.route()).or_default().insert(wanted.channels, plan.channels);
        }
    }
    let mut findings = Findings::new();
    findings.note("channels of the communicator", count);
    findings.note("getCollInfo calls of an AllReduce, both ranks", calls_each(&calls, planned.len())?);
    for (route, by_wanted) in channels {
        let one = by_wanted.get(&1);
        ensure!(one.is_none_or(|one| *one == 1), "{route}: one channel was decided: {by_wanted:?}");
        let told = |wanted| by_wanted.get(&wanted).map_or("-".into(), u32::to_string);
        let told = [0, 1, 2, 3, 5, 64].map(told).join(", ");
        findings.note(format!("{route}: channels for 0, 1, 2, 3, 5, 64 decided"), told);
    }
    Ok(findings)
}

/// What the policy asked for, if NCCL offered it, else NCCL's own choice.
pub(super) fn expect_decided(plan: &Planned, calm: &Planned, offered: &Offered) -> Result<()> {
    let wanted = hostile::Decision::of(plan);
    let route = wanted.route().filter(|route| offered.contains(&plan.func, route));
    let expected = route.unwrap_or_else(|| calm.route());
    ensure!(plan.route() == expected, "{wanted:?} gave {plan:?} instead of {expected}");
    Ok(())
}

fn calls_each(calls: &[String], collectives: usize) -> Result<usize> {
    let gets = calls.iter().filter(|line| line.starts_with("get ")).count();
    ensure!(gets % collectives == 0, "{gets} calls for {collectives} collectives");
    Ok(gets / collectives)
}

/// The routes that NCCL offers, by collective.
pub(super) struct Offered(BTreeMap<String, BTreeSet<String>>);

impl Offered {
    pub(super) fn contains(&self, func: &str, route: &str) -> bool {
        self.0.get(func).is_some_and(|routes| routes.contains(route))
    }

    pub(super) fn text(&self, func: &str) -> String {
        let routes: Vec<_> = self.0.get(func).into_iter().flatten().map(String::as_str).collect();
        routes.join(", ")
    }
}

/// What the native tuner saw offered: entries of the table that are not negative.
pub(super) fn offered(calls: &[String]) -> Offered {
    const FUNCS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];
    const ALGOS: [&str; 7] = ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
    const PROTOS: [&str; 3] = ["LL", "LL128", "SIMPLE"];
    let mut offered = BTreeMap::<String, BTreeSet<String>>::new();
    for line in calls.iter().filter(|line| line.starts_with("get ")) {
        let func = word(line, "func").and_then(|f| FUNCS.get(f.parse::<usize>().ok()?));
        let (Some(func), Some((_, costs))) = (func, line.split_once(" costs ")) else { continue };
        let routes = costs.split(' ').enumerate().filter(|(_, cost)| !cost.starts_with('-'));
        let routes = routes.map(|(at, _)| format!("{}/{}", ALGOS[at / 3], PROTOS[at % 3]));
        offered.entry((*func).to_owned()).or_default().extend(routes);
    }
    Offered(offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_what_has_a_cost() {
        let costs = ["-1"; 21].map(str::to_owned);
        let table = |at: usize| {
            let mut costs = costs.clone();
            costs[at] = "7.6".into();
            costs.join(" ")
        };
        let line = |func: u32, at| {
            format!("get v6 func {func} bytes 8 ops 1 table 7x3 channels 0 costs {}", table(at))
        };
        let offered = offered(&["init v6 comm 0x1".into(), line(4, 3), line(4, 0), line(2, 20)]);
        assert_eq!(offered.text("AllReduce"), "RING/LL, TREE/LL");
        assert_eq!(offered.text("AllGather"), "PAT/SIMPLE");
        assert!(offered.contains("AllReduce", "RING/LL") && !offered.contains("AllReduce", "PAT/SIMPLE"));
        assert_eq!(offered.text("Reduce"), "");
    }

    #[test]
    fn a_plan_tells_which_combination_was_asked_for() {
        let plan = |func: &str, bytes| Planned {
            func: func.into(),
            bytes,
            algo: "RING".into(),
            proto: "LL".into(),
            channels: 1,
        };
        // Combination 1 + 11 * 2 + 55 * 3 is Ring/Simple on 3 channels.
        let combination = 1 + 22 + 165;
        let decision = hostile::Decision::of(&plan("AllReduce", 4 * (combination + 1)));
        assert_eq!((decision.route().as_deref(), decision.channels), (Some("RING/SIMPLE"), 3));
        let half = hostile::Decision::of(&plan("AllGather", 4 * (combination + 1) / 2));
        assert_eq!((half.route(), half.channels), (decision.route(), 3));
        assert_eq!(hostile::Decision::of(&plan("Reduce", 4 * 8)).route(), None, "algorithm 7");
        assert!(hostile::Decision::of(&plan("Reduce", 4 * 3)).is_coll_net());
    }
}
