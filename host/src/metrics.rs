//! [`Metrics`]: what the instances of one policy did. [`Counters`] are the part of one instance.
//!
//! An instance is driven by one thread at a time, so its counters have a single writer: they are bumped with a
//! plain load and store instead of a locked add, which would cost about 6 ns on the decision path. Readers on
//! other threads see each counter whole, though not all of them at one instant.
//!
//! Calls and fuel are counted at every call. Latency is sampled, because reading the clock twice costs as much as a small policy: one
//! call in [`sampled_every`] on average, at random distances, so that a job whose collectives repeat with a period is not
//! seen at one place of it only.

mod histogram;

pub use histogram::Histogram;
#[cfg(feature = "cli")]
pub(crate) use histogram::Scale;

use crate::fault::Fault;
use crate::hooks::Hook;
use crate::memory::monotonic_ns;
use histogram::Live;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of how many calls one is timed, on average: 64, a power of two, which adds less than a nanosecond a call. What is called once for a
/// communicator, at init, or by tools, is timed each time.
pub const fn sampled_every(hook: Hook) -> u64 {
    match hook {
        Hook::TunerInit | Hook::Env | Hook::Generic => 1,
        _ => 64,
    }
}

/// Counters of one instance. One writer, any number of readers. What every call touches lies in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Counters {
    calls: AtomicU64,
    decisions: AtomicU64,
    fuel_sum: AtomicU64,
    fuel_max: AtomicU64,
    fuel_last: AtomicU64,
    /// Number of the call that is timed next.
    timed_next: AtomicU64,
    /// State of the random distances.
    random: AtomicU64,
    every: u64,
    out_of_fuel: AtomicU64,
    traps: AtomicU64,
    host: AtomicU64,
    latency: Live,
}

/// When a call began, if it is timed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Began(u64);

#[inline]
fn bump(counter: &AtomicU64) {
    add(counter, 1);
}

