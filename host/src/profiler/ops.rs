//! [`Ops`]: the fixed ring of operations (collectives, sends and receives) whose latency is measured.
//!
//! NCCL stops a collective when it is enqueued; its kernels come later, from another thread, with the collective as parent, and nothing
//! says that all have come. So an operation lives in its place until all its channels have ended, or until the ring comes round and
//! pushes it out. Memory is bounded by that, whatever NCCL forgets.
//!
//! # Why threads do not meet
//! No thread ever waits. A thread that touches an operation first *pins* its place (adds one to the users in `state`) and then looks
//! whether the generation is the one it means; a place is taken for a new operation only by a compare-and-swap that demands zero users.
//! So the fields of an operation are touched by threads that mean this operation, and those are atomics. Exactly one thread sees
//! its own bit complete `stopped`: it ends the operation.

use super::handle::{MAX_CHANNELS, OP_GENERATION};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Low bits of `state`: threads inside.
const USERS: u64 = 0xffff;
const PHASE_SHIFT: u32 = 16;
/// One step from a phase to the next: being filled, open, done.
const PHASE: u64 = 1 << PHASE_SHIFT;
const PHASES: u64 = 3 << PHASE_SHIFT;
const FILLING: u64 = PHASE;
const OPEN: u64 = 2 * PHASE;
const DONE: u64 = 3 * PHASE;
const GENERATION_SHIFT: u32 = 18;
/// Places tried for a new operation.
const TRIES: usize = 8;

/// What is kept of an operation for its sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpFacts {
    pub(crate) n_bytes: u64,
    pub(crate) seq: u64,
    pub(crate) func: u32,
    pub(crate) algo: u32,
    pub(crate) proto: u32,
    pub(crate) peer: u32,
    pub(crate) datatype_bytes: u32,
    /// Channels as NCCL told.
    pub(crate) channels: u32,
    /// Kernels to expect.
    pub(crate) kernels: u32,
}

/// When an operation's kernels ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) facts: OpFacts,
    /// Least and greatest GPU timer; `u64::MAX` and 0 if there was none.
    pub(crate) gpu: (u64, u64),
    /// Host clock at the first kernel's start and the latest end; `u64::MAX` and 0 if there was none.
    pub(crate) host: (u64, u64),
    /// Host clock at the enqueueing.
    pub(crate) enqueued: u64,
    /// Channels that ended.
    pub(crate) ended: u32,
}

/// One place of the ring. Aligned so that two operations never share a cache line (128: the adjacent-line prefetcher).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place {
    /// Generation, phase, users.
    state: AtomicU64,
    started: AtomicU64,
    stopped: AtomicU64,
    gpu_start: AtomicU64,
    gpu_stop: AtomicU64,
    host_start: AtomicU64,
    host_stop: AtomicU64,
    enqueued: AtomicU64,
    n_bytes: AtomicU64,
    seq: AtomicU64,
    func: AtomicU32,
    algo: AtomicU32,
    proto: AtomicU32,
    peer: AtomicU32,
    datatype_bytes: AtomicU32,
    channels: AtomicU32,
    kernels: AtomicU32,
    stops: AtomicU32,
}

const _: () = assert!(size_of::<Place>() == 128);

/// The ring.
#[derive(Debug)]
pub(crate) struct Ops {
    places: Box<[Place]>,
    next: AtomicU64,
}

/// A place taken for a new operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) op: usize,
    pub(crate) generation: u64,
    /// The operation that was pushed out, if it had not ended.
    pub(crate) evicted: Option<Span>,
}

/// What a kernel's event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Noted.
    Noted,
    /// The operation is not there any more, or never was.
    Stale,
    /// The operation had ended.
    Late,
    /// The channel had started, or stopped, before.
    Again,
    /// A stop before the start; noted.
    Early,
    /// This event ended the operation.
    Ended {
        /// All of it.
        span: Span,
        /// The channel had not started.
        early: bool,
    },
}

