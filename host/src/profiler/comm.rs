//! [`Comm`]: the place of one communicator, and the way of its events: [`Comm::start`], [`Comm::stop`], [`Comm::state`].
//!
//! Any number of threads may be here at once: the application's, NCCL's proxy thread, its profiler thread. Nothing here waits,
//! allocates, logs or makes a system call but for the clock; see [`super::ops`] and [`super::seat`] for how threads meet.

use super::counters::{Count, Counters};
use super::event::{Detail, Event, Kind, Op, state};
use super::handle::{Handle, MAX_CHANNELS, SERIAL};
use super::mask::Wanted;
use super::ops::{OpFacts, Ops, Span, Step};
use super::seat::{Policies, Seat};
use super::summary::{Summary, Sums};
use super::work::Work;
use ringfence_guest::abi::{
    ProfilerContext, ProfilerEventContext, UNSET, event_action, func, profiler_flag, timing,
};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What `init` tells of a communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommFacts {
    /// NCCL's id; 0 for versions 1 to 3, which tell it with each collective.
    pub comm_id: u64,
    /// Rank.
    pub rank: u32,
    /// Ranks; 0 for versions 1 to 3.
    pub n_ranks: u32,
    /// Nodes; 0 for versions 1 to 3.
    pub n_nodes: u32,
    /// The first 32 bytes of its name.
    pub name: [u64; 4],
    /// This process.
    pub pid: u32,
}

/// Such a time says nothing about the operation, and is in no sum.
const ENQUEUED: u32 = timing::ENQUEUE;

/// A clock in nanoseconds: the system's monotonic one, or a test's.
pub(crate) type Clock = fn() -> u64;

/// See the module. A place is never freed, only used again for another communicator.
pub(crate) struct Comm {
    index: usize,
    clock: Clock,
    /// The handle of the communicator that lives here; 0 for none.
    live: AtomicU64,
    generation: AtomicU64,
    ops: OnceLock<Ops>,
    places: usize,
    /// Of the latest plain event.
    serial: AtomicU64,
    /// Serial numbers below are of communicators that lived here before.
    first_serial: AtomicU64,
    p2p_seq: AtomicU64,
    facts: Facts,
    seat: Seat,
    summary: Summary,
    pub(crate) counters: Counters,
}

/// [`CommFacts`] as other threads may read them.
#[derive(Debug, Default)]
struct Facts {
    comm_id: AtomicU64,
    rank: AtomicU32,
    n_ranks: AtomicU32,
    n_nodes: AtomicU32,
    pid: AtomicU32,
    name: [AtomicU64; 4],
}

impl Facts {
    fn set(&self, facts: &CommFacts) {
        self.comm_id.store(facts.comm_id, Relaxed);
        self.rank.store(facts.rank, Relaxed);
        self.n_ranks.store(facts.n_ranks, Relaxed);
        self.n_nodes.store(facts.n_nodes, Relaxed);
        self.pid.store(facts.pid, Relaxed);
        for (to, from) in self.name.iter().zip(facts.name) {
            to.store(from, Relaxed);
        }
    }

    fn get(&self) -> CommFacts {
        CommFacts {
            comm_id: self.comm_id.load(Relaxed),
            rank: self.rank.load(Relaxed),
            n_ranks: self.n_ranks.load(Relaxed),
            n_nodes: self.n_nodes.load(Relaxed),
            name: std::array::from_fn(|i| self.name[i].load(Relaxed)),
            pid: self.pid.load(Relaxed),
        }
    }

    /// Versions 1 to 3 tell the communicator's hash and the rank with each collective, not at its start.
    fn learn(&self, hash: u64, rank: u32) {
        if hash != 0 && self.comm_id.load(Relaxed) == 0 {
            self.comm_id.store(hash, Relaxed);
            self.rank.store(rank, Relaxed);
        }
    }
}

impl Comm {
    /// An empty place. `salt` keeps handles of different processes apart.
    pub(crate) fn new(index: usize, places: usize, salt: u64, clock: Clock) -> Comm {
        Comm {
            index,
            clock,
            live: AtomicU64::new(0),
            generation: AtomicU64::new(salt & SERIAL),
            ops: OnceLock::new(),
            places,
            serial: AtomicU64::new(0),
            first_serial: AtomicU64::new(0),
            p2p_seq: AtomicU64::new(0),
            facts: Facts::default(),
            seat: Seat::new(),
            summary: Summary::new(),
            counters: Counters::new(),
        }
    }

