//! The state machine as NCCL's threads use it: the recipe, and one test for each oddity that NCCL is known for.

use super::comm::CommFacts;
use super::counters::ProfilerCounters;
use super::event::{Detail, Event, Kind, Op, state};
use super::mask::Needs;
use super::seat::Policies;
use super::table::{Profilers, note_pid};
use super::work::Work;
use ringfence_guest::abi::{UNSET, event_action, func, timing};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const COLL: Needs = Needs { ops: 2, events: 0 };
const BOTH: Needs = Needs { ops: 6, events: 0 };

static TIME: AtomicU64 = AtomicU64::new(1000);

/// A clock that goes on by one at each look.
fn clock() -> u64 {
    TIME.fetch_add(1, Ordering::Relaxed)
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Work>>>);

struct Recorder(Seen);

impl Policies for Recorder {
    fn run(&mut self, work: &Work) {
        self.0.0.lock().unwrap().push(*work);
    }
    fn leave(self: Box<Self>) {}
}

/// What a policy saw of a sample.
#[derive(Debug, PartialEq, Eq)]
struct Sample {
    n_bytes: u64,
    duration: u64,
    seq: u64,
    func: u32,
    channels: u32,
    timing: u32,
    peer: u32,
    flags: u32,
}

impl Seen {
    fn samples(&self) -> Vec<Sample> {
        self.take(true)
            .iter()
            .map(|bytes| Sample {
                n_bytes: wide(bytes, 8),
                duration: wide(bytes, 16),
                seq: wide(bytes, 24),
                func: narrow(bytes, 40),
                channels: narrow(bytes, 52),
                timing: narrow(bytes, 68),
                peer: narrow(bytes, 76),
                flags: narrow(bytes, 80),
            })
            .collect()
    }

    /// Action, event, state, channel, parent, handle of the events.
    fn events(&self) -> Vec<(u32, u32, u32, u32, u64, u64)> {
        let event = |b: &Vec<u8>| {
            (narrow(b, 48), narrow(b, 52), narrow(b, 56), narrow(b, 60), wide(b, 24), wide(b, 16))
        };
        self.take(false).iter().map(event).collect()
    }

    fn take(&self, sample: bool) -> Vec<Vec<u8>> {
        let mut seen = self.0.lock().unwrap();
        let taken =
            seen.iter().filter(|w| w.sample == sample).map(|w| w.with_bytes(|b| b.to_vec())).collect();
        seen.retain(|w| w.sample != sample);
        taken
    }
}

