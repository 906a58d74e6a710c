//! [`Communicator`]: the tuner's [`Endpoint`] of one communicator, and the way of a [`Request`] through its chain.
//!
//! This is the decision path: it allocates nothing, logs nothing, makes no system call and waits for nobody.
//! A policy that faults is skipped, and the decision so far stands; what happens at the next call does
//! not depend on the fault, so all ranks go on alike.

use crate::chunk::{self, ChunkRequest};
use crate::config::MAX_CHANNELS;
use crate::constants;
use crate::decision::{Algo, Applied, CommInfo, CostTable, Costs, Decision, Proto, TunerInput};
use crate::endpoint::{Endpoint, Role};
use crate::ffi::chain_tuner::ChainTuner;
use crate::ffi::logger::NcclLogger;
use crate::ffi::types::TunerConstants;
use crate::hooks::Hook;
use crate::instance::Interrupted;
use ringfence_guest::abi::func;
use std::num::NonZeroU32;

/// What NCCL asks: one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `ncclFunc_t`.
    pub func: u32,
    /// Bytes of the collective.
    pub n_bytes: u64,
    /// `numPipeOps`.
    pub num_pipe_ops: u32,
    /// Buffers are registered (rank-local).
    pub reg_buff: bool,
}

impl Request {
    /// From NCCL's arguments; `None` if one of them is negative, which NCCL never passes.
    #[inline]
    pub fn new(func: i32, n_bytes: usize, num_pipe_ops: i32, reg_buff: bool) -> Option<Request> {
        Some(Request {
            func: u32::try_from(func).ok()?,
            n_bytes: n_bytes as u64,
            num_pipe_ops: u32::try_from(num_pipe_ops).ok()?,
            reg_buff,
        })
    }
}

/// A communicator, as NCCL's tuner knows it. Used by one thread at a time.
#[derive(Debug)]
pub struct Communicator {
    end: Endpoint,
    call_seq: u64,
    /// The tuner plugin that is asked before the policies.
    chained: Option<Box<ChainTuner>>,
}

impl Communicator {
    /// A communicator on the newest plan of this process. Never fails.
    pub(crate) fn join(info: CommInfo, logger: Option<NcclLogger>) -> Communicator {
        Communicator { end: Endpoint::join(Role::Tuner, info, logger), call_seq: 0, chained: None }
    }

    /// Asks this plugin before the policies from now on.
    pub(crate) fn chain(&mut self, tuner: Option<Box<ChainTuner>>) {
        self.chained = tuner;
    }

    /// What does not change, and the bound on channels of the plan in use.
    pub fn info(&self) -> &CommInfo {
        self.end.info()
    }

    /// Lets the policies on `tuner/init` edit the constants of NCCL's cost model; they are asked this once. How many changed.
    pub(crate) fn edit_constants(&mut self, constants: &mut TunerConstants) -> usize {
        if !self.end.wants(Hook::TunerInit) {
            return 0;
        }
        let changed = constants::edit(&mut self.end, constants);
        self.end.release(Hook::TunerInit);
        changed
    }

    /// The chunk size that the chained plugin and the policies on `tuner/chunk` want, in bytes; `None` leaves NCCL's. Two field reads
    /// if there are none.
    #[inline]
    pub(crate) fn chunk_size(&mut self, request: &ChunkRequest) -> Option<u64> {
        // Not refreshed: a plan is taken where decisions are, so that a collective sees one plan.
        let asked = self.chained.is_some() || self.end.wants(Hook::TunerChunk);
        asked.then(|| self.ask_chunk_size(*request))?
    }

    fn ask_chunk_size(&mut self, mut request: ChunkRequest) -> Option<u64> {
        let allowed = self.end.plan().max_chunk_size();
        if let Some(chained) = &self.chained {
            request.so_far = chained.chunk_size(&request);
        }
        // What the chained plugin asks for beyond NCCL's own, NCCL would have got without us as well.
        chunk::ask(&mut self.end, &request, allowed.max(Some(request.so_far)))
    }

    /// Unregisters the communicator; to be called once NCCL is done with it. Off the decision path.
    pub(crate) fn leave(self) {
        if let Some(chained) = self.chained {
            chained.finish();
        }
        self.end.leave();
    }

