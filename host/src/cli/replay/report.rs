//! [`Told`]: everything a replay found, as text or JSON lines.

use super::Args;
use super::group::Line;
use super::histogram::Histogram;
use super::rules::Outcome;
use super::switch::{self, Reload};
use super::worker::{Phase, Stats};
use crate::cli::names::{algo_name, func_name, proto_name};
use crate::cli::{Exit, Out, number};
use crate::ffi::driver::{LogLine, Plugin};
use serde_json::{Value, json};
use std::io;

/// What a replay found.
pub(super) struct Told<'a> {
    pub(super) args: &'a Args,
    pub(super) plugin: &'a Plugin,
    pub(super) lines: &'a [Line],
    /// Log of the first communicators' init.
    pub(super) said: &'a [LogLine],
    pub(super) stats: &'a Stats,
    pub(super) reload: Option<&'a Reload>,
    /// Collectives in all.
    pub(super) calls: u64,
    pub(super) cpu_ns: Option<f64>,
    pub(super) clock_ns: u64,
}

impl Told<'_> {
    fn violations(&self) -> u64 {
        let broken: u64 = self.stats.breaches.values().map(|(n, _)| n).sum();
        broken + self.stats.lifecycle_errors
    }

    /// Did a reload that was asked for take place?
    fn reloaded(&self) -> bool {
        self.reload.is_none_or(|r| !r.refused && (r.told.is_some() || self.stats.first_new.is_some()))
    }

    /// Did the plugin refuse the policy to start with?
    fn refused_at_start(&self) -> bool {
        self.said.iter().any(switch::is_refusal)
    }

    fn exit(&self) -> Exit {
        let lost = if self.reload.is_some() { self.stats.lost() } else { 0 };
        let kept = self.violations() == 0 && lost == 0 && self.reloaded() && !self.refused_at_start();
        if kept { Exit::Ok } else { Exit::Refused }
    }

    /// Latency over the whole replay.
    fn latency(&self) -> Histogram {
        let mut all = Histogram::new();
        for phase in [&self.stats.before, &self.stats.during, &self.stats.after] {
            all.merge(&phase.latency);
        }
        all
    }

    /// Slowest call while the policy was exchanged, and at other times.
    fn slowest(&self) -> (u64, u64) {
        let s = self.stats;
        (s.during.latency.max(), s.before.latency.max().max(s.after.latency.max()))
    }

    fn phases(&self) -> Vec<(&'static str, &Phase)> {
        match self.reload {
            None => vec![("decisions", &self.stats.before)],
            Some(_) => vec![("before", &self.stats.before), ("after", &self.stats.after)],
        }
    }
}

/// Prints the report; the exit code says whether all rules were kept and no call was lost.
pub(super) fn print(told: &Told<'_>, out: Out<'_>) -> anyhow::Result<Exit> {
    if told.args.json {
        print_json(told, out)?
    } else {
        print_text(told, out)?
    }
    Ok(told.exit())
}

fn print_text(t: &Told<'_>, out: Out<'_>) -> io::Result<()> {
    let a = t.args;
    writeln!(out, "plugin    {} ({}, tuner v{})", a.plugin.display(), t.plugin.name(), t.plugin.version())?;
    writeln!(out, "policy    {}", a.policy.display())?;
    writeln!(
        out,
        "job       {} of {} on {}, {}",
        number::count(a.comms(), "communicator"),
        number::count(a.ranks, "rank"),
        number::count(a.nodes, "node"),
        number::count(a.threads, "thread")
    )?;
    for line in notable(t.said) {
        writeln!(out, "log       {}", line.text)?;
    }
    for (name, phase) in t.phases() {
        writeln!(out)?;
        match name {
            "decisions" => writeln!(out, "decisions")?,
            "before" => writeln!(out, "decisions before the reload")?,
            _ => writeln!(out, "decisions after the reload")?,
        }
        print_decisions(t.lines, phase, out)?;
        if let ("before", Some(reload)) = (name, t.reload) {
            print_reload(t, reload, out)?;
        }
    }
    print_figures(t, out)
}