fn wide(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn narrow(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Profilers of a process of their own, with one communicator of two ranks.
struct Fixture {
    profilers: &'static Profilers,
    word: &'static AtomicI32,
    context: u64,
    seen: Seen,
}

fn facts() -> CommFacts {
    CommFacts { comm_id: 0xc0de, rank: 1, n_ranks: 2, n_nodes: 1, name: [1, 2, 3, 4], pid: note_pid() }
}

fn fixture(needs: Needs) -> Fixture {
    let profilers: &'static Profilers = Box::leak(Box::new(Profilers::new(clock)));
    let word = Box::leak(Box::new(AtomicI32::new(0)));
    profilers.set_needs(needs);
    let seen = Seen::default();
    let context = profilers.open(&facts(), Box::new(Recorder(seen.clone())), word).ok().unwrap();
    Fixture { profilers, word, context, seen }
}

fn op(channels: u32) -> Op {
    Op {
        func: func::ALL_REDUCE,
        algo: 1,
        proto: 2,
        peer: UNSET,
        count: 1000,
        datatype_bytes: 4,
        channels,
        kernels: channels,
        seq: Some(7),
        comm_hash: 0,
    }
}

impl Fixture {
    fn start(&self, kind: Kind, parent: u64, detail: Detail) -> u64 {
        let handle = self.profilers.start(self.context, &Event { kind, parent, rank: 1, detail });
        assert_ne!(handle, 0, "a null handle would suppress the children");
        handle
    }

    fn coll(&self, channels: u32) -> u64 {
        let coll = self.start(Kind::Coll, 0, Detail::Op(op(channels)));
        self.profilers.stop(coll);
        coll
    }

    fn kernel(&self, parent: u64, channel: u32, timer: u64) -> u64 {
        self.start(Kind::KernelCh, parent, Detail::Kernel { channel, timer })
    }

    fn end(&self, kernel: u64, timer: u64) {
        self.profilers.state(kernel, state::KERNEL_CH_STOP, Some(timer));
        self.profilers.stop(kernel);
    }

    fn counters(&self) -> ProfilerCounters {
        self.profilers.counters()
    }

    /// Asserts which oddities were counted, by name, besides how many events there were.
    #[track_caller]
    fn oddities(&self, want: &[(&str, u64)]) {
        let usual = ["started", "stopped", "states", "samples"];
        let named = self.counters().named();
        let found: Vec<_> = named.into_iter().filter(|(n, v)| *v != 0 && !usual.contains(n)).collect();
        assert_eq!(found, want);
    }
}

#[test]
fn a_collective_lasts_from_its_first_kernel_s_start_to_its_last_one_s_end() {
    let f = fixture(COLL);
    let coll = f.coll(3);
    let kernels = [f.kernel(coll, 0, 5_000), f.kernel(coll, 1, 4_900), f.kernel(coll, 2, 5_100)];
    f.end(kernels[1], 9_000);
    f.end(kernels[0], 9_500);
    assert_eq!(f.seen.samples(), []);
    f.end(kernels[2], 9_100);
    let want = Sample {
        n_bytes: 4000,
        duration: 4_600,
        seq: 7,
        func: 4,
        channels: 3,
        timing: timing::GPU,
        peer: UNSET,
        flags: 0,
    };
    assert_eq!(f.seen.samples(), [want]);
    assert_eq!(f.counters().started, 4);
    assert_eq!((f.counters().stopped, f.counters().states, f.counters().samples), (4, 3, 1));
    f.oddities(&[]);
}

#[test]
fn gathers_are_counted_as_the_tuner_counts_them() {
    let f = fixture(COLL);
    for (function, bytes) in
        [(func::ALL_GATHER, 8000), (func::REDUCE_SCATTER, 8000), (func::ALL_REDUCE, 4000), (8, 4000)]
    {
        let coll = f.start(Kind::Coll, 0, Detail::Op(Op { func: function, ..op(1) }));
        f.end(f.kernel(coll, 0, 1), 2);
        assert_eq!(f.seen.samples()[0].n_bytes, bytes, "{function}");
    }
}

#[test]
fn sends_and_receives_are_measured_where_they_are_asked_for() {
    let f = fixture(BOTH);
    assert_eq!(f.word.load(Ordering::Relaxed), 0x46);
    for seq in 0..2 {
        let p2p = Op { func: 6, peer: 3, seq: None, ..op(2) };
        let send = f.start(Kind::P2p, 0, Detail::Op(p2p));
        f.profilers.stop(send);
        let kernels = [f.kernel(send, 4, 100), f.kernel(send, 5, 100)];
        f.end(kernels[0], 150);
        f.end(kernels[1], 160);
        let [sample] = f.seen.samples().try_into().unwrap();
        assert_eq!((sample.duration, sample.peer, sample.seq, sample.func), (60, 3, seq, 6));
    }
    let f = fixture(COLL);
    let send = f.start(Kind::P2p, 0, Detail::Op(op(1)));
    f.end(f.kernel(send, 0, 1), 2);
    assert_eq!(f.seen.samples(), []);
}

#[test]
fn without_a_policy_nothing_is_asked_for_and_nothing_kept() {
    let f = fixture(Needs::default());
    assert_eq!(f.word.load(Ordering::Relaxed), 0);
    let coll = f.coll(1);
    f.end(f.kernel(coll, 0, 1), 2);
    assert_eq!(f.seen.samples(), []);
    assert_eq!(f.counters(), ProfilerCounters::default());
    f.profilers.set_needs(COLL);
    assert_eq!(f.word.load(Ordering::Relaxed), 0x42, "the mask follows the policies");
    f.end(f.kernel(coll, 0, 1), 2);
    assert_eq!(f.seen.samples(), [], "its collective was not seen");
    f.profilers.close(f.context);
    assert_eq!(f.word.load(Ordering::Relaxed), 0);
}

#[test]
fn every_kind_has_handles_of_its_own_and_raw_events_reach_the_policies() {
    let all = Needs { ops: 2, events: 0xffff };
    let f = fixture(all);
    assert_eq!(f.word.load(Ordering::Relaxed), 0x7fff, "kernel phases are never asked for");
    let mut handles = std::collections::BTreeSet::new();
    for kind in Kind::ALL {
        let detail = match kind {
            Kind::Coll => Detail::Op(op(1)),
            Kind::ProxyOp => Detail::ProxyOp { pid: note_pid(), channel: 2, peer: 5, chunk_bytes: 512 },
            _ => Detail::Nothing,
        };
        for _ in 0..2 {
            handles.insert(f.start(kind, 0x77, detail));
        }
    }
    assert_eq!(handles.len(), 32);
    let events = f.seen.events();
    assert_eq!(events.len(), 32);
    assert!(events.iter().all(|e| e.0 == event_action::START && e.4 == 0x77 && handles.contains(&e.5)));
    for handle in &handles {
        f.profilers.state(*handle, 13, Some(4));
        f.profilers.stop(*handle);
    }
    let told = f.seen.events();
    assert_eq!(told.len(), 64);
    assert_eq!(told.iter().filter(|e| e.0 == event_action::STATE && e.2 == 13).count(), 32);
    for kind in Kind::ALL {
        let stops = told.iter().filter(|e| e.0 == event_action::STOP && e.1 == kind.bit()).count();
        assert_eq!(stops, 2, "{kind}");
    }
}

#[test]
fn memory_is_bounded_whatever_never_ends() {
    let f = fixture(COLL);
    let first = f.coll(2);
    f.end(f.kernel(first, 0, 10), 25);
    for _ in 0..1023 {
        f.coll(2);
    }
    assert_eq!(f.seen.samples(), []);
    f.coll(2);
    let [sample] = f.seen.samples().try_into().unwrap();
    assert_eq!((sample.duration, sample.flags, sample.timing), (15, 1, timing::GPU), "half of it was seen");
    f.oddities(&[("incomplete", 1), ("evicted", 1)]);
    f.end(f.kernel(first, 1, 30), 40);
    assert_eq!(f.seen.samples(), []);
    f.oddities(&[("incomplete", 1), ("evicted", 1), ("stale_handle", 2), ("stale_parent", 1)]);
}

#[test]
fn what_is_open_at_the_end_is_told_as_far_as_it_came() {
    let f = fixture(COLL);
    let coll = f.coll(2);
    f.end(f.kernel(coll, 0, 10), 25);
    f.coll(1);
    assert!(f.profilers.close(f.context));
    assert_eq!(f.seen.samples().len(), 1);
    f.oddities(&[("incomplete", 1), ("without_kernel", 1), ("evicted", 2)]);
    assert!(!f.profilers.close(f.context), "a second finalize finds nothing");
}

#[test]
fn threads_share_a_communicator_and_lose_nothing() {
    const EACH: u64 = 3000;
    let f = fixture(COLL);
    let f = &f;
    // Two threads enqueue; each hands its collectives to a proxy thread of its own, all on one communicator.
    std::thread::scope(|scope| {
        for t in 0..2u64 {
            let (send, receive) = std::sync::mpsc::sync_channel(64);
            scope.spawn(move || {
                for n in 0..EACH {
                    let detail = Detail::Op(Op { seq: Some(t * EACH + n), ..op(4) });
                    let coll = f.start(Kind::Coll, 0, detail);
                    send.send((coll, n)).unwrap();
                    f.profilers.stop(coll);
                }
            });
            scope.spawn(move || {
                for (coll, n) in receive {
                    let kernels: Vec<_> = (0..4).map(|c| f.kernel(coll, c, 1000 + n)).collect();
                    kernels.iter().for_each(|k| f.end(*k, 2000 + 2 * n));
                }
            });
        }
    });
    // A sample that a thread left in the queue at the last moment waits for the end.
    f.profilers.close(f.context);
    let mut samples = f.seen.samples();
    let counters = f.counters();
    // A proxy thread that gets no processor while the other pair goes once round the ring loses what it had in hand.
    assert_eq!(counters.samples + counters.without_kernel, 2 * EACH);
    assert!(counters.without_kernel < EACH / 2, "{counters:?}");
    let seen = samples.len();
    assert_eq!(seen as u64 + counters.dropped, counters.samples);
    samples.sort_by_key(|s| s.seq);
    samples.dedup_by_key(|s| s.seq);
    assert_eq!(samples.len(), seen, "none twice");
    for sample in samples.iter().filter(|s| s.flags == 0) {
        assert_eq!(sample.duration, 1000 + sample.seq % EACH);
    }
}

#[test]
fn two_ranks_with_one_id_are_two_communicators() {
    let f = fixture(COLL);
    let other = Seen::default();
    let rank = CommFacts { rank: 0, ..facts() };
    let second = f.profilers.open(&rank, Box::new(Recorder(other.clone())), f.word).ok().unwrap();
    assert_ne!(second, f.context);
    let coll = f.coll(1);
    let kernel = Event {
        kind: Kind::KernelCh,
        parent: coll,
        rank: 0,
        detail: Detail::Kernel { channel: 0, timer: 5 },
    };
    f.profilers.start(second, &kernel);
    f.oddities(&[("stale_parent", 1)]);
    f.end(f.kernel(coll, 0, 1), 2);
    assert_eq!((f.seen.samples().len(), other.samples().len()), (1, 0));
    f.profilers.close(f.context);
    assert_eq!(f.word.load(Ordering::Relaxed), 0x42, "the other rank still needs them");
    f.profilers.close(second);
    assert_eq!(f.word.load(Ordering::Relaxed), 0);
}

#[test]
fn what_an_ended_communicator_did_is_kept_if_somebody_asks() {
    let f = fixture(COLL);
    let run = |context: u64, f: &Fixture| {
        let coll = f.coll(1);
        f.end(f.kernel(coll, 0, 1), 2);
        f.profilers.close(context);
    };
    run(f.context, &f);
    assert!(f.profilers.take_ended().is_empty(), "nobody asked");
    f.profilers.keep_ended();
    let again = f.profilers.open(&facts(), Box::new(Recorder(f.seen.clone())), f.word).ok().unwrap();
    let f = Fixture { context: again, ..f };
    run(again, &f);
    let ended = f.profilers.take_ended();
    assert_eq!(ended.len(), 1);
    let (of, sums) = &ended[0];
    assert_eq!((of.comm_id, of.rank), (facts().comm_id, facts().rank));
    assert_eq!(sums.iter().map(|s| s.count).sum::<u64>(), 1);
    assert!(f.profilers.take_ended().is_empty(), "told once");
}

// One test for each row of the table of oddities (nccl-abi.md 3.8).

#[test]
fn oddity_one_rank_sees_nothing() {
    let f = fixture(COLL);
    f.profilers.close(f.context);
    assert_eq!(f.counters(), ProfilerCounters::default());
}

#[test]
fn oddity_symmetric_kernels_have_no_kernel_events() {
    let f = fixture(COLL);
    for _ in 0..1025 {
        f.coll(8);
    }
    assert_eq!(f.seen.samples(), []);
    f.oddities(&[("without_kernel", 1), ("evicted", 1)]);
}

#[test]
fn oddity_copy_engines_have_events_of_their_own() {
    let f = fixture(COLL);
    let api = f.start(Kind::CollApi, 0, Detail::Nothing);
    let ce = f.start(Kind::CeColl, api, Detail::Call { func: 4, amount: 8, seq: 1 });
    let sync = f.start(Kind::CeSync, ce, Detail::Nothing);
    [sync, ce, api].into_iter().for_each(|h| f.profilers.stop(h));
    assert_eq!(f.seen.samples(), []);
    f.oddities(&[]);
    let f = fixture(Needs { ops: 0, events: Kind::CeColl.bit() });
    let ce = f.start(Kind::CeColl, 9, Detail::Call { func: 4, amount: 8, seq: 1 });
    f.profilers.stop(ce);
    assert_eq!(f.seen.events().len(), 2);
}

#[test]
fn oddity_batches_of_broadcasts_leave_kernels_without_a_collective() {
    let f = fixture(COLL);
    f.end(f.kernel(0, 3, 100), 200);
    assert_eq!(f.seen.samples(), []);
    f.oddities(&[("orphan", 1)]);
}

#[test]
fn oddity_version_3_has_no_timers() {
    let f = fixture(COLL);
    let coll = f.coll(2);
    let kernels = [f.kernel(coll, 0, 0), f.kernel(coll, 1, 0)];
    kernels.into_iter().for_each(|k| f.profilers.stop(k));
    let [sample] = f.seen.samples().try_into().unwrap();
    assert_eq!(sample.timing, timing::KERNEL_HOST);
    // Read once at the first start and at each end: the threads of other tests look at the clock too.
    assert!(sample.duration >= 1, "{sample:?}");
    f.oddities(&[("zero_timer", 2)]);
}

#[test]
fn oddity_a_graph_is_replayed_with_old_handles() {
    let f = fixture(COLL);
    let coll = f.coll(1);
    for _ in 0..3 {
        f.end(f.kernel(coll, 0, 100), 200);
    }
    assert_eq!(f.seen.samples().len(), 1, "captured once, measured once");
    f.oddities(&[("double_stop", 2), ("late", 4)]);
}

#[test]
fn oddity_coll_net_tells_no_channels() {
    let f = fixture(COLL);
    f.coll(0);
    let [sample] = f.seen.samples().try_into().unwrap();
    assert_eq!((sample.timing, sample.channels, sample.flags), (timing::ENQUEUE, 0, 0));
    f.oddities(&[("untimed", 1)]);
}

#[test]
fn oddity_stamps_are_overwritten_when_many_works_are_outstanding() {
    let f = fixture(COLL);
    // The stop stamp is of an earlier work than the start stamp; or gone.
    let coll = f.coll(1);
    f.end(f.kernel(coll, 0, 5_000), 4_000);
    let [sample] = f.seen.samples().try_into().unwrap();
    assert_eq!(sample.timing, timing::KERNEL_HOST);
    let coll = f.coll(1);
    f.end(f.kernel(coll, 0, 5_000), 0);
    let [sample] = f.seen.samples().try_into().unwrap();
    assert_eq!(sample.timing, timing::KERNEL_HOST);
    f.oddities(&[("zero_timer", 1), ("backwards", 1)]);
}

#[test]
fn oddity_a_proxy_works_for_another_process() {
    let all = Needs { ops: 2, events: 0x1f };
    let f = fixture(all);
    let coll = f.coll(1);
    f.seen.events();
    // The context and the parent are the other process's: they may look like anything, even like ours.
    for (context, parent) in [(f.context, coll), (0, 0), (0xdead_beef_0000, 0x7fff_dead_beef)] {
        let detail = Detail::ProxyOp { pid: note_pid() ^ 1, channel: 0, peer: 1, chunk_bytes: 1 };
        let foreign = f.profilers.start(context, &Event { kind: Kind::ProxyOp, parent, rank: 9, detail });
        assert_ne!(foreign, 0);
        let step = Event { kind: Kind::ProxyStep, parent: foreign, rank: 9, detail: Detail::Step(1) };
        let step = f.profilers.start(context, &step);
        f.profilers.state(step, 9, Some(64));
        f.profilers.stop(step);
        f.profilers.stop(foreign);
    }
    assert_eq!(f.seen.events(), []);
    f.oddities(&[("foreign", 15)]);
}

#[test]
fn oddity_a_kernel_stops_before_it_starts() {
    let f = fixture(COLL);
    let coll = f.coll(2);
    // What a kernel's handle will be is known from another one: the place of the channel differs.
    let first = f.kernel(coll, 0, 100);
    let early = first + (1 << 29);
    f.end(early, 250);
    assert_eq!(f.kernel(coll, 1, 120), early);
    f.end(first, 200);
    let [sample] = f.seen.samples().try_into().unwrap();
    assert_eq!((sample.duration, sample.flags), (150, 0));
    f.oddities(&[("stop_before_start", 2)]);
}

#[test]
fn oddity_events_stop_twice_and_handles_are_stale_or_null() {
    let f = fixture(COLL);
    let coll = f.coll(2);
    f.profilers.stop(coll);
    let kernel = f.kernel(coll, 0, 100);
    f.end(kernel, 200);
    f.profilers.stop(kernel);
    assert_eq!(f.kernel(coll, 0, 110), kernel, "a second kernel on the channel");
    f.oddities(&[("double_stop", 2), ("double_start", 1)]);
    for handle in [0, 0x7fff_1234_5678, 1, u64::MAX, f.context, coll ^ 1, coll ^ 1 << 35] {
        f.profilers.stop(handle);
        f.profilers.state(handle, state::KERNEL_CH_STOP, Some(1));
    }
    let counters = f.counters();
    assert_eq!((counters.null_handle, counters.stale_handle), (2, 10));
    f.end(f.kernel(coll, 1, 100), 300);
    assert_eq!(f.seen.samples()[0].duration, 200);
}

#[test]
fn oddity_a_communicator_has_no_context() {
    let f = fixture(COLL);
    for context in [0, f.context + 1, f.context ^ 1 << 47, u64::MAX] {
        let event = Event { kind: Kind::Coll, parent: 0, rank: 0, detail: Detail::Op(op(1)) };
        let coll = f.profilers.start(context, &event);
        assert_ne!(coll, 0);
        f.end(f.kernel(coll, 0, 1), 2);
        assert!(!f.profilers.close(context));
    }
    assert_eq!(f.seen.samples(), []);
    f.oddities(&[("null_context", 1), ("stale_context", 3)]);
}

#[test]
fn oddity_states_come_without_arguments() {
    let f = fixture(Needs { ops: 2, events: Kind::GroupApi.bit() });
    let group = f.start(Kind::GroupApi, 0, Detail::Nothing);
    f.profilers.state(group, state::GROUP_START_API_STOP, None);
    f.profilers.stop(group);
    let coll = f.coll(1);
    let kernel = f.kernel(coll, 0, 50);
    f.profilers.state(kernel, state::KERNEL_CH_STOP, None);
    f.profilers.stop(kernel);
    assert_eq!(f.seen.samples()[0].timing, timing::KERNEL_HOST);
    assert_eq!(f.seen.events().len(), 3);
    f.oddities(&[("null_args", 1)]);
}

#[test]
fn oddity_handles_of_a_communicator_that_ended_are_stale() {
    let f = fixture(Needs { ops: 2, events: Kind::ProxyStep.bit() });
    let coll = f.coll(1);
    let step = f.start(Kind::ProxyStep, 0, Detail::Step(1));
    f.profilers.close(f.context);
    let again = f.profilers.open(&facts(), Box::new(Recorder(f.seen.clone())), f.word).ok().unwrap();
    assert_ne!(again, f.context);
    f.seen.events();
    f.profilers.stop(step);
    f.profilers.stop(coll);
    assert_eq!(f.seen.events(), []);
    f.oddities(&[("without_kernel", 1), ("evicted", 1), ("double_stop", 1), ("stale_handle", 1)]);
}

#[test]
fn places_are_used_again_and_never_run_out_of_step() {
    let f = fixture(COLL);
    let mut seen = std::collections::BTreeSet::from([f.context]);
    let mut last = f.context;
    for _ in 0..500 {
        assert!(f.profilers.close(last));
        last = f.profilers.open(&facts(), Box::new(Recorder(f.seen.clone())), f.word).ok().unwrap();
        assert!(seen.insert(last), "a handle came back");
    }
    let f = Fixture { context: last, ..f };
    let coll = f.coll(1);
    f.end(f.kernel(coll, 0, 1), 2);
    assert_eq!(f.seen.samples().len(), 1);
}
