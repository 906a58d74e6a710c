//! [`Status`]: what a process says of itself, as its status file holds it and `ringfence status`, `top` and `metrics` read it.
//!
//! The file is JSON, so that other tools can read it too; `format` is raised when a field changes its meaning, and readers ignore fields
//! that they do not know. Numbers that identify (hashes, communicators) are hexadecimal text, since JSON readers round
//! integers above 2^53.

use super::dir::Identity;
use crate::metrics::{Histogram, Totals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The format that this version writes.
pub const FORMAT: u32 = 1;

/// State of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// See [`FORMAT`].
    pub format: u32,
    /// Version of Ringfence in the process.
    pub version: String,
    /// Number of the process.
    pub pid: u32,
    /// Tells the hosts of one process apart: 0 for the first, as a rule NCCL's plugin.
    pub part: u32,
    /// When it started, in clock ticks since boot: tells it from a later process of the same number.
    pub started: u64,
    /// Inode of its process namespace.
    pub pid_namespace: u64,
    /// Name of its program, as `/proc/PID/comm` has it.
    pub command: String,
    /// Name of the machine.
    pub node: String,
    /// Slurm's number of the job, if it runs under Slurm.
    pub slurm_job_id: Option<String>,
    /// When this was written, in milliseconds since 1970.
    pub written_unix_ms: u64,
    /// Where policies come from; none if `RINGFENCE_POLICY` is not set.
    pub source: Option<String>,
    /// The plan that new communicators get.
    pub plan: PlanStatus,
    /// Earlier plans that communicators still use, the newest first.
    pub older_plans: Vec<PlanStatus>,
    /// Attempts to load a set.
    pub reloads: Reloads,
    /// Communicators that are alive; the first ones, if there are very many.
    pub communicators: Vec<CommStatus>,
    /// How many there are.
    pub communicators_total: usize,
    /// The maps.
    pub maps: Vec<MapStatus>,
    /// Bytes that they take.
    pub map_bytes: u64,
    /// Finished operations by kind, where a policy on the hook `profiler` has them measured.
    pub operations: Vec<OperationStatus>,
    /// What policies wrote with `bpf_printk`, and records of logged ring buffers.
    pub log: LogStatus,
    /// Calls that met a defect of Ringfence and left NCCL's own choice.
    pub defects: u64,
    /// Counters of the profiler by name, those that are not 0: see `docs/profiler.md`.
    pub profiler: BTreeMap<String, u64>,
}

/// A policy set in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanStatus {
    /// Counts up with each plan of the process.
    pub generation: u64,
    /// SHA-256 of the set.
    pub hash: String,
    /// In one line.
    pub describe: String,
    /// The policies, in the order of the chain.
    pub policies: Vec<PolicyStatus>,
}

/// A policy with its counters. They go on from those of the policy of the same name and hook in the plan before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyStatus {
    /// The manifest's name for it, or the file's.
    pub name: String,
    /// Hook.
    pub hook: String,
    /// Its object below the policy directory.
    pub file: String,
    /// Hash of its code, maps and initial data.
    pub hash: String,
    /// Fuel that a call may use.
    pub fuel_limit: u64,
    /// Calls, faulted ones included.
    pub calls: u64,
    /// Calls whose decision was submitted.
    pub submitted: u64,
    /// Calls that ended in a fault.
    pub faults: FaultCounts,
    /// Fuel used.
    pub fuel: FuelCounts,
    /// Latency of the calls that were timed.
    pub latency: LatencyStatus,
    /// Names of its maps.
    pub maps: Vec<String>,
}

/// Faults by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultCounts {
    /// The fuel was used up.
    pub out_of_fuel: u64,
    /// The sandbox stopped the call.
    pub trap: u64,
    /// The host could not make the call.
    pub host: u64,
}

impl FaultCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.out_of_fuel.saturating_add(self.trap).saturating_add(self.host)
    }
}

/// Fuel of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FuelCounts {
    /// Of all calls.
    pub sum: u64,
    /// The most of one call.
    pub max: u64,
    /// Of the latest call.
    pub last: u64,
}

/// Latencies in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyStatus {
    /// One call in so many was timed, on average.
    pub sampled_every: u64,
    /// Calls that were timed.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Half of them took at most so long.
    pub p50_ns: u64,
    /// 99 of 100 took at most so long.
    pub p99_ns: u64,
    /// The slowest.
    pub max_ns: u64,
    /// The histogram: number of a bucket, and its count; see docs/observability.md.
    pub buckets: Vec<(u32, u64)>,
}

