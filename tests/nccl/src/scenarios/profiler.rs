//! NCCL's profiler events, as a native profiler sees them and as ours does. The kernels' times are the fake GPU's: every work begins, and
//! ends a microsecond later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::common::{call, coll_channels};
use super::natives::{NativeProfiler, all_reduces, manifest, two_ranks_to_the_end, word};
use crate::job::Job;
use crate::native;
use crate::scenario::{Findings, Lab, Scenario, install};
use crate::script::{Func, Step};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "profiler::events",
        about: "What a native profiler hears of three AllReduces and a send and receive on two ranks, when it asks for everything: how often, below which parents, on which threads. Every start has one stop.",
        run: events,
    },
    Scenario {
        name: "profiler::only_what_is_asked",
        about: "The same, asked for one kind of event at a time: NCCL also starts what stands above it.",
        run: only_what_is_asked,
    },
    Scenario {
        name: "profiler::measured",
        about: "Ringfence measures every collective by its kernels' times, all channels of it, and a policy sees each.",
        run: measured,
    },
    Scenario {
        name: "profiler::chained",
        about: "A native profiler behind Ringfence (RINGFENCE_CHAIN_PROFILER) hears what it would hear alone.",
        run: chained,
    },
    Scenario {
        name: "profiler::asleep",
        about: "Ringfence as the profiler without a policy on its hooks asks for nothing, and NCCL calls nothing.",
        run: asleep,
    },
];

const COLL: u64 = 0x2;
const PROXY_CTRL: u64 = 0x20;
const KERNEL_CH: u64 = 0x40;
/// All but KernelPhase (0x8000), whose stamps only a kernel can write.
const EVERYTHING: u64 = 0x7fff;
const NAMES: [&str; 16] = [
    "Group",
    "Coll",
    "P2p",
    "ProxyOp",
    "ProxyStep",
    "ProxyCtrl",
    "KernelCh",
    "NetPlugin",
    "GroupApi",
    "CollApi",
    "P2pApi",
    "KernelLaunch",
    "CeColl",
    "CeSync",
    "CeBatch",
    "KernelPhase",
];

fn steps() -> Vec<Step> {
    let mut body = all_reduces();
    body.push(call(Func::SendRecv, 1000));
    two_ranks_to_the_end(body)
}

fn events(lab: &Lab) -> Result<Findings> {
    let profiler = NativeProfiler::build(lab)?;
    let run = profiler.alone(lab, "job", EVERYTHING)?.run_one(steps())?;
    run.expect_clean()?;
    let heard = Heard::read(&profiler.calls("job")?)?;
    heard.expect_whole()?;
    // What NCCL plans is what it tells of: each channel of each collective is a kernel of the profiler's.
    let planned: u32 = run.log.planned().iter().map(|plan| plan.channels).sum();
    ensure!(
        heard.channels == 2 * planned,
        "{} channels in Coll, {planned} in each rank's plans",
        heard.channels
    );
    ensure!(heard.backwards == 0, "{} kernels ended before they began", heard.backwards);
    let mut findings = Findings::new();
    findings.note("interface", &heard.version);
    for (kind, said) in &heard.kinds {
        findings.note(name(*kind), said.text(*kind));
    }
    let states = heard.states.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    findings.note("states that are recorded", states);
    Ok(findings)
}

fn only_what_is_asked(lab: &Lab) -> Result<Findings> {
    let profiler = NativeProfiler::build(lab)?;
    let mut findings = Findings::new();
    for mask in [COLL, KERNEL_CH, COLL | KERNEL_CH] {
        let job = format!("mask{mask:x}");
        profiler.alone(lab, &job, mask)?.run_one(steps())?.expect_clean()?;
        let heard = Heard::read(&profiler.calls(&job)?)?;
        heard.expect_whole()?;
        let kinds: Vec<_> =
            heard.kinds.iter().map(|(kind, said)| format!("{} {}", said.starts, name(*kind))).collect();
        findings.note(format!("asked for {mask:#x}"), kinds.join(", "));
    }
    Ok(findings)
}

