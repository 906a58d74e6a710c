//! [`Instance`]: a policy with its own private memory and its maps, bound to one communicator.
//!
//! # The decision path
//! [`Instance::decide`] writes the words of the context that the policy reads, sets the fuel, calls, and reads three
//! fields back. It allocates nothing, takes no lock, makes no system call and logs nothing. (A trap is the
//! exception: wasmtime allocates its error, in about a microsecond.)
//!
//! The stack is *not* cleared between calls. A verified program reads no stack byte that it did not write in the same
//! call (the verifier refuses `uninit-stack`), so what an earlier call left there cannot be seen. For the same reason
//! words of the context that the policy never reads are not filled.

use crate::decision::{Algo, Decision, Proto, TunerInput};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Fault, Trap, TrapCode};
use crate::hooks::Hook;
use crate::maps::{MapSet, RankSlot, Reader};
use crate::memory::{GuestMemory, prepare_thread, thread_pointer};
use crate::metrics::{Counters, Snapshot};
use crate::policy::{PolicyModule, Words};
use crate::printk::Lines;
use ringfence_guest::abi::helper;
use ringfence_translator::wasm::layout::{self, CTX_BASE, CTX_MAX, CTX_PTR};
use std::sync::Arc;
use wasmtime::{
    Extern, ExternType, Global, ImportType, Store, StoreLimits, StoreLimitsBuilder, TypedFunc, Val,
};

mod context;
mod fused;
mod held;
mod helpers;

pub(crate) use fused::{Fused, Interrupted};

/// Bounds of one instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Fuel of one call: about one unit a Wasm instruction, [`CALL_FUEL`](crate::engine::CALL_FUEL) a call. Charged at loop heads and
    /// function entries. `None`: what the verifier proved that the policy needs at most, so that it never runs out. A smaller
    /// number cuts it short.
    pub fuel: Option<u64>,
}

/// Fuel of a program that nobody verified, where none is said.
const UNPROVED_FUEL: u64 = 1_000_000;

impl Limits {
    /// The fuel of a call of that policy.
    fn fuel_for(self, policy: &PolicyModule) -> u64 {
        let proved = policy.max_fuel();
        self.fuel.into_iter().chain(proved).min().unwrap_or(UNPROVED_FUEL)
    }
}

/// What host functions need of a policy's instance.
pub(crate) struct Data {
    memory: Option<GuestMemory>,
    maps: MapSet,
    random: u64,
    held: held::Held,
    /// If the policy looks up in hashes.
    reader: Option<Reader>,
    /// The slot of per-CPU maps that it sees.
    slot: Arc<RankSlot>,
    lines: Option<Arc<Lines>>,
}

impl Data {
    fn new(policy: &PolicyModule, maps: &MapSet, reader: Option<Reader>) -> Data {
        Data {
            memory: None,
            maps: maps.clone(),
            random: helpers::seed(),
            held: held::Held::default(),
            reader,
            slot: maps.slot(),
            lines: policy.lines().cloned(),
        }
    }

    /// Before a call: what the policy is going to look up stays where it is.
    #[inline]
    fn enter(&self) {
        if let Some(reader) = &self.reader {
            reader.enter();
        }
    }

    /// Brings in the pages of the private memory.
    fn touch(&mut self) {
        const PAGE: usize = 4096;
        let bytes = self.memory.as_mut().and_then(|m| m.bytes_mut(0, layout::PRIVATE_PAGES as usize * 65536));
        bytes.into_iter().flatten().step_by(PAGE).for_each(|b| *b = 0);
    }

    /// After a call: what the policy took, if it may take something, and then its pointers.
    #[inline]
    fn give_back(&mut self, takes: bool) {
        let Data { held, maps, reader, .. } = self;
        if takes {
            held.release(maps);
        }
        if let Some(reader) = reader {
            reader.exit();
        }
    }
}

/// What the store of one instance carries.
pub(crate) struct Alone {
    data: Data,
    limits: StoreLimits,
}

/// What a store carries for the policies in it, each at its place.
trait Seats: 'static {
    fn seat(&self, at: usize) -> &Data;
    fn seat_mut(&mut self, at: usize) -> &mut Data;
}

impl Seats for Alone {
    #[inline(always)]
    fn seat(&self, _: usize) -> &Data {
        &self.data
    }
    #[inline(always)]
    fn seat_mut(&mut self, _: usize) -> &mut Data {
        &mut self.data
    }
}