impl Ops {
    /// A ring of `places`, at most [`MAX_OPS`](super::handle::MAX_OPS).
    pub(crate) fn new(places: usize) -> Ops {
        Ops { places: (0..places).map(|_| Place::default()).collect(), next: AtomicU64::new(0) }
    }

    /// Takes the next place that no thread is inside; `None` if several in a row were in use.
    pub(crate) fn take(&self, facts: &OpFacts, now: u64) -> Option<Taken> {
        for _ in 0..TRIES {
            let op = (self.next.fetch_add(1, Ordering::Relaxed) % self.places.len() as u64) as usize;
            let place = &self.places[op];
            let old = place.state.load(Ordering::Relaxed);
            if old & USERS != 0 || old & PHASES == FILLING {
                continue;
            }
            let generation = (old >> GENERATION_SHIFT).wrapping_add(1) & OP_GENERATION;
            let new = generation << GENERATION_SHIFT | FILLING;
            if place.state.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            let evicted = (old & PHASES == OPEN).then(|| place.span());
            place.fill(facts, now);
            // Added, not stored: somebody with a stale handle may be pinning at this moment.
            place.state.fetch_add(OPEN - FILLING, Ordering::Release);
            return Some(Taken { op, generation, evicted });
        }
        None
    }

    /// The operation's own stop: with no channels to wait for, its end.
    pub(crate) fn stop(&self, op: usize, generation: u64, now: impl FnOnce() -> u64) -> Step {
        self.pinned(op, generation, |place, done| {
            if place.stops.fetch_add(1, Ordering::Relaxed) != 0 {
                return Step::Again;
            }
            if done || place.kernels.load(Ordering::Relaxed) != 0 {
                return Step::Noted;
            }
            place.host_stop.store(now(), Ordering::Relaxed);
            place.end(false)
        })
    }

    /// A kernel starts on a channel (below [`MAX_CHANNELS`]); timer 0: none.
    pub(crate) fn kernel_start(
        &self,
        op: usize,
        generation: u64,
        channel: u32,
        timer: u64,
        now: impl FnOnce() -> u64,
    ) -> Step {
        self.pinned(op, generation, |place, done| {
            if done {
                return Step::Late;
            }
            let bit = 1 << (channel % MAX_CHANNELS);
            let before = place.started.fetch_or(bit, Ordering::Relaxed);
            if before & bit != 0 {
                return Step::Again;
            }
            if before == 0 {
                // Once an operation, in case that the timers prove useless.
                place.host_start.store(now(), Ordering::Relaxed);
            }
            if timer != 0 {
                least(&place.gpu_start, timer);
            }
            let early = place.stopped.load(Ordering::Relaxed) & bit != 0;
            if early { Step::Early } else { Step::Noted }
        })
    }

    /// The timer at which a kernel ended, not 0.
    pub(crate) fn kernel_timer(&self, op: usize, generation: u64, timer: u64) -> Step {
        self.pinned(op, generation, |place, done| {
            if done {
                return Step::Late;
            }
            greatest(&place.gpu_stop, timer);
            Step::Noted
        })
    }

    /// A kernel ends on a channel.
    pub(crate) fn kernel_stop(
        &self,
        op: usize,
        generation: u64,
        channel: u32,
        now: impl FnOnce() -> u64,
    ) -> Step {
        self.pinned(op, generation, |place, done| {
            let bit = 1 << (channel % MAX_CHANNELS);
            // Released, and acquired by whoever comes last: that thread reads what the others wrote.
            let before = place.stopped.fetch_or(bit, Ordering::AcqRel);
            if before & bit != 0 {
                return Step::Again;
            }
            if done {
                return Step::Late;
            }
            let (started, stopped) = (place.started.load(Ordering::Relaxed), before | bit);
            let last = stopped.count_ones() == place.kernels.load(Ordering::Relaxed);
            if last || !place.has_gpu_span() {
                greatest(&place.host_stop, now());
            }
            match (last, started & bit == 0) {
                (true, early) => place.end(early),
                (false, false) => Step::Noted,
                (false, true) => Step::Early,
            }
        })
    }

