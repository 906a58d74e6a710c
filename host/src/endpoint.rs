//! [`Endpoint`]: what stands behind one context pointer of NCCL, or of a library: the chain of policies for one [`Role`], and the
//! way of a context through it. [`Shared`] is the part that other threads see.
//!
//! Running a chain allocates nothing, logs nothing, makes no system call and waits for nobody. A policy that faults is
//! skipped, and what the chain had decided so far stands; what happens at the next call does not depend on the
//! fault, so all ranks go on alike.

use crate::decision::CommInfo;
use crate::fault::Fault;
use crate::ffi::logger::NcclLogger;
use crate::hooks::Hook;
use crate::host::Host;
use crate::instance::{Fused, Instance};
use crate::maps::Map;
use crate::policy_set::Plan;
use crate::reload::{Slot, SwitchPolicy};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Which of NCCL's interfaces an endpoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The tuner: decisions, chunk sizes, constants.
    Tuner,
    /// The profiler: finished collectives, raw events.
    Profiler,
    /// The net plugin.
    Net,
    /// The env plugin.
    Env,
    /// Whoever calls through the C API.
    Library,
}

impl Role {
    /// The name, as in logs and in the status.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Tuner => "tuner",
            Role::Profiler => "profiler",
            Role::Net => "net",
            Role::Env => "env",
            Role::Library => "library",
        }
    }

    /// Do policies on that hook belong to endpoints of this role?
    pub const fn serves(self, hook: Hook) -> bool {
        match hook {
            Hook::Tuner | Hook::NcclBpf | Hook::TunerChunk | Hook::TunerInit => matches!(self, Role::Tuner),
            Hook::Profiler | Hook::ProfilerEvent => matches!(self, Role::Profiler),
            Hook::Net => matches!(self, Role::Net),
            Hook::Env => matches!(self, Role::Env),
            Hook::Custom(_) => matches!(self, Role::Library),
            Hook::Generic => false,
        }
    }
}

/// A policy's place in a chain.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Place in the policy set.
    pub(crate) policy: usize,
    pub(crate) instance: Instance,
    /// Operations of the hook `net` that it hears of, as bits.
    pub(crate) ops: u32,
}

/// The instances of a plan for one endpoint, in the order of the manifest.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) plan: Arc<Plan>,
    /// The policies that decide for NCCL's tuner.
    pub(crate) tuner: Vec<Seat>,
    /// The same policies in one store, where a chain of them gains by it. Asked first; after a fault the others' own instances answer.
    pub(crate) fused: Option<Fused>,
    /// Those on all other hooks of the endpoint's role.
    pub(crate) others: Vec<Seat>,
    /// A policy of the plan that belongs here could not be instantiated.
    pub(crate) incomplete: bool,
}

impl Chain {
    /// No instances: everything passes through.
    pub(crate) fn empty(plan: Arc<Plan>) -> Chain {
        Chain { plan, tuner: Vec::new(), fused: None, others: Vec::new(), incomplete: false }
    }

    pub(crate) fn push(&mut self, seat: Seat) {
        match seat.instance.hook().decides() {
            true => self.tuner.push(seat),
            false => self.others.push(seat),
        }
    }

    /// After the last policy. A chain that cannot be had in one store runs all the same.
    pub(crate) fn fuse(&mut self) {
        let mut fused = Fused::new(self.tuner.iter().map(|s| &s.instance)).unwrap_or_default();
        if let Some(fused) = &mut fused {
            fused.warm();
        }
        self.fused = fused;
    }

    /// Takes over what NCCLbpf policies see of earlier decisions, from the policy of the same file.
    fn inherit(&mut self, old: &Chain) {
        for seat in &mut self.tuner {
            let file = &self.plan.set().policies()[seat.policy].file;
            let before = old.tuner.iter().find(|s| old.plan.set().policies()[s.policy].file == *file);
            if let Some(before) = before {
                seat.instance.inherit(&before.instance);
            }
        }
    }
}

/// The part of an endpoint that the reload thread and the status see.
#[derive(Debug)]
pub struct Shared {
    /// Unique in the process.
    id: u64,
    /// Number of the communicator: the same for the tuner's and the profiler's endpoint of one rank.
    communicator: u64,
    role: Role,
    /// What does not change.
    info: CommInfo,
    slot: Slot<Chain>,
    faults: AtomicU64,
    note: Mutex<Option<FaultNote>>,
}