impl LatencyStatus {
    /// The histogram, for sums and differences.
    pub fn histogram(&self) -> Histogram {
        Histogram::from_sparse(&self.buckets, self.sum_ns, self.max_ns)
    }

    fn new(latency: &Histogram, sampled_every: u64) -> LatencyStatus {
        LatencyStatus {
            sampled_every,
            count: latency.count(),
            sum_ns: latency.sum(),
            p50_ns: latency.percentile(0.5),
            p99_ns: latency.percentile(0.99),
            max_ns: latency.max(),
            buckets: latency.sparse(),
        }
    }
}

impl PolicyStatus {
    /// Takes over counters.
    pub(crate) fn count(&mut self, totals: &Totals, sampled_every: u64) {
        let counts = &totals.counts;
        self.calls = counts.calls;
        self.submitted = counts.decisions;
        self.faults =
            FaultCounts { out_of_fuel: counts.out_of_fuel, trap: counts.traps, host: counts.host_faults };
        self.fuel = FuelCounts { sum: counts.fuel, max: counts.fuel_max, last: counts.fuel_last };
        self.latency = LatencyStatus::new(&totals.latency, sampled_every);
    }
}

/// Attempts to load a set, the first one included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloads {
    /// Sets that came into force.
    pub done: u64,
    /// Sets that were refused.
    pub refused: u64,
    /// The latest attempt.
    pub last: Option<ReloadStatus>,
}

/// One attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadStatus {
    /// Wall time from reading to the offer, in microseconds.
    pub took_us: u64,
    /// Why nothing changed; none if the set came into force.
    pub refused: Option<String>,
    /// Communicators that take the new plan at their next call.
    pub switched: usize,
    /// Communicators that keep theirs.
    pub kept: usize,
}

/// A communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommStatus {
    /// Number in this process.
    pub number: u64,
    /// NCCL's id, as `0x...`.
    pub id: String,
    /// What NCCL calls it, where it says.
    pub name: String,
    /// Which interface of NCCL uses it.
    pub role: String,
    /// Ranks.
    pub ranks: u32,
    /// Nodes.
    pub nodes: u32,
    /// Generation of the plan that it has, or takes at its next call.
    pub generation: u64,
    /// Whether it takes new plans: `next-call` or `new-communicators`.
    pub switch: String,
    /// Faults of its policies.
    pub faults: u64,
}

/// A map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MapStatus {
    /// Number in this process, for `ringfence map`.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Kind, such as `hash`.
    pub kind: String,
    /// Who shares it.
    pub scope: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Entries that it has room for; for ring buffers bytes.
    pub max_entries: u32,
    /// Entries in use; for ring buffers bytes that nobody consumed yet.
    pub entries: u32,
    /// Bytes of memory.
    pub bytes: u64,
    /// Records that found no room.
    pub dropped: u64,
}

/// Finished operations of one communicator and rank, of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationStatus {
    /// NCCL's id of the communicator, as `0x...`.
    pub comm: String,
    /// Its name; empty if it has none.
    pub comm_name: String,
    /// Rank.
    pub rank: u32,
    /// Ranks; 0 if NCCL does not tell.
    pub ranks: u32,
    /// Nodes; 0 if NCCL does not tell.
    pub nodes: u32,
    /// As NCCL calls it, such as `AllReduce`.
    pub operation: String,
    /// As NCCL calls it, such as `RING`; `unknown` if it does not tell.
    pub algo: String,
    /// As NCCL calls it, such as `LL128`; `unknown` if it does not tell.
    pub proto: String,
    /// Range of message sizes, such as `4-5MB`.
    pub size: String,
    /// How many.
    pub count: u64,
    /// Their time together.
    pub duration_ns: u64,
    /// Those of which a bus bandwidth is known.
    pub rated: u64,
    /// Sum of the binary logarithms of their bus bandwidths in GB/s.
    pub log2_gbs: f64,
}