    /// Asks the chain, and applies what it decides to NCCL's table. The caller passes on the channels.
    #[inline(always)]
    pub fn decide(&mut self, request: &Request, table: &mut CostTable<'_>) -> Applied {
        self.end.refresh();
        let call_seq = self.call_seq;
        self.call_seq += 1;
        if self.chained.is_some() {
            return self.decide_after_chained(request, call_seq, table);
        }
        let decision = self.ask(Decision::DEFER, request, call_seq, table.costs());
        if decision == Decision::DEFER {
            return Applied::default();
        }
        self.apply(decision, request, table)
    }

    #[inline]
    fn apply(&self, decision: Decision, request: &Request, table: &mut CostTable<'_>) -> Applied {
        let bounded = bound(decision, request.func, &table.costs(), self.end.plan().channel_promise());
        table.apply(bounded, self.end.info().max_channels)
    }

    /// The chained plugin's choice is the decision so far. If the policies leave its route alone, NCCL gets the plugin's whole
    /// table, as it would without us: it may mean more than one favourite.
    fn decide_after_chained(
        &mut self,
        request: &Request,
        call_seq: u64,
        table: &mut CostTable<'_>,
    ) -> Applied {
        let opinion = self.chained.as_mut().map(|c| c.ask(request, &table.costs())).unwrap_or_default();
        let decision = self.ask(opinion.decision, request, call_seq, table.costs());
        if !opinion.changed || decision.route != opinion.decision.route {
            return self.apply(decision, request, table);
        }
        if let Some(chained) = &self.chained {
            chained.adopt(table);
        }
        let bounded = bound(decision, request.func, &table.costs(), self.end.plan().channel_promise());
        let rest = Decision { route: None, ..bounded };
        Applied { route: decision.route, ..table.apply(rest, self.end.info().max_channels) }
    }

    // Inlined always: passed through memory, NCCL's table would be read before the store buffer has let go of it (5 ns).
    #[inline(always)]
    fn ask(&mut self, so_far: Decision, request: &Request, call_seq: u64, costs: Costs<'_>) -> Decision {
        let (comm, fused, mut seats) = self.end.tuner_seats();
        let input = TunerInput {
            comm,
            func: request.func,
            n_bytes: request.n_bytes,
            num_pipe_ops: request.num_pipe_ops,
            reg_buff: request.reg_buff,
            call_seq,
            costs,
        };
        let (mut decision, mut first, mut faults) = (so_far, None, 0);
        if let Some(fused) = fused {
            match fused.decide(&input, so_far) {
                Ok(decision) => return decision,
                Err(interrupted) => {
                    let Interrupted { at, fault, so_far } = *interrupted;
                    decision = so_far;
                    faults = 1;
                    first = seats.get(at).map(|seat| (seat.policy, fault));
                    seats = seats.get_mut(at + 1..).unwrap_or_default();
                }
            }
        }
        for seat in seats {
            match seat.instance.decide(&input, decision) {
                Ok(next) => decision = next,
                Err(fault) => {
                    faults += 1;
                    first.get_or_insert((seat.policy, fault));
                }
            }
        }
        if let Some((policy, fault)) = first {
            self.end.shared().count_faults(faults);
            self.end.note(policy, call_seq, fault);
        }
        decision
    }
}

/// Drops channels where NCCL (up to 2.30.7) uses them unclamped: for AllGather, which may be a batch of broadcasts
/// (`allgatherv_sched.cc`), and for CollNet (`enqueue.cc:625`), more channels than the communicator has crash the
/// job, and a tuner is not told how many it has. With `promise` the operator says that `max_channels` is no more.
#[inline]
fn bound(decision: Decision, function: u32, costs: &Costs<'_>, promise: bool) -> Decision {
    if promise || decision.channels.is_none() {
        return decision;
    }
    let coll_net = match decision.route {
        Some((algo, _)) => matches!(algo, Algo::CollNetDirect | Algo::CollNetChain),
        // NCCL picks the algorithm; it may be a CollNet one wherever that is on offer.
        None => [Algo::CollNetDirect, Algo::CollNetChain]
            .into_iter()
            .any(|a| Proto::ALL.into_iter().any(|p| costs.micros(a, p).is_some())),
    };
    let unclamped = function == func::ALL_GATHER || coll_net;
    Decision { channels: decision.channels.filter(|_| !unclamped), ..decision }
}

