//! [`render`]: the state of processes in Prometheus's text format (0.0.4), for node_exporter's textfile collector and the like.
//!
//! Names that NCCL Inspector uses are used with its meaning and labels, so that its dashboards go on working; Ringfence's own begin with
//! `ringfence_`. Every series has the process number as a label, for several jobs may share a machine.

use super::status::{OperationStatus, PolicyStatus, Status};
use crate::metrics::Histogram;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Upper ends of the histogram's buckets in nanoseconds. Powers of two less one are where the counters' own buckets end, so the
/// counts are exact.
const BOUNDS: [u64; 15] = {
    let mut bounds = [0; 15];
    let shifts = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 23, 26];
    let mut i = 0;
    while i < bounds.len() {
        bounds[i] = (1 << shifts[i]) - 1;
        i += 1;
    }
    bounds
};

/// Kind of a metric.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The text as it grows, family by family.
#[derive(Default)]
pub(crate) struct Text(String);

impl Text {
    /// Begins a family.
    pub(crate) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample to the family.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, Escaped(text));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }
}

/// A label's value, with what would end it escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

/// The text for these processes.
pub fn render(processes: &[Status]) -> String {
    let mut text = Text::default();
    let own: Vec<_> = processes.iter().map(|s| (s, s.id())).collect();
    general(&mut text, &own);
    policies(&mut text, &own);
    reloads(&mut text, &own);
    maps(&mut text, &own);
    log(&mut text, &own);
    operations(&mut text, &own);
    profiler(&mut text, &own);
    text.0
}

/// Processes, each with its number as text.
type Processes<'a> = [(&'a Status, String)];

fn general(text: &mut Text, processes: &Processes<'_>) {
    text.family("ringfence_build_info", Kind::Gauge, "Version of Ringfence in the process; always 1.");
    for (s, pid) in processes {
        text.sample("ringfence_build_info", &[("pid", pid), ("version", &s.version)], 1);
    }
    text.family(
        "ringfence_plan_generation",
        Kind::Gauge,
        "Counts up with each policy set that came into force.",
    );
    for (s, pid) in processes {
        let labels = [("pid", pid.as_str()), ("hash", &s.plan.hash)];
        text.sample("ringfence_plan_generation", &labels, s.plan.generation);
    }
    text.family(
        "ringfence_communicators",
        Kind::Gauge,
        "Communicators alive, by the interface of NCCL that uses them.",
    );
    for (s, pid) in processes {
        let mut by_role: BTreeMap<&str, usize> = BTreeMap::new();
        s.communicators.iter().for_each(|c| *by_role.entry(&c.role).or_default() += 1);
        for (role, n) in by_role {
            text.sample("ringfence_communicators", &[("pid", pid), ("role", role)], n);
        }
    }
    text.family(
        "ringfence_defects_total",
        Kind::Counter,
        "Calls that met a defect of Ringfence and left NCCL's own choice.",
    );
    for (s, pid) in processes {
        text.sample("ringfence_defects_total", &[("pid", pid)], s.defects);
    }
}

/// Counters of a policy.
struct Sum {
    calls: u64,
    submitted: u64,
    faults: [(&'static str, u64); 3],
    fuel: u64,
    fuel_max: u64,
    latency: Histogram,
}

/// Process, policy, hook. A name may stand in a chain several times, and in older plans; a series may not.
type Key<'a> = (&'a str, &'a str, &'a str);

fn sums<'a>(processes: &'a Processes<'_>) -> BTreeMap<Key<'a>, Sum> {
    let mut sums = BTreeMap::new();
    for (status, pid) in processes {
        for (age, plan) in status.plans().enumerate() {
            // What an older plan's policy counted is part of its successor's counters.
            let continued =
                |p: &PolicyStatus| age > 0 && sums.contains_key(&(pid.as_str(), &*p.name, &*p.hook));
            let fresh: Vec<_> = plan.policies.iter().filter(|p| !continued(p)).collect();
            for policy in fresh {
                let key = (pid.as_str(), &*policy.name, &*policy.hook);
                sums.entry(key).or_insert_with(Sum::new).add(policy);
            }
        }
    }
    sums
}

impl Sum {
    fn new() -> Sum {
        let faults = [("out-of-fuel", 0), ("trap", 0), ("host", 0)];
        Sum { calls: 0, submitted: 0, faults, fuel: 0, fuel_max: 0, latency: Histogram::default() }
    }