/// A policy with its own private memory, its maps, its fuel and its counters.
pub struct Instance {
    store: Store<Alone>,
    entry: TypedFunc<(i64, i64), i64>,
    policy: PolicyModule,
    hook: Hook,
    /// Bytes of the context that it was verified for.
    ctx_size: usize,
    reads: Words,
    fuel: u64,
    counters: Arc<Counters>,
    /// Thread pointer of the thread that called last: it is prepared. (A thread that starts at the address of one that ended
    /// is not; wasmtime then prepares it itself, in 3 us and with a signal stack of its own.)
    prepared: usize,
    /// It may take locks or records: something may be left to give back after a call.
    takes: bool,
    /// It looks up in hashes, so [`Data::reader`] is there.
    looks_up: bool,
    /// NCCLbpf's `last_channels`: what the latest decision said, 0 for none.
    last_channels: u32,
    /// Place of NCCLbpf's `telemetry_map` among the maps, where the policy reads latencies from its context.
    telemetry: Option<usize>,
}

impl Instance {
    /// Instantiates a policy with its maps, which [`MapRegistry::resolve`](crate::maps::MapRegistry::resolve) gave
    /// for `policy.maps()`. About 10 us; off the decision path.
    ///
    /// # Errors
    /// [`ErrorKind::Instantiate`]: maps that do not fit the policy's, no memory, or more than 4096 instances of policies that look up in
    /// hashes.
    pub fn new(policy: &PolicyModule, maps: &MapSet, limits: Limits) -> Result<Instance> {
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Instantiate, format!("{}: cannot instantiate: {why}", policy.name()))
        };
        check_maps(policy, maps).map_err(|why| failed(&why))?;
        let reader = prepare_maps(policy, maps).map_err(|why| failed(&why))?;
        let looks_up = reader.is_some();
        let mut store = new_store(policy, maps, reader);
        let imports = imports(&mut store, 0, policy).map_err(|why| failed(&why))?;
        // Compiled code checks fuel at entry: a start function, were there one, must not run for free.
        let fuel = limits.fuel_for(policy);
        store.set_fuel(fuel).map_err(|e| failed(&e))?;
        let instance =
            wasmtime::Instance::new(&mut store, policy.module(), &imports).map_err(|e| failed(&e))?;
        let memory =
            instance.get_memory(&mut store, layout::MEMORY_EXPORT).ok_or_else(|| failed(&"no memory"))?;
        GuestMemory::attach(&mut store, &memory, |alone| &mut alone.data.memory);
        let entry = instance.get_typed_func(&mut store, layout::ENTRY_EXPORT).map_err(|e| failed(&e))?;
        Ok(Instance {
            store,
            entry,
            hook: policy.hook(),
            ctx_size: policy.env().ctx.size() as usize,
            reads: policy.reads(),
            fuel,
            counters: policy.metrics().register(policy.hook()),
            prepared: 0,
            takes: takes_something(policy),
            looks_up,
            last_channels: 0,
            telemetry: context::telemetry_map(policy),
            policy: policy.clone(),
        })
    }

    /// The policy.
    pub fn policy(&self) -> &PolicyModule {
        &self.policy
    }
    /// Where it stands.
    #[inline]
    pub fn hook(&self) -> Hook {
        self.hook
    }
    /// The maps.
    pub fn maps(&self) -> &MapSet {
        &self.store.data().data.maps
    }
    /// Fuel that the latest call used; 0 before the first one.
    #[inline]
    pub fn fuel_used(&self) -> u64 {
        self.fuel.saturating_sub(self.store.get_fuel().unwrap_or(0))
    }
    /// Fuel that a call may use.
    pub fn fuel_limit(&self) -> u64 {
        self.fuel
    }
    /// Counters of this instance alone.
    pub fn counters(&self) -> Snapshot {
        self.counters.snapshot()
    }

    /// Brings in what the first call would otherwise wait for: the pages of the private memory and of the code, some
    /// 20 us. The policy is entered without fuel, so it stops before its first instruction: no map, no counter and no
    /// decision knows of it. Off the decision path.
    pub fn warm(&mut self) {
        self.store.data_mut().data.touch();
        prepare_thread();
        if self.store.set_fuel(0).is_ok() {
            let stopped = self.entry.call(&mut self.store, (CTX_PTR as i64, 0));
            debug_assert!(stopped.is_err(), "a call without fuel must not run");
        }
    }

    /// Takes over what NCCLbpf policies see of earlier decisions (`current_channels`) from the instance that this one
    /// replaces, as NCCLbpf does at a reload. Nothing else of an instance outlives it but the maps.
    pub fn inherit(&mut self, predecessor: &Instance) {
        self.last_channels = predecessor.last_channels;
    }

    /// One decision. The result is the policy's own decision, or `so_far` if it submitted none.
    ///
    /// # Errors
    /// The [`Fault`]; the instance stays usable, and the caller keeps `so_far`.
    #[inline]
    pub fn decide(&mut self, input: &TunerInput<'_>, so_far: Decision) -> Result<Decision, Fault> {
        let began = self.counters.begin();
        let result = match self.hook {
            Hook::Tuner => self.decide_tuner(input, so_far),
            Hook::NcclBpf => self.decide_ncclbpf(input, so_far),
            _ => Err(stop("only programs of the hooks tuner and uprobe decide for a tuner")),
        };
        match result {
            Ok(decision) => {
                self.counters.answered(began, decision.is_some(), self.fuel_used());
                Ok(decision.unwrap_or(so_far))
            }
            Err(fault) => Err(self.count(fault)),
        }
    }

    #[inline(always)]
    fn decide_tuner(
        &mut self,
        input: &TunerInput<'_>,
        so_far: Decision,
    ) -> Result<Option<Decision>, Stopped> {
        let reads = self.reads;
        context::fill_tuner(self.context()?, reads, input, so_far);
        match self.call(CTX_PTR, 0)? {
            0 => Ok(Some(context::tuner_decision(self.context()?))),
            _ => Ok(None),
        }
    }

    #[inline(always)]
    fn decide_ncclbpf(
        &mut self,
        input: &TunerInput<'_>,
        so_far: Decision,
    ) -> Result<Option<Decision>, Stopped> {
        let current = so_far.channels.map_or(self.last_channels, |n| n.get());
        let (reads, latencies) = (self.reads, self.latencies(input));
        context::fill_ncclbpf(self.context()?, reads, input, latencies, current);
        let action = self.call(CTX_PTR, 0)?;
        let decision = context::unpack(action, so_far, current);
        self.last_channels = decision.channels.map_or(0, |n| n.get());
        Ok(Some(decision))
    }

    /// Runs a program over its hook's context: `ctx` is the context struct as bytes. True if the policy submitted (returned 0);
    /// only then are the fields that it may decide written back.
    ///
    /// # Errors
    /// The [`Fault`]; [`Fault::Host`] if `ctx` does not have the size of the hook's context. After a fault `ctx` is unchanged.
    pub fn run_context(&mut self, ctx: &mut [u8]) -> Result<bool, Fault> {
        let began = self.counters.begin();
        match self.run_fields(ctx) {
            Ok(submitted) => {
                self.counters.answered(began, submitted, self.fuel_used());
                Ok(submitted)
            }
            Err(fault) => Err(self.count(fault)),
        }
    }

    fn run_fields(&mut self, ctx: &mut [u8]) -> Result<bool, Stopped> {
        if self.hook.decides() || self.hook == Hook::Generic {
            return Err(stop("tuner and generic programs have entries of their own"));
        }
        if ctx.len() != self.ctx_size {
            return Err(stop("the context does not have the size that the policy was verified for"));
        }
        self.buffer(ctx.len())?.copy_from_slice(ctx);
        if self.call(CTX_PTR, 0)? != 0 {
            return Ok(false);
        }
        // Only what the hook lets a policy decide: the verifier refuses other writes, and this does not rest on it.
        let Instance { store, policy, .. } = self;
        let memory = store.data().data.memory.as_ref().ok_or_else(|| stop("no private memory"))?;
        let left = memory.bytes(CTX_BASE, ctx.len()).ok_or_else(|| stop("no context area"))?;
        for range in policy.decided() {
            ctx[range.clone()].copy_from_slice(&left[range.clone()]);
        }
        Ok(true)
    }

    /// Runs a program of the `generic` hook over a buffer, which is copied in and out; the result is r0.
    ///
    /// # Errors
    /// The [`Fault`]; [`Fault::Host`] if the buffer has more than [`CTX_MAX`] bytes, or than the policy was verified
    /// for. After a fault `mem` is unchanged.
    pub fn run_generic(&mut self, mem: &mut [u8]) -> Result<u64, Fault> {
        let began = self.counters.begin();
        match self.run_buffer(mem) {
            Ok(r0) => {
                self.counters.answered(began, true, self.fuel_used());
                Ok(r0)
            }
            Err(fault) => Err(self.count(fault)),
        }
    }

    fn run_buffer(&mut self, mem: &mut [u8]) -> Result<u64, Stopped> {
        if self.hook != Hook::Generic {
            return Err(stop("only generic programs run over a buffer"));
        }
        self.buffer(mem.len())?.copy_from_slice(mem);
        let r0 = self.call(CTX_PTR, mem.len() as u64)?;
        mem.copy_from_slice(self.buffer(mem.len())?);
        Ok(r0)
    }

    /// The first `size` bytes of the context area.
    fn buffer(&mut self, size: usize) -> Result<&mut [u8], Stopped> {
        if size > CTX_MAX as usize {
            return Err(stop("the buffer is larger than the context area"));
        }
        self.memory()?.bytes_mut(CTX_BASE, size).ok_or_else(|| stop("no context area"))
    }

    /// The context as an array, so that the accesses to it need no checks of their own.
    #[inline(always)]
    fn context<const N: usize>(&mut self) -> Result<&mut [u8; N], Stopped> {
        let bytes = self.memory()?.bytes_mut(CTX_BASE, N);
        bytes.and_then(|b| b.first_chunk_mut()).ok_or_else(|| stop("no context area"))
    }

    #[inline(always)]
    fn memory(&mut self) -> Result<&mut GuestMemory, Stopped> {
        self.store.data_mut().data.memory.as_mut().ok_or_else(|| stop("no private memory"))
    }

    #[inline]
    fn latencies(&self, input: &TunerInput<'_>) -> context::Latencies {
        match self.telemetry {
            None => context::Latencies::default(),
            Some(index) => context::latencies(self.maps().at(index), input),
        }
    }

    #[inline(always)]
    fn call(&mut self, r1: u64, r2: u64) -> Result<u64, Stopped> {
        let here = thread_pointer();
        if self.prepared != here {
            prepare_thread();
            self.prepared = here;
        }
        if self.store.set_fuel(self.fuel).is_err() {
            return Err(stop("the engine counts no fuel"));
        }
        if self.looks_up {
            self.store.data().data.enter();
        }
        let result = self.entry.call(&mut self.store, (r1 as i64, r2 as i64));
        if self.takes | self.looks_up {
            self.give_back();
        }
        match result {
            Ok(r0) => Ok(r0 as u64),
            Err(e) => Err(Box::new(fault(&self.policy, &e))),
        }
    }

    /// After a call: what it took, and then its pointers.
    #[inline]
    fn give_back(&mut self) {
        self.store.data_mut().data.give_back(self.takes);
    }

    #[cold]
    fn count(&self, fault: Stopped) -> Fault {
        self.counters.faulted(&fault, self.fuel_used());
        *fault
    }
}

