//! [`ProfilerCtx`] and [`ProfilerEventCtx`]: typed access to the contexts of the hooks `profiler` and `profiler/event`. Both are read-only.

use crate::abi::{ProfilerContext, ProfilerEventContext, UNSET, event_action, profiler_flag, timing};
use crate::decision::{Algo, Func, Proto};
use crate::raw;

/// A collective, send or receive that has finished. [`profiler!`](crate::profiler!) places a function on the hook.
pub struct ProfilerCtx<'a>(&'a ProfilerContext);

/// One event of NCCL's profiler interface, as it comes. [`profiler_event!`](crate::profiler_event!) places a function on the hook.
pub struct ProfilerEventCtx<'a>(&'a ProfilerEventContext);

/// Where a duration comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// The GPU's global timer at the start and end of each channel.
    Gpu,
    /// The host's clock when NCCL told of the kernels: late by the polling of its proxy thread.
    KernelHost,
    /// The host's clock around the enqueueing: no measure of the transfer.
    Enqueue,
}

/// What an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It starts.
    Start,
    /// It stops.
    Stop,
    /// It passes a state, see [`ProfilerEventCtx::state`].
    State,
}

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident: $ty:ty,)*) => {
        $($(#[$doc])*
        #[inline(always)]
        pub fn $name(&self) -> $ty {
            raw::load(&self.0.$name)
        })*
    };
}

