//! What operators do and what goes wrong with policies, while NCCL runs: reloads, faults, objects that are no policies, chains.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::common::{call, coll_channels, expect_tuner};
use super::natives::{NativeTuner, manifest, two_ranks, two_ranks_to_the_end};
use super::outcome::plans;
use crate::job::{Job, Run, Running};
use crate::native;
use crate::scenario::{Findings, Lab, Scenario, install};
use crate::script::{Collective, Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "policies::reload",
        about: "A policy is replaced while a communicator of two ranks lives: it keeps the old one, the next communicator has the new one, and a spoilt object changes nothing.",
        run: reload,
    },
    Scenario {
        name: "policies::corrupt_object",
        about: "A job starts with a truncated object: NCCL decides, the log says why, and a corrected one is taken.",
        run: corrupt_object,
    },
    Scenario {
        name: "policies::out_of_fuel",
        about: "A policy in the middle of a chain runs out of fuel at every call: it is skipped, the others decide, NCCL never sees it.",
        run: out_of_fuel,
    },
    Scenario {
        name: "policies::chain",
        about: "Three policies and a native tuner: each sees what those before it decided, and the last word counts.",
        run: chain,
    },
];

/// A count whose AllReduce uses all channels by NCCL's own choice.
const LARGE: u64 = 1 << 20;

fn reduce(set: &str) -> Step {
    Step::Collective(Collective::new(set, Func::AllReduce, LARGE))
}

fn init(set: &str) -> Step {
    Step::InitAll { set: set.into(), ranks: 2 }
}

/// The worker says `name.ready` and waits for `name.go`.
fn meet(job: &Job<'_>, name: &str) -> [Step; 2] {
    let touch = Step::Touch { path: job.file(&format!("{name}.ready")) };
    [touch, Step::WaitFile { path: job.file(&format!("{name}.go")), timeout_ms: 20_000 }]
}

/// Waits until the worker has said `name.ready`.
fn ready(running: &mut Running, dir: &Path, name: &str) -> Result<()> {
    running.wait_for(&dir.join(format!("{name}.ready")))
}

fn go(dir: &Path, name: &str) -> Result<()> {
    std::fs::write(dir.join(format!("{name}.go")), b"").context("the worker's file")
}

/// A job whose worker also writes our lines to its standard error: NCCL 2.32 keeps some lines of its file back, and loses them in the end.
fn job<'a>(lab: &'a Lab, dir: &Path) -> Result<Job<'a>> {
    Ok(Job::new(lab, "job")?.policy(dir).env("RINGFENCE_LOG", "info"))
}