/// Warnings, and the first other lines.
fn notable(lines: &[LogLine]) -> impl Iterator<Item = &LogLine> {
    lines.iter().enumerate().filter(|(i, l)| *i < 2 || l.level <= switch::WARN).map(|(_, l)| l)
}

fn print_decisions(lines: &[Line], phase: &Phase, out: Out<'_>) -> io::Result<()> {
    writeln!(
        out,
        "  {:<14} {:>7}   {:<13} {:<13} {:>8}   calls",
        "collective", "bytes", "NCCL alone", "policy", "channels"
    )?;
    for (line, seen) in lines.iter().zip(&phase.seen) {
        let Some(outcome) = seen.usual() else { continue };
        let calls: u64 = seen.0.iter().map(|(_, n)| n).sum();
        let varies = if seen.0.len() > 1 {
            format!("   ({} different, the usual one shown)", seen.0.len())
        } else {
            String::new()
        };
        let policy =
            if outcome.pick == line.own && !outcome.touched { "=".into() } else { pair(outcome.pick) };
        let channels = if outcome.channels == 0 { "-".into() } else { outcome.channels.to_string() };
        let (name, bytes) = (func_name(line.step.func), number::bytes(line.step.bytes));
        writeln!(
            out,
            "  {name:<14} {bytes:>7}   {:<13} {policy:<13} {channels:>8}   {calls}{varies}",
            pair(line.own)
        )?;
    }
    Ok(())
}

fn pair(pick: Option<(u32, u32)>) -> String {
    pick.map_or_else(|| "-".into(), |(a, p)| format!("{}/{}", algo_name(a), proto_name(p)))
}

fn print_reload(t: &Told<'_>, r: &Reload, out: Out<'_>) -> io::Result<()> {
    let with = t.args.with.as_deref().map(|p| p.display().to_string()).unwrap_or_default();
    writeln!(out, "\nreload    {with}, after {} collectives", r.at)?;
    for line in notable(&r.lines) {
        writeln!(out, "  log     {}", line.text)?;
    }
    let told = r.told.map_or_else(
        || "it said nothing about the new policy".into(),
        |d| format!("it told of the new policy after {}", ms(d.as_nanos() as u64)),
    );
    writeln!(out, "  plugin  {told}{}", if r.refused { ": REFUSED, the old one stays" } else { "" })?;
    if r.renewed {
        writeln!(
            out,
            "  comms   communicators of several ranks keep their policy; they were finalized and made anew"
        )?;
    }
    match t.stats.first_new {
        _ if r.refused => {}
        Some((first, last)) => writeln!(
            out,
            "  switch  first thread on the new policy after {}, last after {}; {} collectives on the old one meanwhile",
            ms(first),
            ms(last),
            t.stats.late
        )?,
        None => {
            writeln!(out, "  switch  no decision of the trace shows it: old and new policy decide alike")?
        }
    }
    let (during, other) = t.slowest();
    writeln!(out, "  lost    {} calls", t.stats.lost())?;
    writeln!(out, "  slowest call meanwhile {}, at other times {}", us(during), us(other))
}

fn print_figures(t: &Told<'_>, out: Out<'_>) -> io::Result<()> {
    let h = t.latency();
    let p = |share| h.percentile(share);
    writeln!(
        out,
        "\nlatency   p50 {} ns, p99 {} ns, p99.9 {} ns, max {} over {} calls; reading the clock takes {} ns of each",
        p(0.5),
        p(0.99),
        p(0.999),
        us(h.max()),
        h.count(),
        t.clock_ns
    )?;
    if let Some(ns) = t.cpu_ns {
        let base = t
            .args
            .pass_through_ns
            .map(|b| format!("; the same plugin without a policy {b:.1} ns"))
            .unwrap_or_default();
        writeln!(out, "cpu       {ns:.1} ns per call in batches without a clock{base}")?;
    }
    for (breach, (n, line)) in &t.stats.breaches {
        let at =
            t.lines.get(*line).map(|l| format!("{} {}", func_name(l.step.func), number::bytes(l.step.bytes)));
        writeln!(out, "BROKEN    {}: {n} collectives, first at {}", breach.name(), at.unwrap_or_default())?;
    }
    if t.stats.lifecycle_errors > 0 {
        writeln!(out, "BROKEN    init or finalize failed on {} ranks", t.stats.lifecycle_errors)?;
    }
    if t.violations() == 0 {
        writeln!(out, "checked   {} collectives: all ranks agree, no rule of NCCL broken", t.calls)?;
    }
    if t.refused_at_start() {
        writeln!(out, "BROKEN    the plugin refused the policy; NCCL decided alone")?;
    }
    if !t.reloaded() {
        writeln!(out, "BROKEN    the reload did not take place (the same policy again is no reload)")?;
    }
    Ok(())
}