impl<'a> ProfilerCtx<'a> {
    /// Wraps the memory that the host hands to an entry point; [`profiler!`](crate::profiler!) does this.
    #[inline(always)]
    pub fn new(ctx: &'a ProfilerContext) -> ProfilerCtx<'a> {
        ProfilerCtx(ctx)
    }

    inputs! {
        /// NCCL's communicator id.
        comm_id: u64,
        /// Bytes, as the tuner counts them (the full buffer for AllGather and ReduceScatter).
        n_bytes: u64,
        /// Nanoseconds that it took; see [`timing`](ProfilerCtx::timing).
        duration_ns: u64,
        /// NCCL's sequence number on this communicator.
        seq: u64,
        /// Monotonic clock of the host when the end was known, in nanoseconds.
        end_ns: u64,
        /// Channels used.
        channels: u32,
        /// Rank in the communicator.
        rank: u32,
        /// Ranks in the communicator; 0 where NCCL does not tell (before 2.27).
        n_ranks: u32,
        /// Nodes in the communicator; 0 where NCCL does not tell (before 2.27).
        n_nodes: u32,
        /// Bytes of one element; 0 if the type is unknown.
        datatype_bytes: u32,
    }

    /// The collective; `None` for a send, a receive, and what this ABI does not know.
    #[inline(always)]
    pub fn func(&self) -> Option<Func> {
        Func::from_raw(self.func_id())
    }

    /// The collective's number, for use in keys.
    #[inline(always)]
    pub fn func_id(&self) -> u32 {
        raw::load(&self.0.func)
    }

    /// The algorithm, where NCCL tells.
    #[inline(always)]
    pub fn algo(&self) -> Option<Algo> {
        Algo::from_raw(raw::load(&self.0.algo))
    }

    /// The protocol, where NCCL tells.
    #[inline(always)]
    pub fn proto(&self) -> Option<Proto> {
        Proto::from_raw(raw::load(&self.0.proto))
    }

    /// Where the duration comes from.
    #[inline(always)]
    pub fn timing(&self) -> Timing {
        match raw::load(&self.0.timing) {
            timing::GPU => Timing::Gpu,
            timing::KERNEL_HOST => Timing::KernelHost,
            _ => Timing::Enqueue,
        }
    }

    /// The other side of a send or receive.
    #[inline(always)]
    pub fn peer(&self) -> Option<u32> {
        set(raw::load(&self.0.peer))
    }

    /// The first 32 bytes of the communicator's name, padded with NUL; zero if it has none.
    #[inline(always)]
    pub fn comm_name(&self) -> [u64; 4] {
        let [a, b, c, d] = &self.0.comm_name;
        [raw::load(a), raw::load(b), raw::load(c), raw::load(d)]
    }

    /// Did all of its channels tell of their end?
    #[inline(always)]
    pub fn is_complete(&self) -> bool {
        raw::load(&self.0.flags) & profiler_flag::INCOMPLETE == 0
    }
}

impl<'a> ProfilerEventCtx<'a> {
    /// Wraps the memory that the host hands to an entry point; [`profiler_event!`](crate::profiler_event!) does this.
    #[inline(always)]
    pub fn new(ctx: &'a ProfilerEventContext) -> ProfilerEventCtx<'a> {
        ProfilerEventCtx(ctx)
    }

    inputs! {
        /// NCCL's communicator id.
        comm_id: u64,
        /// Monotonic clock of the host in nanoseconds.
        time_ns: u64,
        /// Number of the event, the same at its start, states and stop.
        handle: u64,
        /// Number of its parent at its start; 0 if it has none.
        parent: u64,
        /// Bytes, or the GPU's timer in nanoseconds, as the event has it; else 0.
        value: u64,
        /// NCCL's sequence number, or the step of a proxy operation.
        seq: u64,
        /// The event's type as NCCL's bit.
        event: u32,
        /// Process that the event belongs to.
        pid: u32,
        /// Rank in the communicator.
        rank: u32,
    }

    /// What the event tells.
    #[inline(always)]
    pub fn action(&self) -> Action {
        match raw::load(&self.0.action) {
            event_action::START => Action::Start,
            event_action::STOP => Action::Stop,
            _ => Action::State,
        }
    }

    /// NCCL's number of a state.
    #[inline(always)]
    pub fn state(&self) -> Option<u32> {
        set(raw::load(&self.0.state))
    }

    /// Its channel.
    #[inline(always)]
    pub fn channel(&self) -> Option<u32> {
        set(raw::load(&self.0.channel))
    }

    /// Its peer.
    #[inline(always)]
    pub fn peer(&self) -> Option<u32> {
        set(raw::load(&self.0.peer))
    }

    /// `ncclFunc_t` of what it belongs to.
    #[inline(always)]
    pub fn func_id(&self) -> Option<u32> {
        set(raw::load(&self.0.func))
    }
}

#[inline(always)]
fn set(value: u32) -> Option<u32> {
    if value == UNSET { None } else { Some(value) }
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macros make entry points")]
mod tests {
    use super::*;
    use crate::Verdict;

    crate::profiler! {
        /// Submits for long ones.
        fn slow(ctx) {
            if ctx.duration_ns() > 100 { Verdict::Submit } else { Verdict::Keep }
        }
    }

    crate::profiler_event! {
        fn stops(ctx) {
            if ctx.action() == Action::Stop { Verdict::Submit } else { Verdict::Keep }
        }
    }

    #[test]
    fn each_getter_reads_its_own_field() {
        let raw = ProfilerContext {
            comm_id: 1,
            n_bytes: 2,
            duration_ns: 300,
            seq: 4,
            end_ns: 5,
            func: 4,
            algo: 1,
            proto: 2,
            channels: 9,
            rank: 10,
            n_ranks: 11,
            n_nodes: 12,
            timing: 1,
            datatype_bytes: 14,
            peer: UNSET,
            flags: 1,
            _pad: 0,
            comm_name: [1, 2, 3, 4],
        };
        let c = ProfilerCtx::new(&raw);
        assert_eq!((c.comm_id(), c.n_bytes(), c.duration_ns(), c.seq(), c.end_ns()), (1, 2, 300, 4, 5));
        assert_eq!((c.func(), c.func_id()), (Some(Func::AllReduce), 4));
        assert_eq!((c.algo(), c.proto()), (Some(Algo::Ring), Some(Proto::Simple)));
        assert_eq!((c.channels(), c.rank(), c.n_ranks(), c.n_nodes()), (9, 10, 11, 12));
        assert_eq!((c.timing(), c.datatype_bytes(), c.peer()), (Timing::KernelHost, 14, None));
        assert!(!c.is_complete());
        assert_eq!(c.comm_name(), [1, 2, 3, 4]);
        assert_eq!(slow(&raw), Verdict::Submit as u64);
        let other = ProfilerContext { duration_ns: 1, peer: 3, flags: 0, timing: 0, ..raw };
        let c = ProfilerCtx::new(&other);
        assert_eq!((c.peer(), c.is_complete(), c.timing()), (Some(3), true, Timing::Gpu));
        assert_eq!(slow(&other), Verdict::Keep as u64);
    }

    #[test]
    fn each_getter_of_an_event_reads_its_own_field() {
        let raw = ProfilerEventContext {
            comm_id: 1,
            time_ns: 2,
            handle: 3,
            parent: 4,
            value: 5,
            seq: 6,
            action: 1,
            event: 8,
            state: UNSET,
            channel: 10,
            peer: 11,
            pid: 12,
            rank: 13,
            func: UNSET,
        };
        let c = ProfilerEventCtx::new(&raw);
        assert_eq!(
            (c.comm_id(), c.time_ns(), c.handle(), c.parent(), c.value(), c.seq()),
            (1, 2, 3, 4, 5, 6)
        );
        assert_eq!((c.event(), c.pid(), c.rank(), c.action()), (8, 12, 13, Action::Stop));
        assert_eq!((c.state(), c.channel(), c.peer(), c.func_id()), (None, Some(10), Some(11), None));
        assert_eq!(stops(&raw), Verdict::Submit as u64);
        let state = ProfilerEventContext { action: 2, state: 22, ..raw };
        assert_eq!(ProfilerEventCtx::new(&state).state(), Some(22));
        assert_eq!(stops(&state), Verdict::Keep as u64);
    }
}
