//! `Profilers`: the communicators of a process, found by their handles; the one instance of it, and what is process-wide: the masks, the
//! sampling windows, the sum of the [`counters`].

use super::comm::{Clock, Comm, CommFacts};
use super::counters::{Count, Counters, ProfilerCounters};
use super::event::{Detail, Event};
use super::handle::{Handle, MAX_COMMS, MAX_OPS};
use super::mask::{Needs, SAMPLE_VAR, Sampling, Wanted, Words};
use super::seat::Policies;
use super::summary::{Summary, Sums};
use super::ticker::Ticker;
use crate::host::tell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

/// Environment variable with the places in the ring of each communicator, a power of two from 16 to 4096. An operation whose
/// kernels have not all ended when that many others were enqueued after it is given up.
pub const RING_VAR: &str = "RINGFENCE_PROFILER_RING";
/// Places unless [`RING_VAR`] says otherwise: 128 KiB for each communicator.
const RING: usize = 1024;

/// The profilers of this process.
pub(crate) static PROFILERS: Profilers = Profilers::new(monotonic_ns);

/// Counts of this process so far.
pub fn counters() -> ProfilerCounters {
    PROFILERS.counters()
}

/// See the module.
pub(crate) struct Profilers {
    clock: Clock,
    /// [`Needs`] of the policies in force.
    wanted: AtomicU64,
    comms: [OnceLock<Box<Comm>>; MAX_COMMS],
    /// Counts of events that belong to no communicator.
    stray: Counters,
    state: Mutex<State>,
}

struct State {
    /// Places that are free again.
    free: Vec<usize>,
    /// Places used so far.
    used: usize,
    /// Live communicators, with NCCL's mask for each.
    live: Vec<(usize, &'static AtomicI32)>,
    words: Words,
    /// What the downstream profiler asks for, in a mask of its own.
    downstream: Option<&'static AtomicI32>,
    /// Outside of a sampling window.
    paused: bool,
    sampling: Option<Sampling>,
    ticker: Option<Ticker>,
    /// Somebody asks for what communicators did that have ended.
    keeps_ended: bool,
    ended: Vec<(CommFacts, Vec<Sums>)>,
}

/// Most ended communicators that wait to be told of.
const MAX_ENDED: usize = 1024;

impl Profilers {
    pub(crate) const fn new(clock: Clock) -> Profilers {
        Profilers {
            clock,
            wanted: AtomicU64::new(0),
            comms: [const { OnceLock::new() }; MAX_COMMS],
            stray: Counters::new(),
            state: Mutex::new(State {
                free: Vec::new(),
                used: 0,
                live: Vec::new(),
                words: Words::new(),
                downstream: None,
                paused: false,
                sampling: None,
                ticker: None,
                keeps_ended: false,
                ended: Vec::new(),
            }),
        }
    }

    /// A communicator begins: its policies are seated, and NCCL's mask `word` gets the bits that they need. The handle for NCCL; the
    /// policies come back if there is no place.
    ///
    /// `word` is NCCL's for as long as the communicator lives.
    pub(crate) fn open(
        &'static self,
        facts: &CommFacts,
        policies: Box<dyn Policies>,
        word: &'static AtomicI32,
    ) -> Result<u64, Box<dyn Policies>> {
        let Some(mut state) = self.lock() else { return Err(policies) };
        let Some(index) = state.take_place() else { return Err(policies) };
        let comm =
            self.comms[index].get_or_init(|| Box::new(Comm::new(index, ring_places(), salt(), self.clock)));
        let handle = comm.open(facts, policies);
        if state.live.is_empty() {
            state.begin(self);
        }
        state.live.push((index, word));
        state.publish(self);
        Ok(handle)
    }

    /// A communicator ends. False if the handle names none.
    pub(crate) fn close(&self, handle: u64) -> bool {
        let Some(comm) = self.comm(handle) else { return false };
        let Some(mut state) = self.lock() else { return false };
        let Some(at) = state.live.iter().position(|(index, _)| *index == comm.index()) else { return false };
        state.live.swap_remove(at);
        state.publish(self);
        let ticker = if state.live.is_empty() { state.ticker.take() } else { None };
        drop(state);
        // Without the lock: policies run, and the ticker may want it.
        comm.close(|| self.keep_sums(comm));
        if let Some(ticker) = ticker {
            ticker.stop();
        }
        if let Some(mut state) = self.lock() {
            state.free.push(comm.index());
        }
        true
    }