/// What stopped a call of a policy.
#[cold]
fn fault(policy: &PolicyModule, error: &wasmtime::Error) -> Fault {
    if let Some(held::LockFault(why)) = error.downcast_ref() {
        return Fault::Host(why);
    }
    let Some(trap) = error.downcast_ref::<wasmtime::Trap>() else {
        return Fault::Host("the engine failed");
    };
    if *trap == wasmtime::Trap::OutOfFuel {
        return Fault::OutOfFuel;
    }
    let frame = error.downcast_ref::<wasmtime::WasmBacktrace>().and_then(|b| b.frames().first());
    let offset = frame.and_then(|f| f.module_offset());
    let place = offset.and_then(|o| policy.place(o)).map(Box::new);
    Fault::Trap(Trap { code: TrapCode::from_wasmtime(*trap), place })
}

/// A fault inside the instance. In a box, so that the results of the decision path fit into registers.
type Stopped = Box<Fault>;

#[cold]
fn stop(why: &'static str) -> Stopped {
    Box::new(Fault::Host(why))
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Instance({:?})", self.policy)
    }
}

/// A store that may hold one instance with one memory, the private one, and no table.
fn new_store(policy: &PolicyModule, maps: &MapSet, reader: Option<Reader>) -> Store<Alone> {
    let limits = store_limits(1, 1);
    let mut store =
        Store::new(policy.engine().wasmtime(), Alone { data: Data::new(policy, maps, reader), limits });
    store.limiter(|alone| &mut alone.limits);
    store
}