    /// A communicator moves in; its handle.
    pub(crate) fn open(&self, facts: &CommFacts, policies: Box<dyn Policies>) -> u64 {
        self.facts.set(facts);
        self.ops.get_or_init(|| Ops::new(self.places));
        self.first_serial.store(self.serial.load(Relaxed) + 1, Relaxed);
        self.p2p_seq.store(0, Relaxed);
        self.summary.clear();
        if !self.seat.seat(policies) {
            self.counters.count(Count::Dropped);
        }
        let generation = self.generation.load(Relaxed).wrapping_add(1) & SERIAL;
        self.generation.store(generation, Relaxed);
        let handle = Handle::Comm { comm: self.index, generation }.bits();
        self.live.store(handle, Ordering::Release);
        handle
    }

    /// The communicator moves out: from now on its handle, and those of its events, are stale. What had begun and not ended is told to
    /// the policies as far as it came; then comes `told`, and then the policies leave.
    pub(crate) fn close(&self, told: impl FnOnce()) {
        self.live.store(0, Ordering::Release);
        if let Some(ops) = self.ops.get() {
            ops.sweep(|span| self.evicted(&span));
        }
        self.first_serial.store(u64::MAX, Relaxed);
        told();
        self.seat.vacate();
    }

    /// The communicator that lives here, if one does, and what it did.
    pub(crate) fn summed(&self) -> Option<(CommFacts, &Summary)> {
        let alive = self.live.load(Ordering::Acquire) != 0;
        alive.then(|| (self.facts.get(), &self.summary))
    }

    /// What the communicator did that lives here, or did last.
    pub(crate) fn sums(&self) -> (CommFacts, Vec<Sums>) {
        (self.facts.get(), self.summary.read().0)
    }

    /// Its number among the places.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Does the communicator of that handle live here?
    #[inline]
    pub(crate) fn is(&self, handle: u64) -> bool {
        self.live.load(Ordering::Acquire) == handle
    }

    /// `startEvent`; the new event's handle.
    #[inline]
    pub(crate) fn start(&self, event: &Event, wanted: Wanted) -> u64 {
        self.counters.count(Count::Started);
        let told = wanted.events & event.kind.bit() != 0;
        let handle = match (event.kind, &event.detail) {
            (Kind::Coll | Kind::P2p, Detail::Op(op)) if wanted.ops & event.kind.bit() != 0 => {
                self.start_op(event, op)
            }
            (Kind::KernelCh, Detail::Kernel { channel, timer }) if wanted.ops != 0 => {
                self.start_kernel(event.parent, *channel, *timer)
            }
            _ => None,
        };
        let handle = handle.unwrap_or_else(|| self.plain(event, told));
        if told {
            self.tell_start(event, handle);
        }
        handle.bits()
    }

    fn start_op(&self, event: &Event, op: &Op) -> Option<Handle> {
        self.facts.learn(op.comm_hash, event.rank);
        let facts = OpFacts {
            n_bytes: self.bytes(op),
            seq: op.seq.unwrap_or_else(|| self.p2p_seq.fetch_add(1, Relaxed)),
            func: op.func,
            algo: op.algo,
            proto: op.proto,
            peer: op.peer,
            datatype_bytes: op.datatype_bytes,
            channels: op.channels,
            kernels: op.kernels.min(MAX_CHANNELS),
        };
        let Some(taken) = self.ops.get()?.take(&facts, (self.clock)()) else {
            self.counters.count(Count::NoRoom);
            return None;
        };
        if let Some(span) = taken.evicted {
            self.evicted(&span);
        }
        let (op, generation) = (taken.op, taken.generation);
        Some(Handle::Op { kind: event.kind, comm: self.index, op, generation })
    }

    /// Bytes as the tuner counts them: the full buffer for AllGather and ReduceScatter, of which NCCL counts one rank's part here.
    fn bytes(&self, op: &Op) -> u64 {
        let parts = match op.func {
            func::ALL_GATHER | func::REDUCE_SCATTER => self.facts.n_ranks.load(Relaxed).max(1),
            _ => 1,
        };
        op.count.saturating_mul(u64::from(op.datatype_bytes)).saturating_mul(parts.into())
    }

