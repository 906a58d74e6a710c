//! [`Told`]: what a closed loop did, as a picture in text or JSON lines, with a [`Verdict`].

use super::Args;
use super::group::Line;
use super::model::{Expect, Scenario};
use super::rules::Breach;
use super::simulate::Sample;
use super::switch;
use crate::cli::names::{algo_name, func_name, proto_name};
use crate::cli::{Exit, Out, number};
use crate::ffi::driver::LogLine;
use serde_json::json;
use std::collections::BTreeMap;
use std::io;

/// Rows of the picture for one phase.
const ROWS: usize = 12;
/// Widest bar of latency.
const BAR: usize = 30;
/// Collectives at the start of a phase that show what it does before the policy adapts.
const ONSET: usize = 3;

/// What a closed loop did.
pub(super) struct Told<'a> {
    pub(super) args: &'a Args,
    pub(super) scenario: &'a Scenario,
    pub(super) lines: &'a [Line],
    pub(super) samples: &'a [Sample],
    pub(super) breaches: &'a BTreeMap<Breach, u64>,
    pub(super) said: &'a [LogLine],
    /// Event mask of the profiler at the end.
    pub(super) mask: u32,
    /// Init and finalize calls that returned an error.
    pub(super) failed: u64,
}

/// One phase of one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) expect: Option<Expect>,
    /// Channels of the first collective, the extremes, and the median of the last quarter.
    pub(super) first: u32,
    pub(super) least: u32,
    pub(super) most: u32,
    pub(super) settled: u32,
    /// Median nanoseconds of the first collectives, and of the last quarter.
    pub(super) onset_ns: u64,
    pub(super) settled_ns: u64,
}

/// Whether a loop did what its scenario expects: every reason why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) faults: Vec<String>,
}

fn median<T: Ord + Copy + Default>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Summary {
    fn new(expect: Option<Expect>, samples: &[Sample]) -> Summary {
        let last = &samples[samples.len() - samples.len().div_ceil(4)..];
        let channels = || samples.iter().map(|s| s.channels);
        Summary {
            expect,
            first: channels().next().unwrap_or(0),
            least: channels().min().unwrap_or(0),
            most: channels().max().unwrap_or(0),
            settled: median(last.iter().map(|s| s.channels)),
            onset_ns: median(samples.iter().take(ONSET).map(|s| s.duration_ns)),
            settled_ns: median(last.iter().map(|s| s.duration_ns)),
        }
    }
}

/// Holds the phases of one collective against what the scenario expects.
fn judge(name: &str, phases: &[(&str, Summary)], faults: &mut Vec<String>) {
    let of = |kind| phases.iter().filter(move |(_, s)| s.expect == Some(kind));
    for (few, low) in of(Expect::Few) {
        for (many, high) in of(Expect::Many).filter(|(_, high)| high.settled < 2 * low.settled) {
            faults.push(format!(
                "{name}: {many} settles at {} channels, less than twice the {} of {few}",
                high.settled, low.settled
            ));
        }
        if low.settled_ns >= low.onset_ns {
            faults.push(format!("{name}: in {few}, fewer channels are no quicker"));
        }
    }
}

impl Told<'_> {
    /// By line and phase.
    fn summaries(&self, line: usize) -> Vec<(&str, Summary)> {
        let phases = self.scenario.phases.iter().enumerate();
        let of = |index| self.of(line, index);
        phases.map(|(index, phase)| (phase.name.as_str(), Summary::new(phase.expect, &of(index)))).collect()
    }

    fn of(&self, line: usize, phase: usize) -> Vec<Sample> {
        self.samples.iter().filter(|s| s.line == line && s.phase == phase).copied().collect()
    }

    fn verdict(&self) -> Verdict {
        let mut faults = Vec::new();
        if self.failed > 0 {
            faults.push(format!("{} returned an error", number::count(self.failed, "init or finalize call")));
        }
        for (breach, times) in self.breaches {
            faults.push(format!("{} in {}", breach.name(), number::count(*times, "collective")));
        }
        if self.said.iter().any(switch::is_refusal) {
            faults.push("the plugin refused the policy".to_owned());
        }
        if self.mask == 0 {
            faults
                .push("the plugin asks for no profiler events: no policy is on the hook profiler".to_owned());
        }
        for (index, line) in self.lines.iter().enumerate() {
            judge(&name(line), &self.summaries(index), &mut faults);
        }
        Verdict { faults }
    }
}