/// Private memories, of one size, and instances that a store may hold. None has a table.
fn store_limits(memories: usize, instances: usize) -> StoreLimits {
    let bytes = layout::PRIVATE_PAGES as usize * 65536;
    StoreLimitsBuilder::new().memory_size(bytes).memories(memories).tables(0).instances(instances).build()
}

/// Does the module call helpers that take something for it to give back?
fn takes_something(policy: &PolicyModule) -> bool {
    calls_one_of(policy, &[helper::SPIN_LOCK, helper::RINGBUF_RESERVE])
}

fn calls_one_of(policy: &PolicyModule, helpers: &[u32]) -> bool {
    let is_one = |name: &str| name.parse().is_ok_and(|id| helpers.contains(&id));
    policy.module().imports().any(|i| i.module() == layout::HELPER_MODULE && is_one(i.name()))
}

/// Makes known what the policy is going to do with hashes: the reader, if it looks up in any.
fn prepare_maps(policy: &PolicyModule, maps: &MapSet) -> Result<Option<Reader>, String> {
    let hashes = || maps.iter().filter(|m| m.decl().kind.is_hash());
    let deletes = calls_one_of(policy, &[helper::MAP_DELETE_ELEM]);
    if deletes && !hashes().filter(|m| !m.decl().read_only).all(|m| m.allow_deletes()) {
        return Err("this system cannot delete entries safely beside running policies".into());
    }
    let walks = policy.module().imports().any(|i| i.module() == layout::WALK_MODULE);
    let looks_up = walks || calls_one_of(policy, &[helper::MAP_LOOKUP_ELEM, helper::MAP_LOOKUP_PERCPU_ELEM]);
    if !looks_up || hashes().next().is_none() {
        return Ok(None);
    }
    Reader::join().map(Some).ok_or_else(|| "too many instances look up in hashes".into())
}

