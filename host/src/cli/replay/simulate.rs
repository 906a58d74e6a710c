//! `replay --simulate`: the closed loop. A tuner decides, a simulated machine says how long the collective takes, the profiler
//! half of the same plugin is told of it, and the next decision may depend on that.
//!
//! One communicator, all of whose ranks live in this thread: the decisions of ranks may depend on what only this process knows.

use super::Args;
use super::group::{Group, Line, Shape};
use super::model::{Machine, Noise, Phase, Scenario};
use super::plot::{self, Told};
use super::rules::{Breach, Outcome};
use super::session;
use crate::cli::trace::{self, Step};
use crate::cli::{Exit, Out};
use crate::ffi::driver::{CollEvent, Profiler, take_log};
use anyhow::{Context, ensure};
use ringfence_guest::abi::func;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Arguments of the closed loop.
#[derive(Debug, clap::Args)]
pub(super) struct LoopArgs {
    /// Let collectives take simulated time, in phases, and tell the plugin's profiler half of it: the closed loop.
    #[arg(long, conflicts_with_all = ["reload_at", "comms", "threads", "calls"])]
    simulate: bool,
    /// The machine and the phases of --simulate (TOML) instead of those that are built in.
    #[arg(long, value_name = "FILE", requires = "simulate")]
    model: Option<PathBuf>,
    /// Tell the plugin's profiler half of every collective, with times of the same machine.
    #[arg(long)]
    profiler: bool,
}

impl LoopArgs {
    /// Is it a closed loop?
    pub(super) fn simulates(&self) -> bool {
        self.simulate
    }

    /// Is the profiler half to be driven?
    pub(super) fn profiles(&self) -> bool {
        self.profiler || self.simulate
    }

    /// The scenario; whatever is wrong with the file is told before anything runs.
    pub(super) fn scenario(&self) -> anyhow::Result<Scenario> {
        Scenario::load(self.model.as_deref())
    }
}

/// The simulated GPU timer when a run begins, in nanoseconds: not 0, which means "missing".
const EPOCH_NS: u64 = 1_000_000_000;
/// Time between two collectives.
const GAP_NS: u64 = 50_000;
/// Ring and Simple, which any collective can have.
const FALLBACK: (u32, u32) = (1, 2);
/// `ncclFloat32`, and its size.
const FLOAT: u32 = 7;
const FLOAT_BYTES: u64 = 4;

/// Time on the simulated machine.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    now_ns: u64,
    seq: u64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { now_ns: EPOCH_NS, seq: 0 }
    }

    /// The event of a collective that runs now and takes so long.
    pub(super) fn run(
        &mut self,
        step: Step,
        shape: Shape,
        pick: (u32, u32),
        channels: u32,
        ns: u64,
    ) -> CollEvent {
        let start_ns = self.now_ns;
        let stop_ns = start_ns + ns.max(1);
        self.now_ns = stop_ns + GAP_NS;
        self.seq += 1;
        CollEvent {
            func: step.func,
            count: count(step, shape),
            datatype: FLOAT,
            algo: pick.0,
            proto: pick.1,
            channels: channels.min(64) as u8,
            seq: self.seq,
            start_ns,
            stop_ns,
        }
    }
}

/// Elements as the caller of NCCL counts them: per rank where the tuner is told of the full buffer.
fn count(step: Step, shape: Shape) -> usize {
    let ranks = match step.func {
        func::ALL_GATHER | func::REDUCE_SCATTER => u64::from(shape.ranks.max(1)),
        _ => 1,
    };
    usize::try_from(step.bytes / FLOAT_BYTES / ranks).unwrap_or(usize::MAX)
}

/// The profiler half of the plugin, for a replay that is no closed loop, with the machine that gives the times.
pub(super) struct Profiled {
    pub(super) profiler: Profiler,
    machine: Machine,
}

impl Profiled {
    /// `None` if nobody asked for it.
    pub(super) fn open(args: &Args) -> anyhow::Result<Option<Profiled>> {
        if !args.closed_loop.profiles() {
            return Ok(None);
        }
        let profiler = Profiler::open(&args.plugin).with_context(|| args.plugin.display().to_string())?;
        Ok(Some(Profiled { profiler, machine: args.closed_loop.scenario()?.machine }))
    }