/// The first fault of a generation on an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct FaultNote {
    pub(crate) plan: Arc<Plan>,
    /// Place in the set.
    pub(crate) policy: usize,
    pub(crate) call_seq: u64,
    pub(crate) fault: Fault,
}

impl Shared {
    pub(crate) fn new(id: u64, communicator: u64, role: Role, info: CommInfo, generation: u64) -> Shared {
        let (slot, faults, note) = (Slot::new(generation), AtomicU64::new(0), Mutex::new(None));
        Shared { id, communicator, role, info, slot, faults, note }
    }

    /// A number that no other endpoint of the process has or had.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of the communicator in this process, to which maps of scope `communicator` belong. The tuner and the profiler of one
    /// rank have the same.
    pub fn communicator(&self) -> u64 {
        self.communicator
    }

    /// Which interface it serves.
    pub fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn slot(&self) -> &Slot<Chain> {
        &self.slot
    }

    /// What does not change of the communicator.
    pub fn info(&self) -> &CommInfo {
        &self.info
    }

    /// Generation of the newest plan that was offered to it.
    pub fn generation(&self) -> u64 {
        self.slot.generation()
    }

    /// How a new plan reaches this endpoint.
    pub fn switch_policy(&self) -> SwitchPolicy {
        match self.role {
            // A library says how many ranks must agree: one, where each decides for itself.
            Role::Tuner | Role::Library => SwitchPolicy::of(&self.info),
            // They decide nothing that the ranks of a communicator must agree on.
            Role::Profiler | Role::Net | Role::Env => SwitchPolicy::NextCall,
        }
    }

    /// Faults since the endpoint was made.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Takes the note of a first fault, if there is a new one.
    pub(crate) fn take_note(&self) -> Option<FaultNote> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Only the thread inside the endpoint writes, so no locked instruction is needed.
    pub(crate) fn count_faults(&self, n: u32) {
        self.faults.store(self.faults.load(Ordering::Relaxed).wrapping_add(n.into()), Ordering::Relaxed);
    }
}

/// What came of one context's way through a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Policies that were asked.
    pub policies: u32,
    /// Policies that submitted a decision (returned 0).
    pub submitted: u32,
    /// Policies that faulted and were skipped, and decisions out of the range that the schema allows, which were put back.
    pub faults: u32,
}

/// What the log says of a policy whose decision the schema does not allow.
const NOT_ALLOWED: &str = "it decided what the hook's schema does not allow, and that field was put back";

/// A chain of policies for one role. Used by one thread at a time.
#[derive(Debug)]
pub struct Endpoint {
    info: CommInfo,
    chain: Chain,
    /// Of the chain in use.
    generation: u64,
    /// Generation whose first fault was noted already.
    noted: u64,
    /// Contexts run so far, on all hooks but the tuner's.
    runs: u64,
    shared: Arc<Shared>,
    /// A context before the policy that runs, to put back what it may not decide.
    before: Vec<u8>,
    /// `None` in a process that has no host.
    host: Option<&'static Host>,
}

impl Endpoint {
    pub(crate) fn new(shared: Arc<Shared>, chain: Chain, host: Option<&'static Host>) -> Endpoint {
        let info = CommInfo { max_channels: chain.plan.max_channels(), ..shared.info };
        let generation = shared.slot.generation();
        Endpoint { info, chain, generation, noted: 0, runs: 0, shared, before: Vec::new(), host }
    }

    /// An endpoint on the newest plan of this process' host. Never fails: what goes wrong is logged, and everything passes
    /// through.
    pub(crate) fn join(role: Role, info: CommInfo, logger: Option<NcclLogger>) -> Endpoint {
        match Host::current() {
            Some(host) => host.join(role, info, logger),
            None => Endpoint::pass_through(role, info),
        }
    }

    /// An endpoint without policies, in a process without host.
    pub(crate) fn pass_through(role: Role, info: CommInfo) -> Endpoint {
        let chain = Chain::empty(Arc::new(Plan::empty(0)));
        Endpoint::new(Arc::new(Shared::new(0, 0, role, info, 0)), chain, None)
    }

    /// What does not change of the communicator, and the bound on channels of the plan in use.
    pub fn info(&self) -> &CommInfo {
        &self.info
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The plan in use.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.chain.plan
    }

    /// The communicator, and the policies that decide for NCCL's tuner, to be asked in order: all at once, or one by one.
    #[inline]
    pub(crate) fn tuner_seats(&mut self) -> (&CommInfo, Option<&mut Fused>, &mut [Seat]) {
        (&self.info, self.chain.fused.as_mut(), &mut self.chain.tuner)
    }