fn measured(lab: &Lab) -> Result<Findings> {
    let policy = native::policy("timed", &lab.scratch, &[])?;
    let run = ours(lab, Job::new(lab, "job")?, &policy)?.run_one(steps())?;
    run.expect_clean()?;
    let inits = run.log.init_lines("profiler");
    ensure!(inits.len() == 2 && inits.iter().all(|line| line.contains("policy timed ")), "{inits:?}");
    let count = |name: &str| run.metric("ringfence_profiler_total", &format!("count=\"{name}\""));
    let collectives = 2.0 * all_reduces().len() as f64;
    let samples = count("samples")?;
    ensure!(samples == collectives, "{samples} samples of {collectives} collectives\n{run}");
    for oddity in
        ["incomplete", "untimed", "evicted", "backwards", "zero_timer", "orphan", "stale_parent", "dropped"]
    {
        let odd = count(oddity)?;
        ensure!(odd == 0.0, "{odd} {oddity}");
    }
    // The policy submits what is as it must be.
    let right = run.metric("ringfence_policy_submitted_total", "policy=\"timed\"")?;
    ensure!(right == samples, "the policy found {right} of {samples} samples right");
    let mut findings = Findings::new();
    findings.note("collectives measured by their kernels", samples);
    findings.note("events that Ringfence heard of", count("started")?);
    Ok(findings)
}

fn chained(lab: &Lab) -> Result<Findings> {
    let profiler = NativeProfiler::build(lab)?;
    profiler.alone(lab, "alone", EVERYTHING)?.run_one(steps())?.expect_clean()?;
    let job = profiler.chained(lab, "chained", EVERYTHING)?;
    let run = ours(lab, job, &lab.policy("latency_map"))?.run_one(steps())?;
    run.expect_clean()?;
    let (alone, behind) =
        (Heard::read(&profiler.calls("alone")?)?, Heard::read(&profiler.calls("chained")?)?);
    behind.expect_whole()?;
    ensure!(behind.version == alone.version, "{} instead of {}", behind.version, alone.version);
    for (kind, said) in &alone.kinds {
        let also = behind.kinds.get(kind).with_context(|| format!("no {} came through", name(*kind)))?;
        let same = (also.text(*kind), &also.parents) == (said.text(*kind), &said.parents);
        ensure!(same, "{}: {} instead of {}", name(*kind), also.text(*kind), said.text(*kind));
    }
    ensure!(behind.kinds.len() == alone.kinds.len(), "more kinds than without Ringfence");
    ensure!(behind.states == alone.states, "states {:?} instead of {:?}", behind.states, alone.states);
    // And ours measured all the same.
    let samples = run.metric("ringfence_profiler_total", "count=\"samples\"")?;
    ensure!(samples == 2.0 * all_reduces().len() as f64, "{samples} samples\n{run}");
    Ok(Findings::new())
}

fn asleep(lab: &Lab) -> Result<Findings> {
    let run = ours(lab, Job::new(lab, "job")?, &lab.policy("ring_simple_all"))?.run_one(steps())?;
    run.expect_clean()?;
    let mut loaded = run.log.containing("PROFILER/Plugin: ");
    ensure!(loaded.any(|line| line.to_lowercase().contains("loaded ringfence")), "it was not taken\n{run}");
    let events = run.metric("ringfence_profiler_total", "")?;
    ensure!(events == 0.0, "NCCL called the profiler {events} times");
    // The route shows that the policy was there.
    ensure!(
        coll_channels(&run)? > 0 && run.log.planned().iter().all(|plan| plan.route() == "RING/SIMPLE"),
        "{run}"
    );
    Ok(Findings::new())
}

/// Our profiler and tuner with a policy.
fn ours<'a>(lab: &'a Lab, job: Job<'a>, policy: &Path) -> Result<Job<'a>> {
    let dir = lab.policy_dir("policies")?;
    let name = policy.file_name().context("an object has a name")?.to_string_lossy();
    install(policy, &dir, &name)?;
    manifest(lab, &dir, &format!("[[policy]]\nfile = '{name}'\n"))?;
    Ok(job.policy(&dir).env("NCCL_PROFILER_PLUGIN", &lab.so))
}

fn name(kind: u64) -> &'static str {
    NAMES.get(kind.trailing_zeros() as usize).copied().unwrap_or("unknown")
}

/// A kind of event.
#[derive(Default)]
struct Kind {
    starts: u32,
    parents: BTreeSet<u64>,
    /// Whether the application's thread started some, and whether another did.
    threads: BTreeSet<bool>,
}

impl Kind {
    fn text(&self, kind: u64) -> String {
        let parents: Vec<_> = self.parents.iter().map(|p| if *p == 0 { "none" } else { name(*p) }).collect();
        let thread = match (self.threads.contains(&true), self.threads.contains(&false)) {
            (true, false) => "the caller's thread",
            (false, true) => "a thread of NCCL's",
            _ => "threads of both",
        };
        // The proxy thread's own doings depend on its luck.
        let count = if kind == PROXY_CTRL { "some".into() } else { self.starts.to_string() };
        format!("{count} below {} on {thread}", parents.join(" or "))
    }
}