    /// Facts of an operation that is still in its place.
    pub(crate) fn facts(&self, op: usize, generation: u64) -> Option<OpFacts> {
        let mut facts = None;
        self.pinned(op, generation, |place, _| {
            facts = Some(place.facts());
            Step::Noted
        });
        facts
    }

    /// Ends every operation that is open, and returns them in turn.
    pub(crate) fn sweep(&self, mut each: impl FnMut(Span)) {
        for place in &self.places {
            let state = place.state.load(Ordering::Relaxed);
            if state & PHASES == OPEN && state & USERS == 0 {
                let new = state - OPEN + DONE;
                if place.state.compare_exchange(state, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    each(place.span());
                }
            }
        }
    }

    /// Runs `f` with the place pinned, if it holds that operation. `f` is told whether the operation has ended.
    #[inline]
    fn pinned(&self, op: usize, generation: u64, f: impl FnOnce(&Place, bool) -> Step) -> Step {
        let Some(place) = self.places.get(op) else { return Step::Stale };
        let state = place.state.fetch_add(1, Ordering::Acquire);
        let phase = state & PHASES;
        let mine = state >> GENERATION_SHIFT == generation && (phase == OPEN || phase == DONE);
        let step = if mine { f(place, phase == DONE) } else { Step::Stale };
        place.state.fetch_sub(1, Ordering::Release);
        step
    }
}

impl Place {
    /// Only the thread that took the place is here: all others see that it is being filled.
    fn fill(&self, facts: &OpFacts, now: u64) {
        let set = |field: &AtomicU64, value| field.store(value, Ordering::Relaxed);
        let set32 = |field: &AtomicU32, value| field.store(value, Ordering::Relaxed);
        for (field, value) in [
            (&self.started, 0),
            (&self.stopped, 0),
            (&self.gpu_start, u64::MAX),
            (&self.gpu_stop, 0),
            (&self.host_start, u64::MAX),
            (&self.host_stop, 0),
            (&self.enqueued, now),
            (&self.n_bytes, facts.n_bytes),
            (&self.seq, facts.seq),
        ] {
            set(field, value);
        }
        for (field, value) in [
            (&self.func, facts.func),
            (&self.algo, facts.algo),
            (&self.proto, facts.proto),
            (&self.peer, facts.peer),
            (&self.datatype_bytes, facts.datatype_bytes),
            (&self.channels, facts.channels),
            (&self.kernels, facts.kernels),
            (&self.stops, 0),
        ] {
            set32(field, value);
        }
    }

    fn facts(&self) -> OpFacts {
        let get = |field: &AtomicU32| field.load(Ordering::Relaxed);
        OpFacts {
            n_bytes: self.n_bytes.load(Ordering::Relaxed),
            seq: self.seq.load(Ordering::Relaxed),
            func: get(&self.func),
            algo: get(&self.algo),
            proto: get(&self.proto),
            peer: get(&self.peer),
            datatype_bytes: get(&self.datatype_bytes),
            channels: get(&self.channels),
            kernels: get(&self.kernels),
        }
    }

    fn span(&self) -> Span {
        let get = |field: &AtomicU64| field.load(Ordering::Relaxed);
        Span {
            facts: self.facts(),
            gpu: (get(&self.gpu_start), get(&self.gpu_stop)),
            host: (get(&self.host_start), get(&self.host_stop)),
            enqueued: get(&self.enqueued),
            ended: get(&self.stopped).count_ones(),
        }
    }

    fn has_gpu_span(&self) -> bool {
        let (start, stop) = (&self.gpu_start, &self.gpu_stop);
        start.load(Ordering::Relaxed) < stop.load(Ordering::Relaxed)
    }