    /// Does any policy stand on that hook?
    pub fn wants(&self, hook: Hook) -> bool {
        let seats = if hook.decides() { &self.chain.tuner } else { &self.chain.others };
        seats.iter().any(|s| s.instance.hook() == hook)
    }

    /// Takes the plan that waits, if there is one; true if the chain is another one now. One atomic load if there is none.
    #[inline]
    pub(crate) fn refresh(&mut self) -> bool {
        self.shared.slot.has_news(self.generation) && self.take_news()
    }

    /// Has it the newest plan that was offered? [`refresh`](Endpoint::refresh) does not wait for a plan that is just being offered.
    pub(crate) fn is_current(&self) -> bool {
        !self.shared.slot.has_news(self.generation)
    }

    #[cold]
    fn take_news(&mut self) -> bool {
        let taken = self.shared.slot.exchange(&mut self.chain, &mut self.generation, Chain::inherit);
        if taken {
            self.info.max_channels = self.chain.plan.max_channels();
        }
        taken
    }

    /// Runs every policy on `hook`, in the order of the manifest, over `ctx`: the hook's context struct as bytes, whose fields with
    /// the right to decide hold the decision so far, and are left as the chain decided. A policy that returns anything but
    /// 0, that faults, or that decides what the schema does not allow leaves them as they were.
    pub(crate) fn run(&mut self, hook: Hook, ctx: &mut [u8]) -> Ran {
        self.run_op(hook, u32::MAX, ctx)
    }

    /// The operations of the hook `net` that any policy hears of, as bits.
    pub(crate) fn net_ops(&self) -> u32 {
        let net = self.chain.others.iter().filter(|s| s.instance.hook() == Hook::Net);
        net.fold(0, |ops, seat| ops | seat.ops)
    }

    /// As [`run`](Endpoint::run), for the policies that hear of one of the operations `ops`.
    pub(crate) fn run_op(&mut self, hook: Hook, ops: u32, ctx: &mut [u8]) -> Ran {
        let (mut ran, mut first) = (Ran::default(), None);
        let call = self.runs;
        self.runs += 1;
        for seat in self.chain.others.iter_mut().filter(|s| s.ops & ops != 0 && s.instance.hook() == hook) {
            ran.policies += 1;
            let custom = if let Hook::Custom(schema) = hook { Some(schema) } else { None };
            if custom.is_some() {
                self.before.clear();
                self.before.extend_from_slice(ctx);
            }
            let outcome = seat.instance.run_context(ctx);
            ran.submitted += u32::from(outcome == Ok(true));
            let put_back = custom.and_then(|schema| schema.check_decision(ctx, &self.before));
            let fault = outcome.err().or(put_back.map(|_| Fault::Host(NOT_ALLOWED)));
            if let Some(fault) = fault {
                ran.faults += 1;
                first.get_or_insert((seat.policy, fault));
            }
        }
        if let Some((policy, fault)) = first {
            self.shared.count_faults(ran.faults);
            self.note(policy, call, fault);
        }
        ran
    }

    /// Room for contexts of that many bytes, so that running a chain allocates nothing.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.before.reserve(bytes);
    }

    /// The map of that name of the first policy on `hook` that has one.
    pub(crate) fn map(&self, hook: Hook, name: &str) -> Option<Arc<Map>> {
        let mut here = self.chain.others.iter().filter(|s| s.instance.hook() == hook);
        here.find_map(|s| s.instance.maps().get(name).cloned())
    }

    /// Drops the policies on a hook that is asked only once.
    pub(crate) fn release(&mut self, hook: Hook) {
        self.chain.others.retain(|s| s.instance.hook() != hook);
    }

    /// Keeps the first fault of a generation for the reload thread to report. If the place is taken or locked, a later
    /// fault gets there.
    #[cold]
    pub(crate) fn note(&mut self, policy: usize, call_seq: u64, fault: Fault) {
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

    /// Unregisters the endpoint; to be called once its caller is done with it. Not on a path that is in a hurry.
    pub(crate) fn leave(self) {
        if let Some(host) = self.host {
            host.leave(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_but_generic_has_one_role() {
        let roles = [Role::Tuner, Role::Profiler, Role::Net, Role::Env, Role::Library];
        for hook in Hook::ALL {
            let n = roles.iter().filter(|r| r.serves(hook)).count();
            assert_eq!(n, usize::from(hook != Hook::Generic), "{hook}");
        }
    }
}