/// Waits until we have said `part` in the only worker. A reload takes some 50 ms.
fn wait_for_line(running: &Running, part: &str) -> Result<()> {
    let said = running.dir(0).context("a worker")?.join("stderr.txt");
    let start = Instant::now();
    while !std::fs::read_to_string(&said).unwrap_or_default().contains(part) {
        if start.elapsed() > Duration::from_secs(15) {
            bail!("{}: no line with {part:?}", said.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A directory with one policy, `route.bpf.o`, that wants this.
fn route(lab: &Lab, into: &Path, algo: &str, proto: &str) -> Result<()> {
    let dir = lab.scratch.join(format!("{algo}-{proto}"));
    std::fs::create_dir_all(&dir)?;
    let defines = ["ADD=0".into(), format!("ALGO=RF_ALGO_{algo}"), format!("PROTO=RF_PROTO_{proto}")];
    let object = native::policy("link", &dir, &defines.each_ref().map(String::as_str))?;
    install(&object, into, "route.bpf.o").map(drop)
}

fn planned(run: &Run) -> Vec<String> {
    run.log.planned().iter().map(crate::log::Planned::route).collect()
}

fn reload(lab: &Lab) -> Result<Findings> {
    let dir = lab.policy_dir("policies")?;
    route(lab, &dir, "RING", "SIMPLE")?;
    manifest(lab, &dir, "[[policy]]\nfile = 'route.bpf.o'\n")?;
    let job = job(lab, &dir)?;
    let (files, steps) = (job.file(""), reload_steps(&job));
    let mut running = job.process(steps).start()?;
    ready(&mut running, &files, "one")?;
    route(lab, &dir, "TREE", "SIMPLE")?;
    wait_for_line(&running, "loaded in")?;
    go(&files, "one")?;
    ready(&mut running, &files, "two")?;
    let spoilt = lab.scratch.join("spoilt");
    std::fs::write(&spoilt, b"\x7fELF and no more")?;
    install(&spoilt, &dir, "route.bpf.o")?;
    wait_for_line(&running, "route.bpf.o: ")?;
    go(&files, "two")?;
    let run = running.wait()?.pop().context("one worker")?;
    run.expect_clean()?;
    let (old, new) = ("RING/SIMPLE", "TREE/SIMPLE");
    let expected = [old, old, new, new, new, old];
    ensure!(planned(&run) == expected, "{:?} instead of {expected:?}\n{run}", planned(&run));
    expect_tuner(&run, 6, "policy route ")?;
    let reloads = |outcome: &str| run.metric("ringfence_reload_total", &format!("outcome=\"{outcome}\""));
    let (done, refused) = (reloads("done")?, reloads("refused")?);
    ensure!(done >= 1.0 && refused >= 1.0, "{done} reloads, {refused} refused\n{run}");
    Ok(Findings::new())
}

/// A communicator before the reload, one after it, one after the object was spoilt, and the first again.
fn reload_steps(job: &Job<'_>) -> Vec<Step> {
    let mut steps = vec![init("first"), reduce("first")];
    steps.extend(meet(job, "one"));
    steps.extend([reduce("first"), init("second"), reduce("second")]);
    steps.extend(meet(job, "two"));
    steps.extend([reduce("second"), init("third"), reduce("third"), reduce("first")]);
    steps.extend(["first", "second", "third"].map(|set| Step::Destroy { set: set.into() }));
    steps
}

fn corrupt_object(lab: &Lab) -> Result<Findings> {
    let dir = lab.policy_dir("policies")?;
    route(lab, &dir, "TREE", "SIMPLE")?;
    let whole = std::fs::read(dir.join("route.bpf.o"))?;
    let half = lab.scratch.join("half");
    std::fs::write(&half, &whole[..whole.len() / 2])?;
    install(&half, &dir, "route.bpf.o")?;
    manifest(lab, &dir, "[[policy]]\nfile = 'route.bpf.o'\n")?;
    let own = Job::new(lab, "own")?.run_one(two_ranks([call(Func::AllReduce, LARGE)]))?;
    own.expect_clean()?;
    let job = job(lab, &dir)?;
    let files = job.file("");
    let mut steps = vec![init("first"), reduce("first")];
    steps.extend(meet(&job, "one"));
    steps.extend([init("second"), reduce("second")]);
    let mut running = job.process(steps).start()?;
    ready(&mut running, &files, "one")?;
    route(lab, &dir, "TREE", "SIMPLE")?;
    wait_for_line(&running, "loaded in")?;
    go(&files, "one")?;
    let run = running.wait()?.pop().context("one worker")?;
    run.expect_clean()?;
    let expected = [planned(&own), vec!["TREE/SIMPLE".into()]].concat();
    ensure!(planned(&run) == expected, "{:?} instead of {expected:?}\n{run}", planned(&run));
    let why = run.log.containing("route.bpf.o: ").next();
    ensure!(why.is_some(), "NCCL's log does not say why the object is refused\n{run}");
    let inits = run.log.init_lines("tuner");
    ensure!(
        inits.len() == 4 && inits[0].contains("policy none") && inits[2].contains("policy route "),
        "{inits:?}"
    );
    Ok(Findings::new())
}

fn out_of_fuel(lab: &Lab) -> Result<Findings> {
    let dir = lab.policy_dir("policies")?;
    for (name, defines) in [("before", &["ADD=1"][..]), ("spin", &["ADD=7", "SPIN"]), ("after", &["ADD=1"])] {
        let out = lab.scratch.join(name);
        std::fs::create_dir(&out)?;
        install(&native::policy("link", &out, defines)?, &dir, &format!("{name}.bpf.o"))?;
    }
    let text = "[limits]\nfuel = 5000\n[[policy]]\nfile = 'before.bpf.o'\n[[policy]]\nfile = 'spin.bpf.o'\n[[policy]]\nfile = 'after.bpf.o'\n";
    manifest(lab, &dir, text)?;
    const CALLS: usize = 100;
    let run =
        job(lab, &dir)?.run_one(two_ranks_to_the_end((0..CALLS).map(|_| call(Func::AllReduce, LARGE))))?;
    run.expect_clean()?;
    // One channel of each that ends.
    let plans = run.log.planned();
    ensure!(plans.len() == CALLS && plans.iter().all(|plan| plan.channels == 2), "{plans:?}");
    let of = |name: &str, policy: &str| run.metric(name, &format!("policy=\"{policy}\""));
    let faults =
        run.metric("ringfence_policy_faults_total", "policy=\"spin\",hook=\"tuner\",kind=\"out-of-fuel\"")?;
    let calls = of("ringfence_policy_calls_total", "spin")?;
    ensure!(calls >= 2.0 * CALLS as f64 && faults == calls, "{faults} faults of {calls} calls\n{run}");
    for policy in ["before", "after"] {
        let (good, bad) =
            (of("ringfence_policy_submitted_total", policy)?, of("ringfence_policy_faults_total", policy)?);
        ensure!(
            good == calls && bad == 0.0,
            "{policy}: {good} submitted, {bad} faults, {calls} calls of the other"
        );
    }
    // Once for each communicator, however often.
    let told = run.stderr.matches("policy spin faulted at call 0 ").count();
    ensure!(told == 2, "the fault is told {told} times\n{run}");
    Ok(Findings::new())
}

fn chain(lab: &Lab) -> Result<Findings> {
    let tuner = NativeTuner::build(lab)?;
    let dir = lab.policy_dir("policies")?;
    for (name, defines) in [
        ("one", &["ADD=1"][..]),
        ("two", &["ADD=2"]),
        ("ring", &["ADD=0", "ALGO=RF_ALGO_RING", "PROTO=RF_PROTO_LL"]),
    ] {
        let out = lab.scratch.join(name);
        std::fs::create_dir(&out)?;
        install(&native::policy("link", &out, defines)?, &dir, &format!("{name}.bpf.o"))?;
    }
    let mut findings = Findings::new();
    // The native tuner wants Tree/Simple on one channel. The last policy of the second chain has another wish.
    for (job, files, route, channels) in
        [("away", &["one", "two", "ring"][..], "RING/LL", 4), ("along", &["one"], "TREE/SIMPLE", 2)]
    {
        let entries: String =
            files.iter().map(|file| format!("[[policy]]\nfile = '{file}.bpf.o'\n")).collect();
        manifest(lab, &dir, &entries)?;
        let run = tuner
            .chained(lab, job)?
            .env("RINGFENCE_POLICY", &dir)
            .env("NATIVE_TUNER_SET", "0,2,0")
            .env("NATIVE_TUNER_CHANNELS", "1")
            .run_one(two_ranks([call(Func::AllReduce, LARGE)]))?;
        run.expect_clean()?;
        let count = coll_channels(&run)?;
        let plans_are = run.log.planned();
        let right =
            |plan: &crate::log::Planned| plan.route() == route && plan.channels == channels.min(count);
        ensure!(
            plans_are.len() == 1 && plans_are.iter().all(right),
            "{route} on {channels}: {plans_are:?}\n{run}"
        );
        findings.note(format!("native Tree/Simple 1, then {}", files.join(", ")), plans(&run));
    }
    Ok(findings)
}