/// The bound on channels that a manifest sets, or NCCL's own.
pub(crate) fn max_channels(configured: Option<u32>) -> u32 {
    NonZeroU32::new(configured.unwrap_or(MAX_CHANNELS))
        .map_or(MAX_CHANNELS, NonZeroU32::get)
        .min(MAX_CHANNELS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_dropped_where_nccl_does_not_clamp_them() {
        let ring = Some((Algo::Ring, Proto::Simple));
        let coll_net = Some((Algo::CollNetDirect, Proto::Simple));
        let mut plain = [1.0f32; 6];
        let mut with_coll_net = [1.0f32; 21];
        let plain = CostTable::new(&mut plain, 2, 3).unwrap();
        let with_coll_net = CostTable::new(&mut with_coll_net, 7, 3).unwrap();
        let cases = [
            (ring, func::ALL_REDUCE, &with_coll_net, false, true),
            (ring, func::ALL_GATHER, &plain, false, false),
            (ring, func::ALL_GATHER, &plain, true, true),
            (coll_net, func::ALL_REDUCE, &with_coll_net, false, false),
            (coll_net, func::ALL_REDUCE, &with_coll_net, true, true),
            (None, func::ALL_REDUCE, &with_coll_net, false, false),
            (None, func::ALL_REDUCE, &plain, false, true),
        ];
        for (route, function, table, promise, kept) in cases {
            let decision = Decision { route, channels: NonZeroU32::new(8) };
            let bounded = bound(decision, function, &table.costs(), promise);
            assert_eq!(bounded.route, route);
            assert_eq!(bounded.channels.is_some(), kept, "{route:?} {function} {promise}");
        }
    }

    #[test]
    fn negative_arguments_are_refused() {
        assert_eq!(Request::new(-1, 8, 1, false), None);
        assert_eq!(Request::new(4, 8, -1, false), None);
        let want = Request { func: 4, n_bytes: 8, num_pipe_ops: 1, reg_buff: true };
        assert_eq!(Request::new(4, 8, 1, true), Some(want));
    }

    #[test]
    fn the_bound_on_channels_is_never_zero_nor_above_nccl_s() {
        assert_eq!([None, Some(0), Some(1), Some(24), Some(500)].map(max_channels), [64, 64, 1, 24, 64]);
    }

    #[test]
    fn a_fault_in_one_store_skips_one_policy() {
        use crate::endpoint::{Chain, Seat, Shared};
        use crate::instance::{Fused, tests::instance};
        use crate::policy_set::Plan;
        use std::sync::Arc;
        let add = |n: u32| format!("w2 = *(u32 *)(r1 + 72)\nw2 += {n}\n*(u32 *)(r1 + 72) = w2\nr0 = 0\nexit");
        let stops = "w2 = 63\n*(u32 *)(r1 + 72) = w2\nr2 = 0\nr0 = *(u64 *)(r2 + 0)\nexit";
        let texts = [add(1), add(2), stops.to_owned(), add(4), stops.to_owned()];
        let mut chain = Chain::empty(Arc::new(Plan::empty(1)));
        for (policy, text) in texts.iter().enumerate() {
            chain.push(Seat { policy, instance: instance(Hook::Tuner, text), ops: 0 });
        }
        let instances: Vec<_> = chain.tuner.iter().map(|s| &s.instance).collect();
        chain.fused = Fused::of(&instances).unwrap();
        assert!(chain.fused.is_some());
        let info = CommInfo { n_ranks: 2, ..CommInfo::default() };
        let end = Endpoint::new(Arc::new(Shared::new(1, 1, Role::Tuner, info, 1)), chain, None);
        let mut comm = Communicator { end, call_seq: 0, chained: None };
        let request = Request::new(4, 1 << 20, 1, false).unwrap();
        for call in 1..=3 {
            let mut costs = [1.0f32; 6];
            let mut table = CostTable::new(&mut costs, 2, 3).unwrap();
            let applied = comm.decide(&request, &mut table);
            assert_eq!(applied.channels.map(NonZeroU32::get), Some(1 + 2 + 4), "call {call}");
            let counts: Vec<_> = comm.end.chain().tuner.iter().map(|s| s.instance.counters()).collect();
            assert_eq!(counts.iter().map(|c| c.calls).collect::<Vec<_>>(), [call; 5]);
            assert_eq!(counts.iter().map(|c| c.traps).collect::<Vec<_>>(), [0, 0, call, 0, call]);
            assert_eq!(comm.end.shared().faults(), 2 * call);
            let note = comm.end.shared().take_note();
            assert_eq!(note.map(|n| n.policy), (call == 1).then_some(2), "the first fault of a plan is told");
        }
    }
}
