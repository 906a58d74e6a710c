//! [`run`]: the child's part: opens the plugin, drives it, and hands what it saw to the report.

use super::group::{Group, Line, Shape};
use super::report::{self, Told};
use super::simulate::{Clock, Profiled};
use super::switch::{self, Switch};
use super::worker::{Shared, Stats, Worker};
use super::{Args, cpu};
use crate::cli::cost::CostModel;
use crate::cli::trace::{self, Step};
use crate::cli::{Exit, Out};
use crate::ffi::driver::{Plugin, take_log};
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

/// How often the main thread looks at the counters.
const TICK: Duration = Duration::from_micros(200);

/// The trace as distinct lines and the order in which they come.
struct Script {
    lines: Vec<Line>,
    order: Vec<usize>,
}

impl Script {
    fn new(steps: &[Step], model: CostModel) -> Script {
        let mut index = BTreeMap::new();
        let mut lines = Vec::new();
        let order = steps
            .iter()
            .map(|step| {
                *index.entry(*step).or_insert_with(|| {
                    lines.push(Line::new(*step, model));
                    lines.len() - 1
                })
            })
            .collect();
        Script { lines, order }
    }
}

pub(super) fn open(args: &Args) -> anyhow::Result<Plugin> {
    let plugin = match args.tuner_version {
        Some(version) => Plugin::open_version(&args.plugin, version),
        None => Plugin::open(&args.plugin),
    };
    plugin.with_context(|| args.plugin.display().to_string())
}

pub(super) fn shape(args: &Args) -> Shape {
    Shape { ranks: args.ranks, nodes: args.nodes }
}

/// Measures the plugin without a policy and prints nanoseconds of CPU per call.
pub(super) fn pass_through(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let plugin = open(args)?;
    let script = Script::new(&trace::load(&args.trace)?, shape(args).model());
    let (mut group, failed) = Group::create(&plugin, None, shape(args), 1);
    ensure!(failed == 0, "init failed on {failed} ranks");
    writeln!(out, "{}", cpu::per_call(&mut group, &script.lines))?;
    Ok(Exit::Ok)
}

/// Replays the trace and prints the report.
pub(super) fn run(args: &Args, root: &Path, out: Out<'_>) -> anyhow::Result<Exit> {
    let script = Script::new(&trace::load(&args.trace)?, shape(args).model());
    let switch = Switch::prepare(args, root)?;
    let plugin = open(args)?;
    let profiled = Profiled::open(args)?;
    let shared = Shared::new();
    let workers = workers(args, &plugin, profiled.as_ref(), &script, &shared);
    let said = take_log();
    let (results, reload) = thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|w| scope.spawn(move || w.run())).collect();
        let reload = conduct(args, switch, &shared);
        shared.stop.store(true, SeqCst);
        (threads.into_iter().map(|t| t.join().ok()).collect::<Vec<_>>(), reload)
    });
    let mut stats = Stats::new(script.lines.len());
    let mut groups = Vec::new();
    for result in results {
        let (part, mine) = result.context("a thread of the replay panicked")?;
        stats.merge(&part);
        groups.extend(mine);
    }
    let cpu_ns = groups.first_mut().map(|g| cpu::per_call(g, &script.lines));
    for group in groups {
        stats.lifecycle_errors += group.finalize();
    }
    let reload = reload?;
    let told = Told {
        args,
        plugin: &plugin,
        lines: &script.lines,
        said: &said,
        stats: &stats,
        reload: reload.as_ref(),
        calls: shared.done.load(SeqCst),
        cpu_ns,
        clock_ns: cpu::clock_overhead_ns(),
    };
    report::print(&told, out)
}

/// One worker per thread, the communicators dealt out in turn.
fn workers<'a>(
    args: &Args,
    plugin: &'a Plugin,
    profiled: Option<&'a Profiled>,
    script: &'a Script,
    shared: &'a Shared,
) -> Vec<Worker<'a>> {
    let mut workers: Vec<Worker<'a>> = (0..args.threads)
        .map(|_| Worker {
            shared,
            plugin,
            profiled,
            clock: Clock::new(),
            shape: shape(args),
            lines: &script.lines,
            trace: &script.order,
            comm_ids: Vec::new(),
            groups: Vec::new(),
            stats: Stats::new(script.lines.len()),
            generation: 0,
            arrived: false,
        })
        .collect();
    for (comm, thread) in (0..args.comms()).zip((0..workers.len()).cycle()) {
        let Some(worker) = workers.get_mut(thread) else { continue };
        let id = 0x5249_4e47_0000_0000 | u64::from(comm);
        let (group, failed) = Group::create(plugin, profiled.map(|p| &p.profiler), shape(args), id);
        worker.comm_ids.push(id);
        worker.groups.push(group);
        worker.stats.lifecycle_errors += failed;
    }
    workers
}

/// Waits until enough is replayed; replaces the policy on the way if asked to.
fn conduct(args: &Args, switch: Option<Switch>, shared: &Shared) -> anyhow::Result<Option<switch::Reload>> {
    let Some(switch) = switch else {
        wait_for(shared, args.calls);
        return Ok(None);
    };
    wait_for(shared, args.reload_at.unwrap_or(0));
    let reload = switch.run(shape(args), args.threads, shared)?;
    let done = shared.done.load(SeqCst);
    wait_for(shared, done + args.calls);
    Ok(Some(reload))
}

fn wait_for(shared: &Shared, done: u64) {
    while shared.done.load(SeqCst) < done && !shared.stop.load(SeqCst) {
        thread::sleep(TICK);
    }
}