    fn start_kernel(&self, parent: u64, channel: u32, timer: u64) -> Option<Handle> {
        let (op, generation) = match Handle::of_bits(parent) {
            Some(Handle::Op { comm, op, generation, .. }) if comm == self.index => (op, generation),
            Some(Handle::Ignored | Handle::Plain { .. }) => return None,
            _ if parent == 0 => {
                self.counters.count(Count::Orphan);
                return None;
            }
            _ => {
                self.counters.count(Count::StaleParent);
                return None;
            }
        };
        if channel >= MAX_CHANNELS {
            self.counters.count(Count::Unknown);
            return None;
        }
        if timer == 0 {
            self.counters.count(Count::ZeroTimer);
        }
        let step = self.ops.get()?.kernel_start(op, generation, channel, timer, self.clock);
        match step {
            Step::Stale => self.counters.count(Count::StaleParent),
            Step::Late => self.counters.count(Count::Late),
            Step::Again => self.counters.count(Count::DoubleStart),
            Step::Early => self.counters.count(Count::StopBeforeStart),
            Step::Noted | Step::Ended { .. } => {}
        }
        Some(Handle::Kernel { comm: self.index, op, channel, generation })
    }

    /// An event that needs no place of its own: its handle says what it is.
    fn plain(&self, event: &Event, told: bool) -> Handle {
        if !told {
            return Handle::Ignored;
        }
        let serial = self.serial.fetch_add(1, Relaxed) + 1;
        Handle::Plain { kind: event.kind, comm: self.index, serial: serial & SERIAL }
    }

    /// `stopEvent` of a handle that names this place.
    #[inline]
    pub(crate) fn stop(&self, handle: Handle, wanted: Wanted) {
        self.counters.count(Count::Stopped);
        let kind = match handle {
            Handle::Op { kind, op, generation, .. } => {
                let step = self.ops.get().map_or(Step::Stale, |o| o.stop(op, generation, self.clock));
                self.stopped(step);
                kind
            }
            Handle::Kernel { op, channel, generation, .. } => {
                let stop = |o: &Ops| o.kernel_stop(op, generation, channel, self.clock);
                self.stopped(self.ops.get().map_or(Step::Stale, stop));
                Kind::KernelCh
            }
            Handle::Plain { kind, serial, .. } if self.is_current(serial) => kind,
            _ => return self.counters.count(Count::StaleHandle),
        };
        if wanted.events & kind.bit() != 0 {
            self.tell(handle, kind, event_action::STOP, UNSET, 0);
        }
    }

    fn stopped(&self, step: Step) {
        match step {
            Step::Noted => {}
            Step::Stale => self.counters.count(Count::StaleHandle),
            Step::Late => self.counters.count(Count::Late),
            Step::Again => self.counters.count(Count::DoubleStop),
            Step::Early => self.counters.count(Count::StopBeforeStart),
            Step::Ended { span, early } => {
                if early {
                    self.counters.count(Count::StopBeforeStart);
                }
                self.ended(&span);
            }
        }
    }

    /// `recordEventState` of a handle that names this place; `None` for null arguments.
    #[inline]
    pub(crate) fn state(&self, handle: Handle, number: i32, value: Option<u64>, wanted: Wanted) {
        self.counters.count(Count::States);
        let kind = match handle {
            Handle::Op { kind, .. } => kind,
            Handle::Kernel { op, generation, .. } => {
                if number == state::KERNEL_CH_STOP {
                    self.kernel_timer(op, generation, value);
                }
                Kind::KernelCh
            }
            Handle::Plain { kind, serial, .. } if self.is_current(serial) => kind,
            _ => return self.counters.count(Count::StaleHandle),
        };
        if wanted.events & kind.bit() != 0 {
            self.tell(handle, kind, event_action::STATE, number as u32, value.unwrap_or(0));
        }
    }

    fn kernel_timer(&self, op: usize, generation: u64, value: Option<u64>) {
        match value {
            None => self.counters.count(Count::NullArgs),
            Some(0) => self.counters.count(Count::ZeroTimer),
            Some(timer) => match self.ops.get().map(|o| o.kernel_timer(op, generation, timer)) {
                Some(Step::Noted) => {}
                Some(Step::Late) => self.counters.count(Count::Late),
                _ => self.counters.count(Count::StaleHandle),
            },
        }
    }

    fn is_current(&self, serial: u64) -> bool {
        serial >= self.first_serial.load(Relaxed) && serial <= self.serial.load(Relaxed)
    }

    /// An operation was pushed out before it ended. Where some of its channels did end, that is a sample all the same.
    #[cold]
    fn evicted(&self, span: &Span) {
        self.counters.count(Count::Evicted);
        if span.ended == 0 {
            self.counters.count(Count::WithoutKernel);
            return;
        }
        self.ended(span);
    }