    fn add(&mut self, policy: &PolicyStatus) {
        self.calls = self.calls.saturating_add(policy.calls);
        self.submitted = self.submitted.saturating_add(policy.submitted);
        let more = [policy.faults.out_of_fuel, policy.faults.trap, policy.faults.host];
        self.faults.iter_mut().zip(more).for_each(|((_, n), more)| *n = n.saturating_add(more));
        self.fuel = self.fuel.saturating_add(policy.fuel.sum);
        self.fuel_max = self.fuel_max.max(policy.fuel.max);
        self.latency.add(&policy.latency.histogram());
    }
}

fn policies(text: &mut Text, processes: &Processes<'_>) {
    let sums = sums(processes);
    type Value = fn(&Sum) -> u64;
    let plain: [(&str, Kind, &str, Value); 4] = [
        ("ringfence_policy_calls_total", Kind::Counter, "Calls of a policy, faulted ones included.", |s| {
            s.calls
        }),
        ("ringfence_policy_submitted_total", Kind::Counter, "Calls whose decision was submitted.", |s| {
            s.submitted
        }),
        (
            "ringfence_policy_fuel_total",
            Kind::Counter,
            "Fuel used, about one unit a Wasm instruction.",
            |s| s.fuel,
        ),
        ("ringfence_policy_fuel_max", Kind::Gauge, "Most fuel that one call used.", |s| s.fuel_max),
    ];
    for (name, kind, help, value) in plain {
        text.family(name, kind, help);
        for ((pid, policy, hook), sum) in &sums {
            text.sample(name, &[("pid", pid), ("policy", policy), ("hook", hook)], value(sum));
        }
    }
    const FAULTS: &str = "ringfence_policy_faults_total";
    text.family(
        FAULTS,
        Kind::Counter,
        "Calls that ended in a fault; NCCL's choice, or that of the policies before, stood.",
    );
    for ((pid, policy, hook), sum) in &sums {
        for (kind, n) in sum.faults {
            text.sample(FAULTS, &[("pid", pid), ("policy", policy), ("hook", hook), ("kind", kind)], n);
        }
    }
    latencies(text, &sums);
}

fn latencies(text: &mut Text, sums: &BTreeMap<Key<'_>, Sum>) {
    let help = "Time in a policy, of a random sample of its calls (one in 64 on NCCL's hooks).";
    text.family("ringfence_policy_latency_seconds", Kind::Histogram, help);
    for ((pid, policy, hook), sum) in sums {
        let labels = [("pid", *pid), ("policy", *policy), ("hook", *hook)];
        for bound in BOUNDS {
            let le = Seconds(bound).to_string();
            let [a, b, c] = labels;
            text.sample(
                "ringfence_policy_latency_seconds_bucket",
                &[a, b, c, ("le", &le)],
                sum.latency.at_most(bound),
            );
        }
        let [a, b, c] = labels;
        let count = sum.latency.count();
        text.sample("ringfence_policy_latency_seconds_bucket", &[a, b, c, ("le", "+Inf")], count);
        text.sample("ringfence_policy_latency_seconds_sum", &labels, Seconds(sum.latency.sum()));
        text.sample("ringfence_policy_latency_seconds_count", &labels, count);
    }
}

/// Nanoseconds, written as seconds without rounding.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

fn reloads(text: &mut Text, processes: &Processes<'_>) {
    let help =
        "Attempts to load a policy set, the first one included: done, or refused with nothing changed.";
    text.family("ringfence_reload_total", Kind::Counter, help);
    for (s, pid) in processes {
        for (outcome, n) in [("done", s.reloads.done), ("refused", s.reloads.refused)] {
            text.sample("ringfence_reload_total", &[("pid", pid), ("outcome", outcome)], n);
        }
    }
}

fn maps(text: &mut Text, processes: &Processes<'_>) {
    type Value = fn(&super::status::MapStatus) -> u64;
    let families: [(&str, Kind, &str, Value); 4] = [
        ("ringfence_map_entries", Kind::Gauge, "Entries in use; bytes, for ring buffers.", |m| {
            m.entries.into()
        }),
        (
            "ringfence_map_max_entries",
            Kind::Gauge,
            "Entries that there is room for; bytes, for ring buffers.",
            |m| m.max_entries.into(),
        ),
        ("ringfence_map_bytes", Kind::Gauge, "Memory that a map takes.", |m| m.bytes),
        ("ringfence_map_drops_total", Kind::Counter, "Records that found no room in a ring buffer.", |m| {
            m.dropped
        }),
    ];
    for (name, kind, help, value) in families {
        text.family(name, kind, help);
        for (s, pid) in processes {
            for map in &s.maps {
                let id = map.id.to_string();
                let labels = [
                    ("pid", pid.as_str()),
                    ("map", &map.name),
                    ("scope", &map.scope),
                    ("kind", &map.kind),
                    ("id", &id),
                ];
                text.sample(name, &labels, value(map));
            }
        }
    }
}

fn log(text: &mut Text, processes: &Processes<'_>) {
    let help = "Lines of policies (bpf_printk, logged ring buffers): written, left out by the rate limit, or lost for lack of room.";
    text.family("ringfence_policy_log_lines_total", Kind::Counter, help);
    for (s, pid) in processes {
        let counts = [("written", s.log.lines), ("suppressed", s.log.suppressed), ("lost", s.log.lost)];
        for (outcome, n) in counts {
            text.sample("ringfence_policy_log_lines_total", &[("pid", pid), ("outcome", outcome)], n);
        }
    }
}

/// Inspector's metrics with its labels (plugins/profiler/inspector/inspector_prom.cc), and `rank` and `pid` besides, so that a series is one
/// even where several ranks share a process.
fn operations(text: &mut Text, processes: &Processes<'_>) {
    type Value = fn(&OperationStatus) -> f64;
    let families: [(&str, bool, &str, Value); 4] = [
        ("nccl_bus_bandwidth_gbs", false, "Geometric mean of the bus bandwidth of collectives.", |o| {
            o.bus_gbs()
        }),
        ("nccl_collective_exec_time_microseconds", false, "Mean time of collectives.", |o| o.mean_us()),
        ("nccl_p2p_bus_bandwidth_gbs", true, "Geometric mean of the bandwidth of sends and receives.", |o| {
            o.bus_gbs()
        }),
        ("nccl_p2p_exec_time_microseconds", true, "Mean time of sends and receives.", |o| o.mean_us()),
    ];
    for (name, p2p, help, value) in families {
        text.family(name, Kind::Gauge, help);
        for (s, pid) in processes {
            for o in s.operations.iter().filter(|o| o.is_p2p() == p2p && o.count > 0) {
                let numbers = [o.rank, o.nodes, o.ranks].map(|n| n.to_string());
                let labels = inspector_labels(o, s, pid, &numbers);
                let labels: Vec<_> = labels.iter().map(|(l, v)| (*l, v.as_str())).collect();
                text.sample(name, &labels, value(o));
            }
        }
    }
}

fn inspector_labels(
    o: &OperationStatus,
    s: &Status,
    pid: &str,
    [rank, nodes, ranks]: &[String; 3],
) -> Vec<(&'static str, String)> {
    let name = if o.comm_name.is_empty() { &o.comm } else { &o.comm_name };
    let kind = if o.is_p2p() { "p2p_operation" } else { "collective" };
    let mut labels = vec![
        ("version", format!("ringfence-{}", s.version)),
        ("slurm_job_id", s.slurm_job_id.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("node", s.node.clone()),
        ("gpu", "unknown".to_owned()),
        ("comm_name", name.clone()),
        ("n_nodes", nodes.clone()),
        ("nranks", ranks.clone()),
        (kind, o.operation.clone()),
        ("message_size", o.size.clone()),
        ("comm", o.comm.clone()),
        ("rank", rank.clone()),
        ("pid", pid.to_owned()),
    ];
    // Inspector's sends and receives have none; ours may differ in it, and a series must be one.
    labels.insert(9, ("algo_proto", format!("{}_{}", o.algo, o.proto)));
    labels
}

fn profiler(text: &mut Text, processes: &Processes<'_>) {
    let help = "Events of NCCL's profiler interface: calls, samples, and every oddity by its name.";
    text.family("ringfence_profiler_total", Kind::Counter, help);
    for (s, pid) in processes {
        for (count, n) in &s.profiler {
            text.sample("ringfence_profiler_total", &[("pid", pid), ("count", count)], n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::{FaultCounts, FuelCounts, LatencyStatus, MapStatus, PlanStatus};
    use super::*;

    fn policy(name: &str, calls: u64) -> PolicyStatus {
        PolicyStatus {
            name: name.into(),
            hook: "tuner".into(),
            calls,
            faults: FaultCounts { trap: 1, ..FaultCounts::default() },
            fuel: FuelCounts { sum: 10 * calls, max: 12, last: 9 },
            // 41 ns and 1000 ns.
            latency: LatencyStatus {
                buckets: vec![(36, 2), (111, 1)],
                sum_ns: 1082,
                max_ns: 1000,
                ..Default::default()
            },
            ..PolicyStatus::default()
        }
    }

    fn lines<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        text.lines().filter(|l| l.starts_with(name) && !l.starts_with('#')).collect()
    }

    #[test]
    fn labels_are_escaped() {
        let plan = PlanStatus { policies: vec![policy("a\"b\\c\nd", 3)], ..PlanStatus::default() };
        let text = render(&[Status { pid: 7, plan, ..Status::default() }]);
        assert_eq!(
            lines(&text, "ringfence_policy_calls_total"),
            [r#"ringfence_policy_calls_total{pid="7",policy="a\"b\\c\nd",hook="tuner"} 3"#]
        );
    }

    #[test]
    fn histograms_are_cumulative_and_exact() {
        let plan = PlanStatus { policies: vec![policy("p", 3)], ..PlanStatus::default() };
        let text = render(&[Status { pid: 7, plan, ..Status::default() }]);
        let of = |le: &str| {
            let line = format!(
                "ringfence_policy_latency_seconds_bucket{{pid=\"7\",policy=\"p\",hook=\"tuner\",le=\"{le}\"}}"
            );
            lines(&text, &line)[0].rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!(
            ["0.000000031", "0.000000063", "0.000000511", "0.000001023", "+Inf"].map(of),
            ["0", "2", "2", "3", "3"]
        );
        assert!(text.contains("_sum{pid=\"7\",policy=\"p\",hook=\"tuner\"} 0.000001082\n"), "{text}");
    }

    #[test]
    fn a_series_appears_once_and_counts_each_call_once() {
        let plan = |policies| PlanStatus { policies, ..PlanStatus::default() };
        let status = Status {
            pid: 7,
            plan: plan(vec![policy("p", 5), policy("p", 2)]),
            older_plans: vec![plan(vec![policy("p", 4), policy("gone", 1)])],
            maps: vec![MapStatus { name: "m".into(), dropped: 3, ..MapStatus::default() }],
            ..Status::default()
        };
        let text = render(&[status.clone(), Status { pid: 8, ..status }]);
        let calls: Vec<_> = lines(&text, "ringfence_policy_calls_total")
            .iter()
            .map(|l| l.rsplit(' ').next().unwrap())
            .collect();
        assert_eq!(calls, ["1", "7", "1", "7"]);
        assert_eq!(lines(&text, "ringfence_map_drops_total").len(), 2);
    }
}