    /// The sums of a communicator that is about to end: the last of them may be the process's last, so this is before its policies leave.
    fn keep_sums(&self, comm: &Comm) {
        let Some(mut state) = self.lock() else { return };
        if state.keeps_ended && state.ended.len() < MAX_ENDED {
            state.ended.push(comm.sums());
        }
    }

    /// From now on, the sums of up to 1024 communicators that have ended are kept until [`take_ended`](Profilers::take_ended).
    pub(crate) fn keep_ended(&self) {
        if let Some(mut state) = self.lock() {
            state.keeps_ended = true;
        }
    }

    /// What those communicators did that have ended since the last time.
    pub(crate) fn take_ended(&self) -> Vec<(CommFacts, Vec<Sums>)> {
        self.lock().map(|mut state| std::mem::take(&mut state.ended)).unwrap_or_default()
    }

    /// The policies in force changed: what they need from now on.
    pub(crate) fn set_needs(&self, needs: Needs) {
        self.wanted.store(needs.to_word(), Relaxed);
        if let Some(mut state) = self.lock() {
            state.publish(self);
        }
    }

    /// A downstream profiler is chained: the mask that it writes.
    pub(crate) fn set_downstream(&self, mask: &'static AtomicI32) {
        if let Some(mut state) = self.lock() {
            state.downstream = Some(mask);
            state.publish(self);
        }
    }

    /// The ticker's: opens or closes a sampling window, and looks what the downstream profiler asks for now.
    pub(super) fn tick(&self, paused: bool) {
        if let Some(mut state) = self.lock() {
            state.paused = paused;
            state.publish(self);
        }
    }

    /// The communicator of a handle.
    #[inline]
    pub(crate) fn comm(&self, handle: u64) -> Option<&Comm> {
        let Some(Handle::Comm { comm, .. }) = Handle::of_bits(handle) else { return None };
        self.place(comm).filter(|c| c.is(handle))
    }

    #[inline]
    fn place(&self, index: usize) -> Option<&Comm> {
        self.comms.get(index)?.get().map(|c| &**c)
    }

    /// What the policies in force need.
    #[inline]
    pub(crate) fn wanted(&self) -> Wanted {
        Needs::of_word(self.wanted.load(Relaxed))
    }

    /// `startEvent` on the communicator `context`; the new event's handle, never 0.
    #[inline]
    pub(crate) fn start(&self, context: u64, event: &Event) -> u64 {
        let wanted = self.wanted();
        if !wanted.has(event.kind) {
            return Handle::Ignored.bits();
        }
        if let Some(stray) = self.foreign(event) {
            return stray;
        }
        match self.comm(context) {
            Some(comm) => comm.start(event, wanted),
            None => {
                let what = if context == 0 { Count::NullContext } else { Count::StaleContext };
                self.stray.count(what);
                Handle::Ignored.bits()
            }
        }
    }

    /// With PXN a proxy works for another process of the node. That process's pointers come with it: neither the context nor the
    /// parent means anything here, whatever table they seem to be in.
    #[inline]
    pub(crate) fn foreign(&self, event: &Event) -> Option<u64> {
        let foreign = match event.detail {
            Detail::ProxyOp { pid, .. } => pid != own_pid(),
            _ => event.parent == Handle::Foreign.bits(),
        };
        if !foreign {
            return None;
        }
        self.stray.count(Count::Foreign);
        Some(Handle::Foreign.bits())
    }

    /// `stopEvent`.
    #[inline]
    pub(crate) fn stop(&self, handle: u64) {
        let wanted = self.wanted();
        if let Some((comm, handle)) = self.find(handle) {
            comm.stop(handle, wanted);
        }
    }

    /// `recordEventState`, with `None` for null arguments.
    #[inline]
    pub(crate) fn state(&self, handle: u64, number: i32, value: Option<u64>) {
        let wanted = self.wanted();
        if let Some((comm, handle)) = self.find(handle) {
            comm.state(handle, number, value, wanted);
        }
    }