fn ms(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}

fn us(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / 1e3)
}

fn print_json(t: &Told<'_>, out: Out<'_>) -> io::Result<()> {
    let a = t.args;
    writeln!(
        out,
        "{}",
        json!({
            "event": "start", "plugin": a.plugin.to_string_lossy(), "name": t.plugin.name(), "tuner": t.plugin.version(),
            "policy": a.policy.to_string_lossy(), "comms": a.comms(), "ranks": a.ranks, "nodes": a.nodes, "threads": a.threads,
            "log": texts(t.said), "refused": t.refused_at_start(),
        })
    )?;
    for (name, phase) in t.phases() {
        let phase_name = if name == "decisions" { "before" } else { name };
        for (line, seen) in t.lines.iter().zip(&phase.seen) {
            if let Some(outcome) = seen.usual() {
                writeln!(
                    out,
                    "{}",
                    decision_json(
                        phase_name,
                        line,
                        outcome,
                        seen.0.len(),
                        seen.0.iter().map(|(_, n)| n).sum()
                    )
                )?;
            }
        }
    }
    if let Some(reload) = t.reload {
        writeln!(out, "{}", reload_json(t, reload))?;
    }
    writeln!(out, "{}", summary_json(t))
}

fn texts(lines: &[LogLine]) -> Vec<&str> {
    lines.iter().map(|l| l.text.as_str()).collect()
}

fn pair_json(pick: Option<(u32, u32)>) -> Value {
    pick.map_or(Value::Null, |(a, p)| json!({"algo": algo_name(a), "proto": proto_name(p)}))
}

fn decision_json(phase: &str, line: &Line, outcome: Outcome, different: usize, calls: u64) -> Value {
    json!({
        "event": "decision", "phase": phase, "collective": func_name(line.step.func), "bytes": line.step.bytes,
        "nccl": pair_json(line.own), "policy": pair_json(outcome.pick), "channels": outcome.channels,
        "touched": outcome.touched, "different": different, "calls": calls,
    })
}

fn reload_json(t: &Told<'_>, r: &Reload) -> Value {
    let (during, other) = t.slowest();
    json!({
        "event": "reload", "with": t.args.with.as_deref().map(|p| p.to_string_lossy()), "at": r.at,
        "told_ns": r.told.map(|d| d.as_nanos() as u64), "refused": r.refused, "renewed_comms": r.renewed,
        "first_new_ns": t.stats.first_new.map(|f| f.0), "last_new_ns": t.stats.first_new.map(|f| f.1),
        "late_calls": (!r.refused).then_some(t.stats.late), "lost_calls": t.stats.lost(), "log": texts(&r.lines),
        "slowest_during_ns": during, "slowest_otherwise_ns": other,
    })
}

fn summary_json(t: &Told<'_>) -> Value {
    let h = t.latency();
    let breaches: serde_json::Map<String, Value> =
        t.stats.breaches.iter().map(|(b, (n, _))| (b.name().to_string(), json!(n))).collect();
    json!({
        "event": "summary", "collectives": t.calls, "calls": h.count(), "p50_ns": h.percentile(0.5),
        "p99_ns": h.percentile(0.99), "p999_ns": h.percentile(0.999), "max_ns": h.max(), "clock_ns": t.clock_ns,
        "cpu_ns": t.cpu_ns, "pass_through_cpu_ns": t.args.pass_through_ns, "violations": t.violations(),
        "breaches": breaches, "lifecycle_errors": t.stats.lifecycle_errors, "reloaded": t.reload.map(|_| t.reloaded()),
    })
}