/// What a native profiler wrote down.
#[derive(Default)]
struct Heard {
    version: String,
    kinds: BTreeMap<u64, Kind>,
    states: BTreeSet<u32>,
    /// Stops by event.
    stops: BTreeMap<u32, u32>,
    /// All channels of all Coll events.
    channels: u32,
    /// Starts of kernels by event, and how many ended before.
    timers: BTreeMap<u32, u64>,
    backwards: u32,
}

impl Heard {
    fn read(lines: &[String]) -> Result<Self> {
        let mut heard = Self::default();
        for line in lines {
            heard.line(line).with_context(|| line.clone())?;
        }
        ensure!(!heard.version.is_empty(), "the native profiler was not called");
        Ok(heard)
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let (call, rest) = line.split_once(' ').context("a call and its arguments")?;
        let number = || rest.split(' ').next().and_then(|n| n.parse::<u32>().ok()).context("a number");
        match call {
            "init" => self.version = rest.split(' ').next().unwrap_or_default().to_owned(),
            "start" => self.start(line)?,
            "stop" => *self.stops.entry(number()?).or_default() += 1,
            "state" => self.state(line, number()?)?,
            "coll" => self.channels += word(line, "channels").and_then(|n| n.parse().ok()).unwrap_or(0),
            "kernel" => drop(self.timers.insert(number()?, hex(word(line, "timer"))?)),
            _ => (),
        }
        Ok(())
    }

    fn start(&mut self, line: &str) -> Result<()> {
        let parent = word(line, "parent").and_then(|p| p.split_once('/')).context("a parent")?.0;
        let kind = self.kinds.entry(hex(word(line, "type"))?).or_default();
        kind.starts += 1;
        kind.parents.insert(hex(Some(parent))?);
        kind.threads.insert(word(line, "thread") == Some("main"));
        Ok(())
    }

    fn state(&mut self, line: &str, event: u32) -> Result<()> {
        self.states.insert(u32::try_from(hex(word(line, "number"))?)?);
        if let Some(start) = self.timers.get(&event) {
            self.backwards += u32::from(hex(word(line, "value"))? < *start);
        }
        Ok(())
    }

    /// Every start has exactly one stop, and every stop a start.
    fn expect_whole(&self) -> Result<()> {
        let starts: u32 = self.kinds.values().map(|kind| kind.starts).sum();
        ensure!(self.stops.len() == starts as usize, "{starts} starts, {} events stopped", self.stops.len());
        let odd = self.stops.iter().find(|(event, times)| **event == 0 || **times != 1);
        ensure!(odd.is_none(), "stops of an event: {odd:?}");
        Ok(())
    }
}

/// A number as the C sources write it.
fn hex(text: Option<&str>) -> Result<u64> {
    let text = text.context("a number is missing")?;
    let number =
        text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    number.with_context(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Heard {
        Heard::read(&text.lines().map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    const COLL_AND_KERNEL: &str = "\
init v6 comm 0x1 rank 0 ranks 2 nodes 1 name -
start 1 type 0x2 parent 0/0 rank 0 thread main foreign 0
coll 1 seq 0 func AllReduce count 256 channels 1 algo RING proto LL
stop 1 times 1
start 2 type 0x40 parent 0x2/1 rank 0 thread proxy foreign 0
kernel 2 channel 0 timer 1000
state 2 number 22 value 2000
stop 2 times 1";

    #[test]
    fn what_a_profiler_wrote_is_read() {
        let heard = read(COLL_AND_KERNEL);
        heard.expect_whole().unwrap();
        assert_eq!((heard.version.as_str(), heard.channels, heard.backwards), ("v6", 1, 0));
        assert_eq!(heard.kinds[&COLL].text(COLL), "1 below none on the caller's thread");
        assert_eq!(heard.kinds[&KERNEL_CH].text(KERNEL_CH), "1 below Coll on a thread of NCCL's");
        assert_eq!(heard.states.iter().copied().collect::<Vec<_>>(), [22]);
    }

    #[test]
    fn what_is_odd_is_seen() {
        let without = |part: &str| COLL_AND_KERNEL.replace(part, "");
        assert!(read(&without("stop 1 times 1\n")).expect_whole().is_err(), "a start without a stop");
        assert!(read(&format!("{COLL_AND_KERNEL}\nstop 2 times 2")).expect_whole().is_err(), "stopped twice");
        assert!(read(&format!("{COLL_AND_KERNEL}\nstop 0")).expect_whole().is_err(), "a stop of nothing");
        assert_eq!(read(&COLL_AND_KERNEL.replace("value 2000", "value 999")).backwards, 1);
        assert!(Heard::read(&[]).is_err(), "nobody called");
    }
}