    /// The operation has ended: by the thread that saw that, while it pins the place.
    fn end(&self, early: bool) -> Step {
        let span = self.span();
        self.state.fetch_add(DONE - OPEN, Ordering::AcqRel);
        Step::Ended { span, early }
    }
}

/// Lowers `cell` to `value`.
#[inline]
fn least(cell: &AtomicU64, value: u64) {
    if value < cell.load(Ordering::Relaxed) {
        cell.fetch_min(value, Ordering::Relaxed);
    }
}

/// Raises `cell` to `value`.
#[inline]
fn greatest(cell: &AtomicU64, value: u64) {
    if value > cell.load(Ordering::Relaxed) {
        cell.fetch_max(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn facts(channels: u32) -> OpFacts {
        OpFacts {
            n_bytes: 4096,
            seq: 7,
            func: 4,
            algo: 1,
            proto: 2,
            peer: 9,
            datatype_bytes: 4,
            channels: 40,
            kernels: channels,
        }
    }

    fn take(ops: &Ops, channels: u32) -> (usize, u64) {
        let taken = ops.take(&facts(channels), 1000).unwrap();
        (taken.op, taken.generation)
    }

    fn never() -> u64 {
        panic!("the clock is not to be read here")
    }

    #[test]
    fn the_last_channel_ends_the_operation() {
        let ops = Ops::new(4);
        let (op, generation) = take(&ops, 3);
        for (channel, timer) in [(0, 500), (5, 400), (63, 450)] {
            let step = ops.kernel_start(op, generation, channel, timer, || 2000);
            assert_eq!(step, Step::Noted);
        }
        assert_eq!(ops.stop(op, generation, never), Step::Noted);
        for (channel, timer) in [(0, 900), (63, 990)] {
            assert_eq!(ops.kernel_timer(op, generation, timer), Step::Noted);
            assert_eq!(ops.kernel_stop(op, generation, channel, never), Step::Noted);
        }
        assert_eq!(ops.kernel_timer(op, generation, 950), Step::Noted);
        let Step::Ended { span, early } = ops.kernel_stop(op, generation, 5, || 3000) else { panic!() };
        assert_eq!((span.gpu, span.host, span.enqueued, span.ended), ((400, 990), (2000, 3000), 1000, 3));
        assert_eq!((span.facts, early), (facts(3), false));
        assert_eq!(ops.kernel_stop(op, generation, 5, never), Step::Again);
        assert_eq!(ops.kernel_stop(op, generation, 6, never), Step::Late);
        assert_eq!(ops.kernel_start(op, generation, 7, 1, never), Step::Late);
        assert_eq!(ops.facts(op, generation), Some(facts(3)));
    }

    #[test]
    fn handles_go_stale_when_the_place_is_taken_again() {
        let ops = Ops::new(2);
        let (op, generation) = take(&ops, 1);
        assert_eq!(ops.kernel_stop(op, 0, 0, never), Step::Stale);
        assert_eq!(ops.kernel_stop(op, generation + 1, 0, never), Step::Stale);
        assert_eq!(ops.kernel_stop(17, generation, 0, never), Step::Stale);
        take(&ops, 1);
        let third = ops.take(&facts(1), 2000).unwrap();
        assert_eq!((third.op, third.generation), (op, generation + 1));
        let evicted = third.evicted.unwrap();
        assert_eq!((evicted.ended, evicted.enqueued), (0, 1000));
        assert_eq!(ops.kernel_start(op, generation, 0, 1, never), Step::Stale);
        assert_eq!(ops.facts(op, generation), None);
        let Step::Ended { early, .. } = ops.kernel_stop(op, third.generation, 0, || 1) else { panic!() };
        assert!(early, "its kernel never started");
        assert_eq!(ops.take(&facts(1), 1).unwrap().evicted.map(|s| s.ended), Some(0));
        assert_eq!(ops.take(&facts(1), 1).unwrap().evicted, None, "it had ended");
    }

    #[test]
    fn without_channels_the_stop_is_the_end() {
        let ops = Ops::new(1);
        let (op, generation) = take(&ops, 0);
        let Step::Ended { span, .. } = ops.stop(op, generation, || 1234) else { panic!() };
        assert_eq!((span.enqueued, span.host.1), (1000, 1234));
        assert_eq!(ops.stop(op, generation, never), Step::Again);
    }

    #[test]
    fn a_place_in_use_is_passed_over() {
        let ops = Ops::new(1);
        let (op, generation) = take(&ops, 1);
        let step = ops.pinned(op, generation, |_, _| {
            assert_eq!(ops.take(&facts(1), 1), None);
            Step::Noted
        });
        assert_eq!(step, Step::Noted);
        assert!(ops.take(&facts(1), 1).is_some());
    }

    #[test]
    fn a_sweep_ends_what_is_open() {
        let ops = Ops::new(4);
        let (a, ag) = take(&ops, 2);
        take(&ops, 1);
        ops.kernel_start(a, ag, 0, 10, || 1);
        ops.kernel_timer(a, ag, 20);
        ops.kernel_stop(a, ag, 0, never);
        let mut ended = Vec::new();
        ops.sweep(|span| ended.push(span.ended));
        assert_eq!(ended, [1, 0]);
        ops.sweep(|_| panic!("swept twice"));
    }

    /// Threads that end the channels of one operation at once: one of them ends it, with everybody's timers.
    #[test]
    fn exactly_one_thread_ends_an_operation() {
        let ops = Ops::new(8);
        for round in 0..2000u64 {
            let (op, generation) = take(&ops, 4);
            let ends = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for t in 0..2u32 {
                    let (ops, ends) = (&ops, &ends);
                    scope.spawn(move || {
                        for channel in [2 * t, 2 * t + 1] {
                            ops.kernel_start(op, generation, channel, 100 + u64::from(channel), || 1);
                        }
                        for channel in [2 * t, 2 * t + 1] {
                            ops.kernel_timer(op, generation, 1000 + round + u64::from(channel));
                            if let Step::Ended { span, .. } = ops.kernel_stop(op, generation, channel, || 1) {
                                assert_eq!(span.gpu, (100, 1003 + round));
                                ends.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            assert_eq!(ends.into_inner(), 1);
        }
    }

    /// Tells a thread to stop, also when the test fails: the scope would wait for it for ever.
    struct Stops<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Stops<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A thread keeps using old handles while another takes places: no new operation ever sees the old one's kernels.
    #[test]
    fn stale_threads_leave_no_trace() {
        let ops = Ops::new(2);
        let stop = std::sync::atomic::AtomicBool::new(false);
        // Of each place: the two count apart as soon as one is passed over, and what is old in one may be of today in the other.
        let latest = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (op, latest) in latest.iter().enumerate() {
                        let generation = latest.load(Ordering::Relaxed);
                        for old in [generation.wrapping_sub(1), generation.wrapping_sub(2)] {
                            ops.kernel_start(op, old, 9, 1, || 1);
                            ops.kernel_stop(op, old, 9, || 1);
                        }
                    }
                }
            });
            let _stops = Stops(&stop);
            for _ in 0..50_000 {
                let Some(taken) = ops.take(&facts(2), 5) else { continue };
                let (op, generation) = (taken.op, taken.generation);
                latest[op].store(generation, Ordering::Relaxed);
                ops.kernel_start(op, generation, 0, 50, || 7);
                ops.kernel_timer(op, generation, 60);
                ops.kernel_stop(op, generation, 0, || 8);
                ops.kernel_timer(op, generation, 70);
                let Step::Ended { span, .. } = ops.kernel_stop(op, generation, 1, || 9) else {
                    panic!("two channels ended, and no third one counts")
                };
                assert_eq!((span.gpu, span.ended), ((50, 70), 2));
            }
        });
    }
}
