//! [`Worker`]: one thread that drives some communicators over the trace, and [`Stats`], what it saw.

use super::group::{Group, Line, Shape};
use super::histogram::Histogram;
use super::rules::{Breach, Outcome};
use super::simulate::{Clock, Profiled};
use crate::ffi::driver::Plugin;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// Different outcomes that are remembered per line and phase; a policy that adapts may have many.
const MAX_OUTCOMES: usize = 32;

/// What all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Time zero of [`Shared::switched_ns`].
    pub(super) epoch: Instant,
    /// Collectives done so far.
    pub(super) done: AtomicU64,
    /// Nanoseconds since the epoch at which the policy was replaced; 0 while it was not.
    pub(super) switched_ns: AtomicU64,
    /// Communicators are to be made anew when this grows.
    pub(super) generation: AtomicU32,
    /// The plugin has told that it has the new policy.
    pub(super) told: AtomicBool,
    /// Threads that are on the new policy: their decisions show it, or they replayed a whole pass since the plugin
    /// told of it.
    pub(super) arrived: AtomicU32,
    /// The switch is over: what follows is the new policy alone.
    pub(super) settled: AtomicBool,
    /// Stop at the end of a pass.
    pub(super) stop: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared {
            epoch: Instant::now(),
            done: AtomicU64::new(0),
            switched_ns: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            told: AtomicBool::new(false),
            arrived: AtomicU32::new(0),
            settled: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// Nanoseconds since the epoch, never 0.
    pub(super) fn now_ns(&self) -> u64 {
        (self.epoch.elapsed().as_nanos() as u64).max(1)
    }
}

/// Outcomes of one line in one phase, with how often each was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(pub(super) Vec<(Outcome, u64)>);

impl Seen {
    fn add(&mut self, outcome: Outcome, n: u64) {
        if let Some((_, count)) = self.0.iter_mut().find(|(o, _)| *o == outcome) {
            *count += n;
        } else if self.0.len() < MAX_OUTCOMES {
            self.0.push((outcome, n));
        }
    }

    fn holds(&self, outcome: Outcome) -> bool {
        self.0.len() >= MAX_OUTCOMES || self.0.iter().any(|(o, _)| *o == outcome)
    }

    fn untouched(&self) -> u64 {
        self.0.iter().filter(|(o, _)| !o.touched).map(|(_, n)| n).sum()
    }

    /// The most frequent outcome.
    pub(super) fn usual(&self) -> Option<Outcome> {
        self.0.iter().max_by_key(|(_, n)| *n).map(|(o, _)| *o)
    }
}

/// What happened between two points of the replay.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    /// Latency of single calls.
    pub(super) latency: Histogram,
    /// By line.
    pub(super) seen: Vec<Seen>,
    /// Calls that returned an error.
    pub(super) errors: u64,
}

impl Phase {
    fn new(lines: usize) -> Phase {
        Phase { latency: Histogram::new(), seen: vec![Seen::default(); lines], errors: 0 }
    }

    fn merge(&mut self, other: &Phase) {
        self.latency.merge(&other.latency);
        self.errors += other.errors;
        for (mine, theirs) in self.seen.iter_mut().zip(&other.seen) {
            theirs.0.iter().for_each(|(o, n)| mine.add(*o, *n));
        }
    }
}

/// What a thread saw; of several threads after [`Stats::merge`].
#[derive(Clone, Debug)]
pub(super) struct Stats {
    /// Until the policy was replaced.
    pub(super) before: Phase,
    /// From then until the switch was over.
    pub(super) during: Phase,
    /// Afterwards.
    pub(super) after: Phase,
    /// Broken rules, by kind, with the line where each was seen first.
    pub(super) breaches: BTreeMap<Breach, (u64, usize)>,
    /// Collectives decided by the old policy after it had been replaced.
    pub(super) late: u64,
    /// Nanoseconds from the replacement to the first decision that the old policy never took: first and last
    /// thread to see one.
    pub(super) first_new: Option<(u64, u64)>,
    /// Ranks whose init or finalize returned an error.
    pub(super) lifecycle_errors: u64,
}

impl Stats {
    pub(super) fn new(lines: usize) -> Stats {
        let phase = Phase::new(lines);
        Stats {
            before: phase.clone(),
            during: phase.clone(),
            after: phase,
            breaches: BTreeMap::new(),
            late: 0,
            first_new: None,
            lifecycle_errors: 0,
        }
    }

    pub(super) fn merge(&mut self, other: &Stats) {
        self.before.merge(&other.before);
        self.during.merge(&other.during);
        self.after.merge(&other.after);
        for (breach, (n, line)) in &other.breaches {
            self.breaches.entry(*breach).or_insert((0, *line)).0 += n;
        }
        self.late += other.late;
        self.first_new = match (self.first_new, other.first_new) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (mine, theirs) => mine.or(theirs),
        };
        self.lifecycle_errors += other.lifecycle_errors;
    }

    /// Calls that the reload cost: those that failed from the replacement on, and those left without a decision
    /// where neither the old policy nor the new one ever leaves that line without one.
    pub(super) fn lost(&self) -> u64 {
        let seen = self.before.seen.iter().zip(&self.during.seen).zip(&self.after.seen);
        let undecided: u64 = seen
            .filter(|((before, _), after)| before.untouched() == 0 && after.untouched() == 0)
            .map(|((_, during), _)| during.untouched())
            .sum();
        self.during.errors + undecided
    }

    fn breach(&mut self, breach: Breach, line: usize) {
        self.breaches.entry(breach).or_insert((0, line)).0 += 1;
    }
}

