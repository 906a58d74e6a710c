//! [`Metrics`]: what the instances of one policy did. [`Counters`] are the part of one instance.
//!
//! An instance is driven by one thread at a time, so its counters have a single writer: they are bumped with a
//! plain load and store instead of a locked add, which would cost about 6 ns on the decision path. Readers on
//! other threads see each counter whole, though not all of them at one instant.

use crate::fault::Fault;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Counters of one instance. One writer, any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    decisions: AtomicU64,
    out_of_fuel: AtomicU64,
    traps: AtomicU64,
    host: AtomicU64,
}

#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

impl Counters {
    /// A call was answered; `decided` if the policy submitted a decision.
    #[inline]
    pub(crate) fn answered(&self, decided: bool) {
        bump(&self.calls);
        if decided {
            bump(&self.decisions);
        }
    }

    #[cold]
    pub(crate) fn faulted(&self, fault: &Fault) {
        bump(&self.calls);
        bump(match fault {
            Fault::OutOfFuel => &self.out_of_fuel,
            Fault::Trap(_) => &self.traps,
            Fault::Host(_) => &self.host,
        });
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            calls: self.calls.load(Relaxed),
            decisions: self.decisions.load(Relaxed),
            out_of_fuel: self.out_of_fuel.load(Relaxed),
            traps: self.traps.load(Relaxed),
            host_faults: self.host.load(Relaxed),
        }
    }
}

/// Sums over the instances of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Calls, faulted ones included.
    pub calls: u64,
    /// Calls whose decision was submitted (the policy returned 0, or set a flag of the packed action).
    pub decisions: u64,
    /// Calls that ran out of fuel.
    pub out_of_fuel: u64,
    /// Calls that the sandbox stopped.
    pub traps: u64,
    /// Calls that the host could not make.
    pub host_faults: u64,
}

impl Snapshot {
    /// Faults of all kinds.
    pub fn faults(&self) -> u64 {
        self.out_of_fuel + self.traps + self.host_faults
    }

    fn add(&mut self, other: Snapshot) {
        self.calls += other.calls;
        self.decisions += other.decisions;
        self.out_of_fuel += other.out_of_fuel;
        self.traps += other.traps;
        self.host_faults += other.host_faults;
    }
}

/// Counters of a policy over all its instances, past ones included.
#[derive(Debug, Default)]
pub struct Metrics {
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    live: Vec<Arc<Counters>>,
    retired: Snapshot,
}

impl Parts {
    /// Folds the counters of dropped instances into the sum.
    fn retire(&mut self) {
        let retired = &mut self.retired;
        self.live.retain(|c| {
            let dropped = Arc::strong_count(c) == 1;
            if dropped {
                retired.add(c.snapshot());
            }
            !dropped
        });
    }
}

impl Metrics {
    /// Counters for a new instance.
    pub(crate) fn register(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retire();
        parts.live.push(counters.clone());
        counters
    }

    /// The sums now.
    pub fn snapshot(&self) -> Snapshot {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retire();
        let mut sum = parts.retired;
        parts.live.iter().for_each(|c| sum.add(c.snapshot()));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_instances_stay_in_the_sum() {
        let metrics = Metrics::default();
        let (a, b) = (metrics.register(), metrics.register());
        a.answered(true);
        a.answered(false);
        b.faulted(&Fault::OutOfFuel);
        drop(a);
        let want = Snapshot { calls: 3, decisions: 1, out_of_fuel: 1, traps: 0, host_faults: 0 };
        assert_eq!(metrics.snapshot(), want);
        b.faulted(&Fault::Host("x"));
        assert_eq!(metrics.snapshot().faults(), 2);
        assert_eq!(metrics.parts.lock().unwrap().live.len(), 1);
    }
}