    /// The event of a collective on an idle machine.
    pub(super) fn event(&self, clock: &mut Clock, line: &Line, shape: Shape, outcome: Outcome) -> CollEvent {
        let asked = u32::try_from(outcome.channels).unwrap_or(0);
        let channels = if asked == 0 { self.machine.default_channels } else { asked };
        let pick = outcome.pick.or(line.own).unwrap_or(FALLBACK);
        let ns = self.machine.duration_ns(shape.model(), line.step, pick, channels, 0.0);
        clock.run(line.step, shape, pick, channels, ns as u64)
    }
}

/// One collective of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) phase: usize,
    /// Index into the trace's lines.
    pub(super) line: usize,
    pub(super) pick: Option<(u32, u32)>,
    /// Channels used.
    pub(super) channels: u32,
    /// The policy asked for them.
    pub(super) decided: bool,
    pub(super) duration_ns: u64,
}

/// A run in the making.
struct Run<'a> {
    scenario: &'a Scenario,
    lines: &'a [Line],
    shape: Shape,
    clock: Clock,
    noise: Noise,
    samples: Vec<Sample>,
    breaches: BTreeMap<Breach, u64>,
}

impl Run<'_> {
    fn phase(&mut self, group: &mut Group, index: usize, phase: &Phase) {
        for _ in 0..phase.collectives {
            for line in 0..self.lines.len() {
                self.collective(group, index, phase, line);
            }
        }
    }

    fn collective(&mut self, group: &mut Group, index: usize, phase: &Phase, at: usize) {
        let Some(line) = self.lines.get(at) else { return };
        let decided = group.decide(line, |_| ());
        if let Some(breach) = decided.breach {
            *self.breaches.entry(breach).or_default() += 1;
        }
        let outcome = decided.outcome;
        let machine = &self.scenario.machine;
        let asked = u32::try_from(outcome.channels).unwrap_or(0);
        let channels = if asked == 0 { machine.default_channels } else { asked };
        let pick = outcome.pick.or(line.own).unwrap_or(FALLBACK);
        let ns = machine.duration_ns(self.shape.model(), line.step, pick, channels, phase.background);
        let ns = (ns * self.noise.factor(machine)) as u64;
        let event = self.clock.run(line.step, self.shape, pick, channels, ns);
        group.ran(&event);
        let sample = Sample {
            phase: index,
            line: at,
            pick: Some(pick),
            channels,
            decided: asked != 0,
            duration_ns: ns,
        };
        self.samples.push(sample);
    }
}

/// Runs the child's part and prints the report.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let scenario = args.closed_loop.scenario()?;
    let shape = session::shape(args);
    let lines = lines(&trace::load(&args.trace)?, shape)?;
    let plugin = session::open(args)?;
    let profiler = Profiler::open(&args.plugin).with_context(|| args.plugin.display().to_string())?;
    let (mut group, failed) = Group::create_here(&plugin, Some(&profiler), shape, 0x5249_4e47_0000_0000);
    let said = take_log();
    let (noise, clock) = (Noise::new(scenario.seed), Clock::new());
    let (samples, breaches) = (Vec::new(), BTreeMap::new());
    let mut run = Run { scenario: &scenario, lines: &lines, shape, clock, noise, samples, breaches };
    for (index, phase) in scenario.phases.iter().enumerate() {
        run.phase(&mut group, index, phase);
    }
    let mask = profiler.mask();
    let Run { samples, breaches, .. } = run;
    let failed = failed + group.finalize();
    let told = Told {
        args,
        scenario: &scenario,
        lines: &lines,
        samples: &samples,
        breaches: &breaches,
        said: &said,
        mask,
        failed,
    };
    plot::print(&told, out)
}

/// The distinct collectives of the trace, in order. Few: each gets a picture.
fn lines(steps: &[Step], shape: Shape) -> anyhow::Result<Vec<Line>> {
    const MAX_LINES: usize = 4;
    let mut lines: Vec<Line> = Vec::new();
    for step in steps {
        if !lines.iter().any(|line| line.step == *step) {
            ensure!(lines.len() < MAX_LINES, "--simulate takes at most {MAX_LINES} different collectives");
            lines.push(Line::new(*step, shape.model()));
        }
    }
    Ok(lines)
}
