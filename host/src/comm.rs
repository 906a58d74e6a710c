//! [`Communicator`]: what stands behind NCCL's context pointer: the chain of policies of one communicator, and
//! the way of a [`Request`] through it. [`Shared`] is the part that other threads see.
//!
//! This is the decision path: it allocates nothing, logs nothing, makes no system call and waits for nobody.
//! A policy that faults is skipped, and the decision so far stands; what happens at the next call does
//! not depend on the fault, so all ranks go on alike.

use crate::config::MAX_CHANNELS;
use crate::decision::{Algo, Applied, CommInfo, CostTable, Costs, Decision, Proto, TunerInput};
use crate::fault::Fault;
use crate::host::Host;
use crate::instance::Instance;
use crate::policy_set::Plan;
use crate::reload::{Slot, SwitchPolicy};
use ringfence_guest::abi::func;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// The instances of a plan for one communicator, in order.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) plan: Arc<Plan>,
    pub(crate) instances: Vec<Instance>,
}

impl Chain {
    /// No instances: everything passes through.
    pub(crate) fn empty(plan: Arc<Plan>) -> Chain {
        Chain { plan, instances: Vec::new() }
    }

    /// Takes over what NCCLbpf policies see of earlier decisions, from the policy of the same file.
    fn inherit(&mut self, old: &Chain) {
        for (policy, instance) in self.plan.set().policies().iter().zip(&mut self.instances) {
            let before = old.plan.set().policies().iter().position(|p| p.file == policy.file);
            if let Some(before) = before.and_then(|at| old.instances.get(at)) {
                instance.inherit(before);
            }
        }
    }
}

/// A communicator. Used by one thread at a time.
#[derive(Debug)]
pub struct Communicator {
    info: CommInfo,
    chain: Chain,
    /// Of the chain in use.
    generation: u64,
    /// Generation whose first fault was noted already.
    noted: u64,
    call_seq: u64,
    shared: Arc<Shared>,
    /// `None` in a process that has no host.
    host: Option<&'static Host>,
}

/// The part of a communicator that the reload thread and the status see.
#[derive(Debug)]
pub struct Shared {
    /// Unique in the process.
    id: u64,
    /// What does not change.
    info: CommInfo,
    slot: Slot<Chain>,
    faults: AtomicU64,
    note: Mutex<Option<FaultNote>>,
}

/// The first fault of a generation on a communicator.
#[derive(Clone, Debug)]
pub(crate) struct FaultNote {
    pub(crate) plan: Arc<Plan>,
    /// Place in the chain.
    pub(crate) policy: usize,
    pub(crate) call_seq: u64,
    pub(crate) fault: Fault,
}

impl Shared {
    pub(crate) fn new(id: u64, info: CommInfo, generation: u64) -> Shared {
        Shared { id, info, slot: Slot::new(generation), faults: AtomicU64::new(0), note: Mutex::new(None) }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn slot(&self) -> &Slot<Chain> {
        &self.slot
    }

    pub(crate) fn info(&self) -> &CommInfo {
        &self.info
    }

    /// How a new plan reaches this communicator.
    pub fn switch_policy(&self) -> SwitchPolicy {
        SwitchPolicy::of(&self.info)
    }

    /// Faults since the communicator was made.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Takes the note of a first fault, if there is a new one.
    pub(crate) fn take_note(&self) -> Option<FaultNote> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Communicator {
    pub(crate) fn new(shared: Arc<Shared>, chain: Chain, host: Option<&'static Host>) -> Communicator {
        let info = CommInfo { max_channels: chain.plan.max_channels(), ..shared.info };
        let generation = shared.slot.generation();
        Communicator { info, chain, generation, noted: 0, call_seq: 0, shared, host }
    }

    /// A communicator without policies, in a process without host.
    pub(crate) fn pass_through(info: CommInfo) -> Communicator {
        let chain = Chain::empty(Arc::new(Plan::empty(0)));
        Communicator::new(Arc::new(Shared::new(0, info, 0)), chain, None)
    }

    /// Does the chain hold every policy of its plan?
    pub(crate) fn is_complete(&self) -> bool {
        self.chain.instances.len() == self.chain.plan.set().policies().len()
    }

    /// What does not change, and the bound on channels of the plan in use.
    pub fn info(&self) -> &CommInfo {
        &self.info
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Unregisters the communicator; to be called once NCCL is done with it. Off the decision path.
    pub(crate) fn leave(self) {
        if let Some(host) = self.host {
            host.leave(self);
        }
    }

    /// Asks the chain, and applies what it decides to NCCL's table. The caller passes on the channels.
    #[inline]
    pub fn decide(&mut self, request: &Request, table: &mut CostTable<'_>) -> Applied {
        if self.shared.slot.has_news(self.generation) {
            self.take_news();
        }
        let call_seq = self.call_seq;
        self.call_seq += 1;
        if self.chain.instances.is_empty() {
            return Applied::default();
        }
        let decision = self.ask(request, call_seq, table.costs());
        if decision == Decision::DEFER {
            return Applied::default();
        }
        let bounded = bound(decision, request.func, &table.costs(), self.chain.plan.channel_promise());
        table.apply(bounded, self.info.max_channels)
    }

    #[inline]
    fn ask(&mut self, request: &Request, call_seq: u64, costs: Costs<'_>) -> Decision {
        let input = TunerInput {
            comm: &self.info,
            func: request.func,
            n_bytes: request.n_bytes,
            num_pipe_ops: request.num_pipe_ops,
            reg_buff: request.reg_buff,
            call_seq,
            costs,
        };
        let mut decision = Decision::DEFER;
        let mut first = None;
        for (policy, instance) in self.chain.instances.iter_mut().enumerate() {
            match instance.decide(&input, decision) {
                Ok(next) => decision = next,
                Err(fault) => {
                    count(&self.shared.faults);
                    first.get_or_insert((policy, fault));
                }
            }
        }
        if let Some((policy, fault)) = first {
            self.note(policy, call_seq, fault);
        }
        decision
    }

    #[cold]
    fn take_news(&mut self) {
        if self.shared.slot.exchange(&mut self.chain, &mut self.generation, Chain::inherit) {
            self.info.max_channels = self.chain.plan.max_channels();
        }
    }

    /// Keeps the first fault of a generation for the reload thread to report. If the place is taken or locked, a later
    /// fault gets there.
    #[cold]
    fn note(&mut self, policy: usize, call_seq: u64, fault: Fault) {
        let generation = self.chain.plan.generation();
        if self.noted == generation {
            return;
        }
        if let Ok(mut note) = self.shared.note.try_lock()
            && note.is_none()
        {
            *note = Some(FaultNote { plan: self.chain.plan.clone(), policy, call_seq, fault });
            self.noted = generation;
        }
    }
}

/// Adds one. Only the thread inside the communicator writes, so no locked instruction is needed.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
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
}