fn name(line: &Line) -> String {
    format!("{} of {}", func_name(line.step.func), number::bytes(line.step.bytes))
}

/// Prints the report; the exit code says whether the loop did what it should.
pub(super) fn print(told: &Told<'_>, out: Out<'_>) -> anyhow::Result<Exit> {
    let verdict = told.verdict();
    if told.args.json {
        print_json(told, &verdict, out)?;
    } else {
        print_text(told, &verdict, out)?;
    }
    Ok(if verdict.faults.is_empty() { Exit::Ok } else { Exit::Refused })
}

fn print_text(t: &Told<'_>, verdict: &Verdict, out: Out<'_>) -> io::Result<()> {
    let (machine, args) = (&t.scenario.machine, t.args);
    writeln!(out, "policy    {}", args.policy.display())?;
    writeln!(
        out,
        "machine   simulated: {} on {}, all in one thread; link {} GB/s, a channel drives {} GB/s; seed {}",
        number::count(args.ranks, "rank"),
        number::count(args.nodes, "node"),
        machine.link_gbs,
        machine.channel_gbs,
        t.scenario.seed
    )?;
    for line in t.said.iter().filter(|line| line.level <= switch::WARN) {
        writeln!(out, "log       {}", line.text)?;
    }
    for (index, line) in t.lines.iter().enumerate() {
        writeln!(out)?;
        picture(t, index, line, out)?;
        writeln!(out)?;
        table(&t.summaries(index), out)?;
    }
    writeln!(out)?;
    for fault in &verdict.faults {
        writeln!(out, "not as expected: {fault}")?;
    }
    conclude(t, verdict, out)
}

/// The last line.
fn conclude(t: &Told<'_>, verdict: &Verdict, out: Out<'_>) -> io::Result<()> {
    if !verdict.faults.is_empty() {
        return writeln!(out, "closed loop: FAILED");
    }
    let steps: Vec<String> = t.summaries(0).iter().map(|(name, s)| format!("{name} {}", s.settled)).collect();
    writeln!(out, "closed loop: ok, channels {}", steps.join(", "))
}

fn picture(t: &Told<'_>, index: usize, line: &Line, out: Out<'_>) -> io::Result<()> {
    let slowest = t.samples.iter().filter(|s| s.line == index).map(|s| s.duration_ns).max().unwrap_or(1);
    writeln!(out, "{}", name(line))?;
    writeln!(out, "  {:<11} {:>9}   {:<14} {:<12} latency", "phase", "runs", "choice", "channels")?;
    for (phase, about) in t.scenario.phases.iter().enumerate() {
        let samples = t.of(index, phase);
        let per_row = samples.len().div_ceil(ROWS).max(1);
        for (row, some) in samples.chunks(per_row).enumerate() {
            let title = if row == 0 { about.name.as_str() } else { "" };
            let (from, to) = (row * per_row + 1, row * per_row + some.len());
            let channels = median(some.iter().map(|s| s.channels));
            let ns = median(some.iter().map(|s| s.duration_ns));
            let choice = some.first().and_then(|s| s.pick).map_or_else(String::new, pair);
            let bar = "#".repeat(((ns as f64 / slowest as f64) * BAR as f64).ceil() as usize);
            let stairs = "|".repeat(channels.min(64) as usize);
            let runs = format!("{from}-{to}");
            writeln!(
                out,
                "  {title:<11} {runs:>9}   {choice:<14} {channels:>2} {stairs:<16} {:>9} {bar}",
                micros(ns)
            )?;
        }
    }
    Ok(())
}