    /// The place that an event's handle names.
    #[inline]
    fn find(&self, bits: u64) -> Option<(&Comm, Handle)> {
        let handle = Handle::of_bits(bits);
        let index = match handle {
            Some(Handle::Op { comm, .. } | Handle::Kernel { comm, .. } | Handle::Plain { comm, .. }) => comm,
            Some(Handle::Ignored) => return None,
            Some(Handle::Foreign) => {
                self.stray.count(Count::Foreign);
                return None;
            }
            _ => {
                self.stray.count(if bits == 0 { Count::NullHandle } else { Count::StaleHandle });
                return None;
            }
        };
        let comm = self.place(index);
        if comm.is_none() {
            self.stray.count(Count::StaleHandle);
        }
        comm.zip(handle)
    }

    /// Counts something that belongs to no communicator.
    pub(crate) fn count(&self, what: Count) {
        self.stray.count(what);
    }

    /// The sum over all places.
    pub(crate) fn counters(&self) -> ProfilerCounters {
        let mut sum = ProfilerCounters::default();
        self.stray.add_to(&mut sum);
        for place in self.comms.iter().filter_map(OnceLock::get) {
            place.counters.add_to(&mut sum);
        }
        sum
    }

    /// What the live communicators did, each with what is known of it.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = (CommFacts, &Summary)> {
        self.comms.iter().filter_map(OnceLock::get).filter_map(|comm| comm.summed())
    }

    /// Waits for the lock, but not for ever: after a fork its holder may not exist in this process.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        let begun = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() > Duration::from_secs(5) => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

impl State {
    fn take_place(&mut self) -> Option<usize> {
        self.free.pop().or_else(|| {
            let place = self.used;
            (place < MAX_COMMS).then(|| {
                self.used += 1;
                place
            })
        })
    }

    /// The first communicator: reads the environment, on NCCL's thread.
    fn begin(&mut self, profilers: &'static Profilers) {
        self.sampling = std::env::var(SAMPLE_VAR).ok().and_then(|text| match Sampling::parse(&text) {
            Ok(sampling) => Some(sampling),
            Err(why) => {
                tell!(Warn, "{why}; events are asked for all the time");
                None
            }
        });
        self.paused = false;
        self.start_ticker(profilers);
    }

    fn start_ticker(&mut self, profilers: &'static Profilers) {
        if self.ticker.is_none() && (self.sampling.is_some() || self.downstream.is_some()) {
            self.ticker = Ticker::start(profilers, self.sampling);
        }
    }

    /// Writes what is wanted now into NCCL's masks.
    fn publish(&mut self, profilers: &Profilers) {
        let ours = if self.paused { 0 } else { profilers.wanted().mask() };
        let theirs = self.downstream.map_or(0, |mask| mask.load(Relaxed) as u32);
        let words: Vec<_> = self.live.iter().map(|(_, word)| *word).collect();
        self.words.publish(&words, ours | theirs);
    }
}

/// Read once at the start of a communicator.
fn ring_places() -> usize {
    let Ok(text) = std::env::var(RING_VAR) else { return RING };
    match text.trim().parse::<usize>() {
        Ok(n) if n.is_power_of_two() && (16..=MAX_OPS).contains(&n) => n,
        _ => {
            tell!(Warn, "{RING_VAR}={text}: must be a power of two from 16 to {MAX_OPS}; {RING} it is");
            RING
        }
    }
}

/// So that a handle of one process is not one of another by chance.
fn salt() -> u64 {
    static SALT: OnceLock<u64> = OnceLock::new();
    *SALT.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

static PID: AtomicU64 = AtomicU64::new(0);

/// This process, asked for anew at each communicator's start: a system call on the event path would cost more than the event.
#[inline]
fn own_pid() -> u32 {
    PID.load(Relaxed) as u32
}

/// Notes which process this is.
pub(crate) fn note_pid() -> u32 {
    let pid = std::process::id();
    PID.store(pid.into(), Relaxed);
    pid
}

fn monotonic_ns() -> u64 {
    crate::memory::monotonic_ns()
}
