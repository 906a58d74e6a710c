//! [`Observer::collect`]: the state of this process as a [`Status`].

use super::Observer;
use super::numbers::Numbered;
use super::status::{
    CommStatus, FORMAT, MapStatus, OperationStatus, PlanStatus, PolicyStatus, ReloadStatus, Reloads, Status,
};
use crate::endpoint::Shared;
use crate::ffi::guard;
use crate::host::{Host, ReloadReport};
use crate::metrics::sampled_every;
use crate::policy_set::{Plan, Policy};
use crate::profiler::summary::Sums;
use crate::profiler::{CommFacts, PROFILERS};
use crate::reload::SwitchPolicy;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Kinds of operations that a status lists.
const MAX_OPERATIONS: usize = 4096;
/// Communicators that a status lists. A job on thousands of ranks in one process is a simulation.
const MAX_COMMUNICATORS: usize = 256;

impl Observer {
    /// The state now.
    pub(super) fn collect(&mut self, host: &Host) -> Status {
        let registry = host.maps();
        let maps = registry.as_deref().map_or_else(Vec::new, |r| self.numbers.of(r));
        let communicators = host.endpoints();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (done, refused) = host.reload_counts();
        Status {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: self.identity.pid,
            part: self.part,
            started: self.identity.started,
            pid_namespace: self.identity.namespace,
            command: self.command.clone(),
            node: self.node.clone(),
            slurm_job_id: self.settings.slurm_job_id.clone(),
            written_unix_ms: now.as_millis() as u64,
            source: self.settings.source.clone(),
            plan: plan(&host.plan()),
            older_plans: host.older_plans().iter().map(|p| plan(p)).collect(),
            reloads: Reloads { done, refused, last: host.last_reload().as_ref().map(reload) },
            communicators_total: communicators.len(),
            communicators: communicators.iter().take(MAX_COMMUNICATORS).map(|c| communicator(c)).collect(),
            map_bytes: maps.iter().map(|m| m.map.memory_bytes()).sum(),
            maps: maps.iter().map(map).collect(),
            operations: if host.is_named() { Vec::new() } else { all_operations() },
            log: self.speaker.counts(),
            defects: guard::panics(),
            profiler: if host.is_named() { BTreeMap::new() } else { profiler() },
        }
    }
}

fn profiler() -> BTreeMap<String, u64> {
    let named = crate::profiler::counters().named().into_iter();
    named.filter(|(_, n)| *n != 0).map(|(name, n)| (name.to_owned(), n)).collect()
}

fn plan(plan: &Plan) -> PlanStatus {
    let fuel = plan.set().manifest().limits.fuel;
    PlanStatus {
        generation: plan.generation(),
        hash: plan.set().hash().to_string(),
        describe: plan.set().describe(),
        policies: plan.set().policies().iter().map(|p| policy(p, fuel)).collect(),
    }
}

fn policy(policy: &Policy, fuel: Option<u64>) -> PolicyStatus {
    let module = &policy.module;
    let mut status = PolicyStatus {
        name: policy.name.clone(),
        hook: module.hook().name().to_owned(),
        file: policy.file.clone(),
        hash: module.hash().to_string(),
        fuel_limit: fuel.into_iter().chain(module.max_fuel()).min().unwrap_or(0),
        maps: module.maps().iter().map(|m| m.name.clone()).collect(),
        ..PolicyStatus::default()
    };
    status.count(&module.metrics().total(), sampled_every(module.hook()));
    status
}

fn reload(report: &ReloadReport) -> ReloadStatus {
    let took_us = report.took.as_micros() as u64;
    match &report.outcome {
        Ok(done) => ReloadStatus { took_us, refused: None, switched: done.switched, kept: done.kept },
        Err(error) => ReloadStatus { took_us, refused: Some(error.to_string()), ..ReloadStatus::default() },
    }
}

fn communicator(shared: &Shared) -> CommStatus {
    let info = shared.info();
    let switch = match shared.switch_policy() {
        SwitchPolicy::NextCall => "next-call",
        SwitchPolicy::NewCommunicators => "new-communicators",
    };
    CommStatus {
        number: shared.communicator(),
        id: format!("{:#x}", info.comm_id),
        name: String::new(),
        role: shared.role().name().to_owned(),
        ranks: info.n_ranks,
        nodes: info.n_nodes,
        generation: shared.generation(),
        switch: switch.to_owned(),
        faults: shared.faults(),
    }
}

fn map(numbered: &Numbered) -> MapStatus {
    let (map, decl) = (&numbered.map, numbered.map.decl());
    MapStatus {
        id: numbered.id,
        name: decl.name.clone(),
        kind: decl.kind.name().to_owned(),
        scope: numbered.scope.clone(),
        key_size: decl.key_size,
        value_size: decl.value_size,
        max_entries: decl.max_entries,
        entries: map.len(),
        bytes: map.memory_bytes(),
        dropped: map.dropped(),
    }
}

/// NCCL's names of functions (`src/collectives.cc`), by number.
const FUNCTIONS: [&str; 15] = [
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
    "SendRecv",
    "Send",
    "Recv",
    "AlltoAll",
    "Scatter",
    "Gather",
    "AllGatherV",
    "PutSignal",
    "Signal",
    "WaitSignal",
];
const ALGORITHMS: [&str; 7] = ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];
const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];

/// The profilers are the process's, and told of by the host that has no source of its own.
fn all_operations() -> Vec<OperationStatus> {
    let live = PROFILERS.summaries().map(|(facts, summary)| (facts, summary.read().0));
    live.flat_map(operations).take(MAX_OPERATIONS).collect()
}

/// What communicators did that have ended since the last time.
pub(super) fn ended_operations() -> Vec<OperationStatus> {
    PROFILERS.take_ended().into_iter().flat_map(operations).take(MAX_OPERATIONS).collect()
}

fn operations((facts, sums): (CommFacts, Vec<Sums>)) -> Vec<OperationStatus> {
    let name =
        |names: &[&str], number: u32| names.get(number as usize).copied().unwrap_or("unknown").to_owned();
    let comm_name: Vec<u8> =
        facts.name.iter().flat_map(|w| w.to_le_bytes()).take_while(|b| *b != 0).collect();
    let one = |s: Sums| OperationStatus {
        comm: format!("{:#x}", facts.comm_id),
        comm_name: String::from_utf8_lossy(&comm_name).into_owned(),
        rank: facts.rank,
        ranks: facts.n_ranks,
        nodes: facts.n_nodes,
        operation: name(&FUNCTIONS, s.key.func),
        algo: name(&ALGORITHMS, s.key.algo),
        proto: name(&PROTOCOLS, s.key.proto),
        size: match s.key.units {
            0 => "0B".to_owned(),
            n => format!("{n}-{}{}", n + 1, name(&UNITS, s.key.unit)),
        },
        count: s.count,
        duration_ns: s.duration_ns,
        rated: s.rated,
        log2_gbs: s.log2_gbs,
    };
    sums.into_iter().map(one).collect()
}