fn pair((algo, proto): (u32, u32)) -> String {
    format!("{}/{}", algo_name(algo), proto_name(proto))
}

fn micros(ns: u64) -> String {
    format!("{:.0} us", ns as f64 / 1000.0)
}

fn table(summaries: &[(&str, Summary)], out: Out<'_>) -> io::Result<()> {
    writeln!(
        out,
        "  {:<11} {:>24}   {:>22}",
        "phase", "channels: first, settled", "latency: first, settled"
    )?;
    for (name, s) in summaries {
        let channels = format!("{}, {}", s.first, s.settled);
        let latency = format!("{}, {}", micros(s.onset_ns), micros(s.settled_ns));
        writeln!(out, "  {name:<11} {channels:>24}   {latency:>22}")?;
    }
    Ok(())
}

fn print_json(t: &Told<'_>, verdict: &Verdict, out: Out<'_>) -> io::Result<()> {
    for s in t.samples {
        let (phase, line) = (t.scenario.phases.get(s.phase), t.lines.get(s.line));
        let value = json!({
            "event": "collective",
            "phase": phase.map(|p| &p.name),
            "collective": line.map(|l| func_name(l.step.func)),
            "bytes": line.map(|l| l.step.bytes),
            "choice": s.pick.map(pair),
            "channels": s.channels,
            "decided": s.decided,
            "duration_ns": s.duration_ns,
        });
        writeln!(out, "{value}")?;
    }
    for (index, line) in t.lines.iter().enumerate() {
        for (phase, s) in t.summaries(index) {
            let value = json!({
                "event": "phase",
                "phase": phase,
                "collective": func_name(line.step.func),
                "bytes": line.step.bytes,
                "first_channels": s.first,
                "least_channels": s.least,
                "most_channels": s.most,
                "settled_channels": s.settled,
                "onset_ns": s.onset_ns,
                "settled_ns": s.settled_ns,
            });
            writeln!(out, "{value}")?;
        }
    }
    writeln!(
        out,
        "{}",
        json!({"event": "verdict", "ok": verdict.faults.is_empty(), "faults": verdict.faults})
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(expect: Expect, channels: &[u32], ns: &[u64]) -> Summary {
        let sample = |(channels, duration_ns): (&u32, &u64)| Sample {
            phase: 0,
            line: 0,
            pick: None,
            channels: *channels,
            decided: true,
            duration_ns: *duration_ns,
        };
        Summary::new(Some(expect), &channels.iter().zip(ns).map(sample).collect::<Vec<_>>())
    }

    fn faults(phases: &[(&str, Summary)]) -> usize {
        let mut faults = Vec::new();
        judge("x", phases, &mut faults);
        faults.len()
    }

    #[test]
    fn a_loop_must_step_down_and_back_and_gain_by_it() {
        let many = phase(Expect::Many, &[4, 8, 12, 12], &[9, 5, 4, 4]);
        let few = phase(Expect::Few, &[12, 8, 3, 3], &[90, 90, 50, 30]);
        assert_eq!((many.first, many.settled, few.least, few.most), (4, 12, 3, 12));
        assert_eq!(faults(&[("baseline", many), ("contention", few), ("recovery", many)]), 0);
        let stuck = phase(Expect::Few, &[12, 12, 12, 12], &[90, 90, 90, 30]);
        assert_eq!(faults(&[("baseline", many), ("contention", stuck)]), 1, "it must step down");
        let lost = phase(Expect::Many, &[3, 3, 3, 3], &[9, 9, 9, 9]);
        assert_eq!(faults(&[("baseline", many), ("contention", few), ("recovery", lost)]), 1, "and back");
        let slow = phase(Expect::Few, &[12, 8, 3, 3], &[90, 90, 90, 95]);
        assert_eq!(faults(&[("baseline", many), ("contention", slow)]), 1, "and gain by it");
    }
}
