//! `ringfence status`: what the jobs of this user do with their policies.

use super::process::{self, Process};
use super::table::Table;
use super::{Exit, Out, number};
use crate::observe::status::{PlanStatus, Status};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

/// Arguments of `ringfence status`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only this process.
    #[arg(long, value_name = "PID")]
    pid: Option<process::Pid>,
    /// Again and again, every second or as many as given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    /// One JSON object a process and line: its status file.
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let Some(seconds) = args.watch else { return once(args, out) };
    let clear = !args.json && std::io::stdout().is_terminal();
    loop {
        if clear {
            // Home, and erase to the end.
            write!(out, "\x1b[H\x1b[J")?;
        }
        once(args, out)?;
        out.flush()?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn once(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let found = process::find(args.pid)?;
    for (i, process) in found.iter().enumerate() {
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&process.status)?)?;
        } else {
            write!(out, "{}{}", if i == 0 { "" } else { "\n" }, text(process))?;
        }
    }
    if !found.is_empty() {
        return Ok(Exit::Ok);
    }
    let who = args.pid.map_or("no process of this user".to_owned(), |pid| format!("process {pid}"));
    if !args.json {
        writeln!(out, "{who} {}", process::nothing())?;
    }
    Ok(Exit::Refused)
}

fn text(process: &Process) -> String {
    let s = &process.status;
    let mut text = format!("process {}, Ringfence {}", process.title(), s.version);
    let _ = writeln!(text, "{}", heard(process));
    let source = s.source.as_deref().unwrap_or("none (RINGFENCE_POLICY is not set)");
    let _ = writeln!(text, "  source   {source}");
    let _ = writeln!(text, "  plan     {}", headline(&s.plan));
    let _ = writeln!(text, "  reloads  {}", reloads(s));
    if s.defects > 0 {
        let _ = writeln!(text, "  defects  {} calls met a defect of Ringfence: see the log", s.defects);
    }
    if s.log != Default::default() {
        let log = &s.log;
        let _ = writeln!(
            text,
            "  log      {} lines, {} suppressed, {} lost",
            log.lines, log.suppressed, log.lost
        );
    }
    sections(&mut text, s);
    text
}

fn heard(process: &Process) -> String {
    let age = process.age();
    let whose = if process.elsewhere { ", in another container" } else { "" };
    match age.as_secs() {
        0..=20 => whose.to_owned(),
        seconds => format!("{whose}, not heard of for {seconds} s"),
    }
}

fn headline(plan: &PlanStatus) -> String {
    format!("generation {}, {}", plan.generation, plan.describe)
}

fn reloads(s: &Status) -> String {
    let mut text = format!("{} done, {} refused", s.reloads.done, s.reloads.refused);
    if let Some(last) = &s.reloads.last {
        let took = Duration::from_micros(last.took_us);
        let _ = match &last.refused {
            None => write!(
                text,
                "; the last took {took:.1?}, {} switched, {} kept theirs",
                last.switched, last.kept
            ),
            Some(why) => write!(text, "; the last was refused after {took:.1?}: {why}"),
        };
    }
    text
}

fn sections(text: &mut String, s: &Status) {
    for (i, plan) in s.plans().enumerate().filter(|(_, plan)| !plan.policies.is_empty()) {
        let _ = match i {
            0 => writeln!(text, "\n  policies, in the order of the chain"),
            _ => writeln!(
                text,
                "\n  policies of an older plan that communicators still use: {}",
                headline(plan)
            ),
        };
        text.push_str(&policies(plan));
    }
    if !s.communicators.is_empty() {
        let left_out = s.communicators_total.saturating_sub(s.communicators.len());
        let more = if left_out > 0 { format!(" (the first; {left_out} more)") } else { String::new() };
        let _ = writeln!(text, "\n  communicators{more}");
        text.push_str(&communicators(s));
    }
    if !s.maps.is_empty() {
        let _ = writeln!(text, "\n  maps, {} bytes in all", number::bytes(s.map_bytes));
        text.push_str(&maps(s));
    }
}

fn policies(plan: &PlanStatus) -> String {
    let headings = [
        "policy",
        "hook",
        "calls",
        "submitted",
        "faults",
        "p50 ns",
        "p99 ns",
        "max ns",
        "fuel/call",
        "fuel max",
        "limit",
    ];
    let mut table = Table::new(4, &headings);
    for p in &plan.policies {
        let timed = |ns: u64| if p.latency.count > 0 { ns.to_string() } else { "-".into() };
        let mean = p.fuel.sum.checked_div(p.calls).map_or_else(|| "-".into(), |n| n.to_string());
        table.row([
            p.name.escape_debug().to_string(),
            p.hook.clone(),
            p.calls.to_string(),
            p.submitted.to_string(),
            faults(p.faults.total(), p),
            timed(p.latency.p50_ns),
            timed(p.latency.p99_ns),
            timed(p.latency.max_ns),
            mean,
            p.fuel.max.to_string(),
            p.fuel_limit.to_string(),
        ]);
    }
    table.to_string()
}

/// `0`, or `3 (fuel 2, trap 1)`.
fn faults(total: u64, p: &crate::observe::status::PolicyStatus) -> String {
    let kinds = [("fuel", p.faults.out_of_fuel), ("trap", p.faults.trap), ("host", p.faults.host)];
    let some: Vec<_> = kinds.iter().filter(|(_, n)| *n > 0).map(|(kind, n)| format!("{kind} {n}")).collect();
    if some.is_empty() { "0".into() } else { format!("{total} ({})", some.join(", ")) }
}

fn communicators(s: &Status) -> String {
    let mut table =
        Table::new(4, &["number", "id", "interface", "ranks", "nodes", "plan", "takes new plans", "faults"]);
    for c in &s.communicators {
        let name =
            if c.name.is_empty() { c.id.clone() } else { format!("{} {}", c.id, c.name.escape_debug()) };
        table.row([
            c.number.to_string(),
            name,
            c.role.clone(),
            c.ranks.to_string(),
            c.nodes.to_string(),
            c.generation.to_string(),
            if c.switch == "next-call" { "at its next call".into() } else { "never (several ranks)".into() },
            c.faults.to_string(),
        ]);
    }
    table.to_string()
}

fn maps(s: &Status) -> String {
    let mut table = Table::new(
        4,
        &["id", "map", "kind", "shared by", "key", "value", "entries", "room", "bytes", "dropped"],
    );
    for m in &s.maps {
        table.row([
            m.id.to_string(),
            m.name.escape_debug().to_string(),
            m.kind.clone(),
            m.scope.escape_debug().to_string(),
            m.key_size.to_string(),
            m.value_size.to_string(),
            m.entries.to_string(),
            m.max_entries.to_string(),
            number::bytes(m.bytes),
            m.dropped.to_string(),
        ]);
    }
    table.to_string()
}