/// Are these the maps that the policy declares, in order?
fn check_maps(policy: &PolicyModule, maps: &MapSet) -> Result<(), String> {
    let (want, have) = (policy.maps().len(), maps.len());
    if want != have {
        return Err(format!("it declares {want} maps and was given {have}"));
    }
    match policy.maps().iter().zip(maps.iter()).find(|(d, m)| !m.decl().same_shape(d)) {
        Some((d, m)) => Err(format!("map {} was given as {}", d.name, m.shape())),
        None => Ok(()),
    }
}

/// What the module of the policy at place `at` imports, in its order.
fn imports<T: Seats>(store: &mut Store<T>, at: usize, policy: &PolicyModule) -> Result<Vec<Extern>, String> {
    let wanted = policy.module().imports();
    wanted.map(|i| import(store, at, &i).ok_or(format!("it imports {}.{}", i.module(), i.name()))).collect()
}

fn import<T: Seats>(store: &mut Store<T>, at: usize, wanted: &ImportType<'_>) -> Option<Extern> {
    let number: u32 = wanted.name().parse().ok()?;
    match (wanted.module(), wanted.ty()) {
        (layout::MAP_MODULE, ExternType::Memory(_)) => {
            Some(store.data().seat(at).maps.at(number as usize)?.bytes().memory().clone().into())
        }
        (layout::SLOT_MODULE, ExternType::Global(ty)) => {
            let data = store.data().seat(at);
            let map = data.maps.at(number as usize)?;
            let first = helpers::pointer(number, map.value_offset(data.slot.number(), 0));
            Some(Global::new(&mut *store, ty, Val::I64(first)).ok()?.into())
        }
        (layout::HELPER_MODULE, ExternType::Func(ty)) => {
            helpers::import(store, at, number, ty.params().len())
        }
        (layout::WALK_MODULE, ExternType::Func(_)) => Some(helpers::walk(store, at, number)),
        _ => None,
    }
}

/// An instance moves between threads (NCCL calls from whichever ends the group), one at a time.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Instance>();
};

fn route(algo: u32, proto: u32) -> Option<(Algo, Proto)> {
    Algo::new(algo).zip(Proto::new(proto))
}

#[cfg(test)]
pub(crate) mod tests;