/// Ends the replay if a thread panics, so that nobody waits for it.
struct StopOnPanic<'a>(&'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, SeqCst);
        }
    }
}

/// One thread's part of the replay.
pub(super) struct Worker<'a> {
    pub(super) shared: &'a Shared,
    pub(super) plugin: &'a Plugin,
    /// The profiler half, if it is driven too.
    pub(super) profiled: Option<&'a Profiled>,
    pub(super) clock: Clock,
    pub(super) shape: Shape,
    pub(super) lines: &'a [Line],
    /// Indices into `lines`.
    pub(super) trace: &'a [usize],
    pub(super) comm_ids: Vec<u64>,
    pub(super) groups: Vec<Group>,
    pub(super) stats: Stats,
    pub(super) generation: u32,
    pub(super) arrived: bool,
}

impl Worker<'_> {
    /// Replays until told to stop, always whole passes of the trace.
    pub(super) fn run(mut self) -> (Stats, Vec<Group>) {
        let _guard = StopOnPanic(self.shared);
        while !self.shared.stop.load(SeqCst) {
            let told = self.shared.told.load(SeqCst);
            for &line in self.trace {
                self.renew();
                for group in 0..self.groups.len() {
                    self.one(group, line);
                }
            }
            if told && !self.arrived {
                // Old and new policy decide alike on this trace.
                self.arrived = true;
                self.shared.arrived.fetch_add(1, SeqCst);
            }
        }
        (self.stats, self.groups)
    }

    /// Makes the communicators anew, as a job that re-creates its process groups.
    fn renew(&mut self) {
        let wanted = self.shared.generation.load(SeqCst);
        if wanted == self.generation {
            return;
        }
        self.generation = wanted;
        for group in self.groups.drain(..) {
            self.stats.lifecycle_errors += group.finalize();
        }
        for id in &mut self.comm_ids {
            *id = id.wrapping_add(0x1_0000);
            let profiler = self.profiled.map(|p| &p.profiler);
            let (group, failed) = Group::create(self.plugin, profiler, self.shape, *id);
            self.groups.push(group);
            self.stats.lifecycle_errors += failed;
        }
        self.arrive();
    }

    fn one(&mut self, group: usize, index: usize) {
        let (Some(line), Some(group)) = (self.lines.get(index), self.groups.get_mut(group)) else { return };
        // Read before the call: a call that began before the replacement belongs to the old policy.
        let switched = self.shared.switched_ns.load(SeqCst);
        let phase = match (switched, self.shared.settled.load(SeqCst)) {
            (0, _) => &mut self.stats.before,
            (_, false) => &mut self.stats.during,
            (_, true) => &mut self.stats.after,
        };
        let decided = group.decide(line, |ns| phase.latency.record(ns));
        if let Some(profiled) = self.profiled {
            group.ran(&profiled.event(&mut self.clock, line, self.shape, decided.outcome));
        }
        if let Some(seen) = phase.seen.get_mut(index) {
            seen.add(decided.outcome, 1);
        }
        if let Some(breach) = decided.breach {
            phase.errors += u64::from(breach == Breach::Error);
            self.stats.breach(breach, index);
        }
        self.shared.done.fetch_add(1, SeqCst);
        if switched != 0 && !self.arrived {
            self.look_for_new(index, decided.outcome);
        }
    }

    /// Is this a decision that the old policy never took for this line?
    fn look_for_new(&mut self, index: usize, outcome: Outcome) {
        let known = self.stats.before.seen.get(index).is_some_and(|s| s.0.is_empty() || s.holds(outcome));
        if known {
            self.stats.late += 1;
        } else {
            self.arrive();
        }
    }

    fn arrive(&mut self) {
        if !self.arrived {
            self.arrived = true;
            let ns = self.shared.now_ns().saturating_sub(self.shared.switched_ns.load(SeqCst));
            self.stats.first_new = Some((ns, ns));
            self.shared.arrived.fetch_add(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(channels: i32) -> Outcome {
        Outcome { pick: Some((1, 2)), channels, touched: channels != 0 }
    }

    fn stats(before: i32, during: &[i32], after: i32) -> Stats {
        let mut s = Stats::new(1);
        s.before.seen[0].add(outcome(before), 5);
        during.iter().for_each(|c| s.during.seen[0].add(outcome(*c), 1));
        s.after.seen[0].add(outcome(after), 5);
        s
    }

    #[test]
    fn a_call_is_lost_if_neither_policy_would_have_left_it_alone() {
        assert_eq!(stats(4, &[4, 8], 8).lost(), 0);
        assert_eq!(stats(4, &[4, 0, 0, 8], 8).lost(), 2);
        assert_eq!(stats(0, &[0, 8], 8).lost(), 0, "the old policy leaves it alone");
        assert_eq!(stats(4, &[4, 0], 0).lost(), 0, "the new policy leaves it alone");
        let mut failed = stats(4, &[4], 8);
        failed.during.errors = 3;
        assert_eq!(failed.lost(), 3);
    }

    #[test]
    fn merging_adds_up_and_keeps_the_extremes() {
        let mut a = stats(4, &[4], 8);
        let mut b = stats(4, &[8], 8);
        a.first_new = Some((10, 10));
        b.first_new = Some((7, 7));
        b.breach(Breach::Channels, 3);
        a.merge(&b);
        assert_eq!(a.first_new, Some((7, 10)));
        assert_eq!(a.breaches.get(&Breach::Channels), Some(&(1, 3)));
        assert_eq!(a.before.seen[0].0, [(outcome(4), 10)]);
        assert_eq!(a.after.seen[0].usual(), Some(outcome(8)));
    }
}