    /// An operation ended: the policies get its sample.
    #[inline]
    fn ended(&self, span: &Span) {
        self.counters.count(Count::Samples);
        let (duration_ns, timing) = self.duration(span);
        let missing = span.ended < span.facts.kernels;
        if missing {
            self.counters.count(Count::Incomplete);
        }
        let (f, facts) = (&span.facts, &self.facts);
        let context = ProfilerContext {
            comm_id: facts.comm_id.load(Relaxed),
            n_bytes: f.n_bytes,
            duration_ns,
            seq: f.seq,
            end_ns: if span.host.1 != 0 { span.host.1 } else { (self.clock)() },
            func: f.func,
            algo: f.algo,
            proto: f.proto,
            channels: f.channels,
            rank: facts.rank.load(Relaxed),
            n_ranks: facts.n_ranks.load(Relaxed),
            n_nodes: facts.n_nodes.load(Relaxed),
            timing,
            datatype_bytes: f.datatype_bytes,
            peer: f.peer,
            flags: if missing { profiler_flag::INCOMPLETE } else { 0 },
            _pad: 0,
            comm_name: std::array::from_fn(|i| facts.name[i].load(Relaxed)),
        };
        if timing != ENQUEUED {
            self.summary.add(&context);
        }
        self.seat.run(&Work::sample(&context), &self.counters);
    }

    /// The GPU's timers if they make sense, else the host's clock at the kernels, else around the enqueueing.
    fn duration(&self, span: &Span) -> (u64, u32) {
        let ((gpu_start, gpu_stop), (host_start, host_stop)) = (span.gpu, span.host);
        if gpu_start <= gpu_stop {
            return (gpu_stop - gpu_start, timing::GPU);
        }
        if gpu_stop != 0 && gpu_start != u64::MAX {
            self.counters.count(Count::Backwards);
        }
        if host_start <= host_stop {
            return (host_stop - host_start, timing::KERNEL_HOST);
        }
        self.counters.count(Count::Untimed);
        (host_stop.saturating_sub(span.enqueued), timing::ENQUEUE)
    }

    /// Tells the policies of a start. The handle is the new one.
    fn tell_start(&self, event: &Event, handle: Handle) {
        let mut context = self.context(handle, event.kind, event_action::START);
        context.parent = event.parent;
        if self.facts.n_ranks.load(Relaxed) == 0 {
            // Versions 1 to 3 tell it here alone. Later ones told it at the start, and leave it out of many events.
            context.rank = event.rank;
        }
        match event.detail {
            Detail::Nothing => {}
            Detail::Op(op) => {
                context.value = self.bytes(&op);
                context.seq = op.seq.unwrap_or(0);
                context.func = op.func;
                context.peer = op.peer;
            }
            Detail::ProxyOp { pid, channel, peer, chunk_bytes } => {
                context.value = chunk_bytes;
                (context.pid, context.channel, context.peer) = (pid, channel, peer);
            }
            Detail::Step(step) => context.seq = step,
            Detail::Kernel { channel, timer } => (context.channel, context.value) = (channel, timer),
            Detail::Call { func, amount, seq } => {
                (context.func, context.value, context.seq) = (func, amount, seq);
            }
        }
        self.seat.run(&Work::event(&context), &self.counters);
    }

    /// Tells the policies of a stop or a state. What the event was is known as far as its handle tells.
    fn tell(&self, handle: Handle, kind: Kind, action: u32, state: u32, value: u64) {
        let mut context = self.context(handle, kind, action);
        (context.state, context.value) = (state, value);
        let (op, generation) = match handle {
            Handle::Op { op, generation, .. } => (op, generation),
            Handle::Kernel { op, generation, channel, .. } => {
                context.channel = channel;
                (op, generation)
            }
            _ => (usize::MAX, 0),
        };
        if let Some(facts) = self.ops.get().and_then(|o| o.facts(op, generation)) {
            (context.func, context.seq, context.peer) = (facts.func, facts.seq, facts.peer);
        }
        self.seat.run(&Work::event(&context), &self.counters);
    }

    fn context(&self, handle: Handle, kind: Kind, action: u32) -> ProfilerEventContext {
        ProfilerEventContext {
            comm_id: self.facts.comm_id.load(Relaxed),
            time_ns: (self.clock)(),
            handle: handle.bits(),
            parent: 0,
            value: 0,
            seq: 0,
            action,
            event: kind.bit(),
            state: UNSET,
            channel: UNSET,
            peer: UNSET,
            pid: self.facts.pid.load(Relaxed),
            rank: self.facts.rank.load(Relaxed),
            func: UNSET,
        }
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Comm({}, live {})", self.index, self.live.load(Relaxed) != 0)
    }
}
