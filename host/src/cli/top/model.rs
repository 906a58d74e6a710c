//! [`Model`]: what is shown, as numbers: the difference between two versions of each process's status.

use crate::observe::status::{CommStatus, PolicyStatus, Status};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What policies are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// Calls a second.
    Calls,
    /// Faults.
    Faults,
    /// The 99th percentile of the latency.
    Slow,
    /// Fuel a call.
    Fuel,
    /// Process, hook and place in the chain.
    Chain,
}

impl Sort {
    /// The key that chooses it.
    pub(super) fn of_key(key: char) -> Option<Sort> {
        Some(match key {
            'c' => Sort::Calls,
            'f' => Sort::Faults,
            'p' => Sort::Slow,
            'u' => Sort::Fuel,
            'n' => Sort::Chain,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Calls => "calls/s",
            Sort::Faults => "faults",
            Sort::Slow => "p99",
            Sort::Fuel => "fuel",
            Sort::Chain => "chain",
        }
    }
}

/// A policy of a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// As `--pid` takes it.
    pub(super) pid: String,
    pub(super) policy: String,
    pub(super) hook: String,
    /// In the last interval; `None` before there are two versions.
    pub(super) calls_per_second: Option<f64>,
    pub(super) calls: u64,
    pub(super) faults: u64,
    /// Of the calls that were timed in the last interval, or of all, if there were none.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    /// A call's mean.
    pub(super) fuel: Option<u64>,
    pub(super) fuel_limit: u64,
}

/// A communicator of a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CommRow {
    pub(super) pid: String,
    pub(super) comm: CommStatus,
}

/// Two versions of a process's status.
#[derive(Clone, Debug)]
struct Pair {
    now: Status,
    before: Option<Status>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Model {
    processes: BTreeMap<(u32, u32), Pair>,
    sort: Sort,
    scroll: usize,
}

impl Model {
    pub(super) fn new(sort: Sort) -> Model {
        Model { processes: BTreeMap::new(), sort, scroll: 0 }
    }

    /// Takes the statuses of all processes that are alive.
    pub(super) fn update(&mut self, statuses: Vec<Status>) {
        let mut old = std::mem::take(&mut self.processes);
        for now in statuses {
            let pair = match old.remove(&(now.pid, now.part)).filter(|p| p.now.started == now.started) {
                // Nothing new was written: the interval shown stays.
                Some(same) if same.now.written_unix_ms == now.written_unix_ms => same,
                Some(earlier) => Pair { now, before: Some(earlier.now) },
                None => Pair { now, before: None },
            };
            self.processes.insert((pair.now.pid, pair.now.part), pair);
        }
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.scroll) = (sort, 0);
    }

    pub(super) fn sorted_by(&self) -> Sort {
        self.sort
    }

    /// Moves the table of policies by so many lines.
    pub(super) fn scroll(&mut self, lines: i32) {
        let most = self.rows().len().saturating_sub(1);
        self.scroll = self.scroll.saturating_add_signed(lines as isize).min(most);
    }

    pub(super) fn scrolled(&self) -> usize {
        self.scroll
    }

    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// The statuses, by process.
    pub(super) fn statuses(&self) -> impl Iterator<Item = &Status> {
        self.processes.values().map(|p| &p.now)
    }

    /// The policies in force, sorted.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.processes.values().flat_map(rows).collect();
        // Stable: equal ones stay in the order of the chain.
        match self.sort {
            Sort::Calls => rows.sort_by(|a, b| {
                b.calls_per_second.unwrap_or(0.0).total_cmp(&a.calls_per_second.unwrap_or(0.0))
            }),
            Sort::Faults => rows.sort_by_key(|r| Reverse(r.faults)),
            Sort::Slow => rows.sort_by_key(|r| Reverse(r.p99_ns)),
            Sort::Fuel => rows.sort_by_key(|r| Reverse(r.fuel)),
            Sort::Chain => {}
        }
        rows
    }

    /// The communicators.
    pub(super) fn communicators(&self) -> Vec<CommRow> {
        let rows = |s: &Status| {
            let row = |c: &CommStatus| CommRow { pid: s.id(), comm: c.clone() };
            s.communicators.iter().map(row).collect::<Vec<_>>()
        };
        self.statuses().flat_map(rows).collect()
    }
}

fn rows(pair: &Pair) -> Vec<Row> {
    let (now, before) = (&pair.now, pair.before.as_ref());
    let seconds = before.map(|b| now.written_unix_ms.saturating_sub(b.written_unix_ms) as f64 / 1000.0);
    let all = now.plan.policies.iter().enumerate();
    all.map(|(place, p)| {
        let earlier = before.and_then(|b| same_policy(b, now, place));
        row(now.id(), p, earlier, seconds.filter(|s| *s > 0.0))
    })
    .collect()
}

/// The policy in that place of the chain, in an earlier version; after a reload that of the same name and hook.
fn same_policy<'a>(before: &'a Status, now: &Status, place: usize) -> Option<&'a PolicyStatus> {
    let p = now.plan.policies.get(place)?;
    let same = |b: &&PolicyStatus| b.name == p.name && b.hook == p.hook;
    let nth = now.plan.policies.iter().take(place).filter(same).count();
    before.plan.policies.iter().filter(same).nth(nth)
}