#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    fn new(hook: Hook) -> Counters {
        Counters {
            every: sampled_every(hook),
            random: AtomicU64::new(monotonic_ns() | 1),
            ..Counters::default()
        }
    }

    /// A call begins.
    #[inline]
    pub(crate) fn begin(&self) -> Began {
        if self.calls.load(Relaxed) == self.timed_next.load(Relaxed) { self.begin_timed() } else { Began(0) }
    }

    #[cold]
    fn begin_timed(&self) -> Began {
        // Distances are even over 1 to 2 * every - 1, so `every` on average.
        let mut x = self.random.load(Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Relaxed);
        let distance = 1 + x % (2 * self.every - 1);
        self.timed_next.store(self.calls.load(Relaxed).wrapping_add(distance), Relaxed);
        Began(monotonic_ns().max(1))
    }

    /// A call was answered and took `fuel`; `decided` if the policy submitted a decision.
    #[inline]
    pub(crate) fn answered(&self, began: Began, decided: bool, fuel: u64) {
        bump(&self.calls);
        if decided {
            bump(&self.decisions);
        }
        self.burnt(fuel);
        if began.0 != 0 {
            self.timed(began);
        }
    }

    #[inline]
    fn burnt(&self, fuel: u64) {
        add(&self.fuel_sum, fuel);
        if fuel > self.fuel_max.load(Relaxed) {
            self.fuel_max.store(fuel, Relaxed);
        }
        self.fuel_last.store(fuel, Relaxed);
    }

    #[cold]
    fn timed(&self, began: Began) {
        self.latency.record(monotonic_ns().saturating_sub(began.0));
    }

    /// A call ended in a fault. It is not in the latencies: making the error costs a microsecond that no decision has.
    #[cold]
    pub(crate) fn faulted(&self, fault: &Fault, fuel: u64) {
        bump(&self.calls);
        self.burnt(fuel);
        bump(match fault {
            Fault::OutOfFuel => &self.out_of_fuel,
            Fault::Trap(_) => &self.traps,
            Fault::Host(_) => &self.host,
        });
        // Or it would be timed at no call any more, having missed the one.
        if self.timed_next.load(Relaxed) < self.calls.load(Relaxed) {
            self.timed_next.store(self.calls.load(Relaxed), Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            calls: self.calls.load(Relaxed),
            decisions: self.decisions.load(Relaxed),
            out_of_fuel: self.out_of_fuel.load(Relaxed),
            traps: self.traps.load(Relaxed),
            host_faults: self.host.load(Relaxed),
            fuel: self.fuel_sum.load(Relaxed),
            fuel_max: self.fuel_max.load(Relaxed),
            fuel_last: self.fuel_last.load(Relaxed),
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
    /// Fuel of all calls.
    pub fuel: u64,
    /// Most fuel that a call took.
    pub fuel_max: u64,
    /// Fuel of the latest call, of the newest instance that was called.
    pub fuel_last: u64,
}

impl Snapshot {
    /// Faults of all kinds.
    pub fn faults(&self) -> u64 {
        self.out_of_fuel + self.traps + self.host_faults
    }

    /// Adds those of a newer instance.
    fn add(&mut self, newer: Snapshot) {
        self.calls += newer.calls;
        self.decisions += newer.decisions;
        self.out_of_fuel += newer.out_of_fuel;
        self.traps += newer.traps;
        self.host_faults += newer.host_faults;
        self.fuel = self.fuel.wrapping_add(newer.fuel);
        self.fuel_max = self.fuel_max.max(newer.fuel_max);
        if newer.calls > 0 {
            self.fuel_last = newer.fuel_last;
        }
    }
}

/// Counters and latencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The counters.
    pub counts: Snapshot,
    /// Latencies of the calls that were timed.
    pub latency: Histogram,
}

impl Totals {
    fn add_live(&mut self, counters: &Counters) {
        self.counts.add(counters.snapshot());
        counters.latency.add_to(&mut self.latency);
    }

    /// Adds those of a newer policy.
    pub fn add(&mut self, newer: &Totals) {
        self.counts.add(newer.counts);
        self.latency.add(&newer.latency);
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
    retired: Totals,
    /// Of the policy that this one took the place of, and what its own predecessors left.
    before: Option<Arc<Metrics>>,
    inherited: Totals,
}

impl Parts {
    /// Folds the counters of dropped instances into the sum.
    fn retire(&mut self) {
        let retired = &mut self.retired;
        self.live.retain(|c| {
            let dropped = Arc::strong_count(c) == 1;
            if dropped {
                retired.add_live(c);
            }
            !dropped
        });
    }

    fn own(&self) -> Totals {
        let mut sum = self.retired.clone();
        self.live.iter().for_each(|c| sum.add_live(c));
        sum
    }
}

impl Metrics {
    /// Counters for a new instance on that hook.
    pub(crate) fn register(&self, hook: Hook) -> Arc<Counters> {
        let counters = Arc::new(Counters::new(hook));
        let mut parts = self.lock();
        parts.retire();
        parts.live.push(counters.clone());
        counters
    }

    /// From now on [`Metrics::total`] counts those of `before` in: the policy that this one takes the place of.
    pub(crate) fn succeed(&self, before: &Arc<Metrics>) {
        if !std::ptr::eq(self, &**before) {
            self.lock().before.get_or_insert_with(|| before.clone());
        }
    }

    /// The sums of this policy now.
    pub fn snapshot(&self) -> Snapshot {
        self.own().counts
    }

    /// Sums and latencies of this policy now.
    pub fn own(&self) -> Totals {
        let mut parts = self.lock();
        parts.retire();
        parts.own()
    }

    /// Sums and latencies of this policy and of those that it took the place of: they only ever grow while the process has a policy
    /// of that name.
    pub fn total(&self) -> Totals {
        let mut parts = self.lock();
        parts.retire();
        // Whoever nobody else knows is written to no more. So the chain is as long as there are plans in use.
        while let Some(before) = parts.before.take_if(|b| Arc::strong_count(b) == 1) {
            let mut theirs = before.lock();
            theirs.retire();
            let own = theirs.own();
            let further = std::mem::take(&mut theirs.inherited);
            parts.before = theirs.before.take();
            parts.inherited.add(&further);
            parts.inherited.add(&own);
        }
        let mut sum = parts.inherited.clone();
        if let Some(before) = &parts.before {
            sum.add(&before.total());
        }
        sum.add(&parts.own());
        sum
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_TIMED: Began = Began(0);

    #[test]
    fn dropped_instances_stay_in_the_sum() {
        let metrics = Metrics::default();
        let (a, b) = (metrics.register(Hook::Tuner), metrics.register(Hook::Tuner));
        a.answered(NOT_TIMED, true, 30);
        a.answered(NOT_TIMED, false, 10);
        b.faulted(&Fault::OutOfFuel, 20);
        drop(a);
        let want = Snapshot {
            calls: 3,
            decisions: 1,
            out_of_fuel: 1,
            fuel: 60,
            fuel_max: 30,
            fuel_last: 20,
            ..Snapshot::default()
        };
        assert_eq!(metrics.snapshot(), want);
        b.faulted(&Fault::Host("x"), 0);
        assert_eq!(metrics.snapshot().faults(), 2);
        assert_eq!(metrics.lock().live.len(), 1);
    }

    #[test]
    fn one_call_in_64_is_timed_wherever_a_period_lies() {
        let metrics = Metrics::default();
        let counters = metrics.register(Hook::Tuner);
        let (mut timed, mut phases) = (0u64, [0u64; 64]);
        const CALLS: usize = 64 * 4096;
        for call in 0..CALLS {
            let began = counters.begin();
            if began.0 != 0 {
                timed += 1;
                phases[call % 64] += 1;
            }
            counters.answered(began, true, 1);
        }
        assert!((3600..4600).contains(&timed), "{timed}");
        assert!(phases.iter().all(|n| *n > 16), "{phases:?}");
        let totals = metrics.own();
        assert_eq!((totals.counts.calls, totals.latency.count()), (CALLS as u64, timed));
    }

    #[test]
    fn faults_do_not_end_the_sampling() {
        let counters = Counters::new(Hook::Tuner);
        for _ in 0..1000 {
            let _ = counters.begin();
            counters.faulted(&Fault::OutOfFuel, 1);
        }
        let timed = (0..1000).filter(|_| {
            let began = counters.begin();
            counters.answered(began, true, 1);
            began.0 != 0
        });
        assert!(timed.count() > 3);
    }

    #[test]
    fn totals_pass_to_the_next_policy_and_never_shrink() {
        let first = Arc::new(Metrics::default());
        let old = first.register(Hook::Generic);
        old.answered(old.begin(), true, 5);
        let second = Arc::new(Metrics::default());
        second.succeed(&first);
        let third = Metrics::default();
        third.succeed(&second);
        let new = third.register(Hook::Generic);
        new.answered(new.begin(), true, 7);
        let calls = |m: &Metrics| (m.own().counts.calls, m.total().counts.calls, m.total().latency.count());
        assert_eq!(calls(&third), (1, 2, 2));
        drop(second);
        assert_eq!(calls(&third), (1, 2, 2), "the middle one is folded in");
        old.answered(old.begin(), true, 5);
        assert_eq!(calls(&third), (1, 3, 3), "an old communicator goes on");
        drop((old, first));
        assert_eq!(calls(&third), (1, 3, 3));
        assert!(third.lock().before.is_none());
        assert_eq!(third.total().counts.fuel, 17);
        third.succeed(&Arc::new(Metrics::default()));
        assert_eq!(calls(&third), (1, 3, 3));
    }
}