impl OperationStatus {
    /// Mean time in microseconds.
    pub fn mean_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.duration_ns as f64 / self.count as f64 / 1000.0 }
    }

    /// Geometric mean of the bus bandwidth in GB/s; 0 if none is known.
    pub fn bus_gbs(&self) -> f64 {
        if self.rated == 0 { 0.0 } else { (self.log2_gbs / self.rated as f64).exp2() }
    }

    /// Sent from rank to rank, and no collective.
    pub fn is_p2p(&self) -> bool {
        matches!(self.operation.as_str(), "Send" | "Recv" | "SendRecv")
    }

    /// What came since `before`, an earlier count of the same; `None` if nothing did.
    fn since(&self, before: Option<&OperationStatus>) -> Option<OperationStatus> {
        let Some(before) = before.filter(|b| b.count <= self.count) else { return Some(self.clone()) };
        (self.count > before.count).then(|| OperationStatus {
            count: self.count - before.count,
            duration_ns: self.duration_ns.saturating_sub(before.duration_ns),
            rated: self.rated.saturating_sub(before.rated),
            log2_gbs: self.log2_gbs - before.log2_gbs,
            ..self.clone()
        })
    }

    fn same_kind(&self, other: &OperationStatus) -> bool {
        let kind = |o: &OperationStatus| {
            (o.comm.clone(), o.rank, o.operation.clone(), o.algo.clone(), o.proto.clone(), o.size.clone())
        };
        kind(self) == kind(other)
    }
}

/// What came since an earlier count.
pub(crate) fn operations_since(now: &[OperationStatus], before: &[OperationStatus]) -> Vec<OperationStatus> {
    now.iter().filter_map(|o| o.since(before.iter().find(|b| b.same_kind(o)))).collect()
}

/// Lines that policies wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStatus {
    /// Lines written to the log.
    pub lines: u64,
    /// Lines left out, because a policy wrote too many.
    pub suppressed: u64,
    /// Lines that found no room before they could be written.
    pub lost: u64,
}

impl Status {
    /// Reads a status file.
    ///
    /// # Errors
    /// No JSON of this form, or a newer [`FORMAT`]; in one line.
    pub fn parse(bytes: &[u8]) -> Result<Status, String> {
        let status: Status = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        match status.format {
            1..=FORMAT => Ok(status),
            0 => Err("it names no format".into()),
            newer => Err(format!("format {newer} is newer than this ringfence, which reads {FORMAT}")),
        }
    }

    /// The process that wrote it.
    pub fn identity(&self) -> Identity {
        Identity { pid: self.pid, started: self.started, namespace: self.pid_namespace }
    }

    /// What `--pid` takes: `4242`, or `4242.1` for a further host of the process.
    pub fn id(&self) -> String {
        super::dir::host_name(self.pid, self.part)
    }

    /// All plans, the one in force first.
    pub fn plans(&self) -> impl Iterator<Item = &PlanStatus> {
        std::iter::once(&self.plan).chain(&self.older_plans)
    }

    /// Does it say the same, whenever it was written?
    pub(crate) fn says_the_same(&self, other: &Status) -> bool {
        let then = other.written_unix_ms;
        self.written_unix_ms == then && self == other
            || Status { written_unix_ms: then, ..self.clone() } == *other
    }
}

/// Who wrote these bytes, if they are a status.
pub(crate) fn identity_in(bytes: &[u8]) -> Option<Identity> {
    Status::parse(bytes).ok().map(|s| s.identity())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_written_and_newer_fields_are_ignored() {
        let status = Status {
            format: FORMAT,
            pid: 7,
            plan: PlanStatus { hash: "ab".into(), ..PlanStatus::default() },
            ..Status::default()
        };
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(Status::parse(text.as_bytes()), Ok(status.clone()));
        let newer = text.replacen('{', "{\"of_tomorrow\":[1],", 1);
        assert_eq!(Status::parse(newer.as_bytes()), Ok(status));
    }

    #[test]
    fn what_is_no_status_says_why() {
        for (text, want) in [
            ("", "EOF"),
            ("{}", "no format"),
            ("{\"format\":9}", "format 9 is newer"),
            ("{\"format\":1,\"pid\":-1}", "invalid value"),
            ("[]", "no format"),
            ("7", "invalid type"),
        ] {
            let error = Status::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
        assert_eq!(identity_in(&[0xff; 64]), None);
    }

    #[test]
    fn the_time_of_writing_is_no_news() {
        let a = Status { written_unix_ms: 1, ..Status::default() };
        let b = Status { written_unix_ms: 2, ..Status::default() };
        assert!(a.says_the_same(&b));
        assert!(!a.says_the_same(&Status { defects: 1, ..b }));
    }
}