fn row(pid: String, p: &PolicyStatus, earlier: Option<&PolicyStatus>, seconds: Option<f64>) -> Row {
    let calls = earlier.map(|e| p.calls.saturating_sub(e.calls));
    let fresh =
        earlier.map(|e| p.latency.histogram().since(&e.latency.histogram())).filter(|h| h.count() > 0);
    let timed = fresh.unwrap_or_else(|| p.latency.histogram());
    let percentile = |share| (timed.count() > 0).then(|| timed.percentile(share));
    let fuel = match (calls, earlier) {
        (Some(calls), Some(e)) if calls > 0 => p.fuel.sum.saturating_sub(e.fuel.sum).checked_div(calls),
        _ => p.fuel.sum.checked_div(p.calls),
    };
    Row {
        pid,
        policy: p.name.clone(),
        hook: p.hook.clone(),
        calls_per_second: calls.zip(seconds).map(|(calls, seconds)| calls as f64 / seconds),
        calls: p.calls,
        faults: p.faults.total(),
        p50_ns: percentile(0.5),
        p99_ns: percentile(0.99),
        fuel,
        fuel_limit: p.fuel_limit,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::observe::status::{
        FaultCounts, FuelCounts, LatencyStatus, MapStatus, PlanStatus, ReloadStatus, Reloads,
    };

    pub(crate) fn policy(name: &str, calls: u64, faults: u64, buckets: Vec<(u32, u64)>) -> PolicyStatus {
        PolicyStatus {
            name: name.into(),
            hook: "tuner".into(),
            calls,
            faults: FaultCounts { trap: faults, ..FaultCounts::default() },
            fuel: FuelCounts { sum: 40 * calls, max: 52, last: 40 },
            fuel_limit: 90,
            latency: LatencyStatus { buckets, max_ns: 4000, ..LatencyStatus::default() },
            ..PolicyStatus::default()
        }
    }

    /// A job with two policies, at a moment in milliseconds.
    pub(crate) fn job(pid: u32, at: u64, calls: u64) -> Status {
        let policies = vec![
            policy("size-aware", calls, 0, vec![(36, calls / 64)]),
            policy("slo", calls / 2, 3, vec![(60, calls / 128), (90, 1)]),
        ];
        let comm = CommStatus {
            number: 1,
            id: "0x7".into(),
            role: "tuner".into(),
            ranks: 8,
            nodes: 1,
            generation: 2,
            switch: "next-call".into(),
            ..CommStatus::default()
        };
        let last = ReloadStatus {
            refused: Some("slo.bpf.o: reject[map-oob] slo@15: 8-byte read".into()),
            ..ReloadStatus::default()
        };
        Status {
            format: 1,
            pid,
            command: "python3".into(),
            written_unix_ms: at,
            plan: PlanStatus {
                generation: 2,
                hash: "0123456789abcdef".into(),
                policies,
                ..PlanStatus::default()
            },
            reloads: Reloads { done: 2, refused: 1, last: Some(last) },
            communicators: vec![comm],
            communicators_total: 1,
            maps: vec![MapStatus {
                name: "events".into(),
                kind: "ringbuf".into(),
                dropped: 5,
                ..MapStatus::default()
            }],
            map_bytes: 1 << 20,
            ..Status::default()
        }
    }

    #[test]
    fn rates_are_differences_of_two_versions() {
        let mut model = Model::new(Sort::Chain);
        model.update(vec![job(7, 1000, 64_000)]);
        assert_eq!(model.rows()[0].calls_per_second, None);
        assert_eq!((model.rows()[0].p50_ns, model.rows()[0].fuel), (Some(41), Some(40)));
        model.update(vec![job(7, 3000, 128_000)]);
        assert_eq!(model.rows()[0].calls_per_second, Some(32_000.0));
        // The same version again: the interval stays.
        model.update(vec![job(7, 3000, 128_000)]);
        assert_eq!(model.rows()[0].calls_per_second, Some(32_000.0));
        model.update(vec![]);
        assert!(model.is_empty() && model.rows().is_empty());
    }

    #[test]
    fn a_successor_of_the_same_number_starts_anew() {
        let mut model = Model::new(Sort::Chain);
        model.update(vec![job(7, 1000, 64_000)]);
        model.update(vec![Status { started: 99, ..job(7, 2000, 10) }]);
        assert_eq!(model.rows()[0].calls_per_second, None);
    }

    #[test]
    fn rows_are_sorted_by_what_was_chosen() {
        let mut model = Model::new(Sort::Calls);
        model.update(vec![job(7, 1000, 0), job(8, 1000, 0)]);
        model.update(vec![job(7, 2000, 64_000), job(8, 2000, 640_000)]);
        let order = |model: &Model| {
            model.rows().iter().map(|r| (r.pid.clone(), r.policy.clone())).collect::<Vec<_>>()
        };
        assert_eq!(order(&model)[0], ("8".into(), "size-aware".into()));
        model.sort_by(Sort::Slow);
        assert_eq!(order(&model)[0].1, "slo");
        model.sort_by(Sort::Chain);
        assert_eq!(order(&model)[0], ("7".into(), "size-aware".into()));
        model.scroll(100);
        assert_eq!(model.scrolled(), 3);
        model.scroll(-100);
        assert_eq!(model.scrolled(), 0);
    }
}
