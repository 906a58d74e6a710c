//! [`Fused`]: the policies of a chain in one store, run by one entry into the engine.
//!
//! Entering the engine costs about half of what a small policy costs. A chain of tuner policies is therefore instantiated a second time, in a
//! store of its own, beside a [`ChainModule`] that calls them in turn; the host is called between two of them, counts, and gives
//! the next one its fuel. Policies keep no state of their own between calls (maps hold all of it), so it does not matter which of its
//! two instances answers. When one is stopped, the whole call has ended: the caller goes on with the others' own instances.
//!
//! Each policy still has a memory, a fuel and counters of its own, and cannot reach the others'.

use super::{
    Data, Instance, Seats, Stopped, context, fault, imports, prepare_maps, stop, store_limits,
    takes_something,
};
use crate::decision::{Decision, TunerInput};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::Fault;
use crate::hooks::Hook;
use crate::memory::{GuestMemory, prepare_thread, thread_pointer};
use crate::metrics::{Began, Counters};
use crate::policy::{PolicyModule, Words};
use ringfence_guest::abi::{CollContext, algo, proto};
use ringfence_translator::wasm::chain::{ChainModule, DecisionLayout, Link};
use ringfence_translator::wasm::layout;
use std::mem::offset_of;
use std::num::NonZeroU32;
use std::sync::Arc;
use wasmtime::{Caller, Extern, Func, Memory, Store, StoreLimits, TypedFunc};

/// Where the tuner's context holds the decision.
const LAYOUT: DecisionLayout = DecisionLayout {
    algo: offset_of!(CollContext, decision_algo) as u32,
    channels: offset_of!(CollContext, decision_channels) as u32,
    algos: algo::COUNT,
    protos: proto::COUNT,
};

/// One policy of the chain.
struct Member {
    data: Data,
    policy: PolicyModule,
    counters: Arc<Counters>,
    reads: Words,
    /// Fuel that it may use.
    limit: u64,
    /// Fuel to give before it runs, for the chain's own code too.
    grant: u64,
    /// Fuel of the chain's own code behind it.
    after: u64,
    /// It may decide.
    decides: bool,
    /// It returned 0 in the latest call.
    submitted: bool,
    /// As in [`Instance`].
    takes: bool,
    began: Began,
}

impl Member {
    /// Before its call: the fuel to give.
    #[inline]
    fn start(&mut self) -> u64 {
        self.began = self.counters.begin();
        self.data.enter();
        self.grant
    }

    #[inline]
    fn context(&mut self) -> Option<&mut [u8; context::TUNER_BYTES]> {
        let bytes = self.data.memory.as_mut()?.bytes_mut(layout::CTX_BASE, context::TUNER_BYTES);
        bytes?.first_chunk_mut()
    }

    /// After its call: `left` is the fuel that was not used.
    #[inline]
    fn finish(&mut self, left: u64, submitted: bool) {
        self.data.give_back(self.takes);
        self.submitted = submitted;
        self.counters.answered(self.began, submitted, self.limit.saturating_sub(left));
    }
}

/// What the store carries.
struct Team {
    members: Vec<Member>,
    /// Place of the one that runs.
    at: usize,
    limits: StoreLimits,
}

impl Seats for Team {
    #[inline(always)]
    fn seat(&self, at: usize) -> &Data {
        &self.members[at].data
    }
    #[inline(always)]
    fn seat_mut(&mut self, at: usize) -> &mut Data {
        &mut self.members[at].data
    }
}

/// Between two policies: `r0` is what the first returned.
fn step(mut caller: Caller<'_, Team>, r0: i64) {
    let left = caller.get_fuel().unwrap_or(0);
    let team = caller.data_mut();
    let at = team.at;
    team.at = at + 1;
    if let Some([done, next, ..]) = team.members.get_mut(at..) {
        done.finish(left, r0 == 0);
        let fuel = next.start();
        // Fails only if the engine counts no fuel, and then nothing runs here.
        let _ = caller.set_fuel(fuel);
    }
}

/// The policies of a chain in one store.
pub(crate) struct Fused {
    store: Store<Team>,
    entry: TypedFunc<(i64, i64), (i64, i64, i64)>,
    /// Places of the policies that read more than the decision so far.
    readers: Vec<usize>,
    /// As in [`Instance`].
    prepared: usize,
}

/// A policy was stopped, and with it the call.
#[derive(Debug)]
pub(crate) struct Interrupted {
    /// Its place in the chain.
    pub(crate) at: usize,
    pub(crate) fault: Fault,
    /// What those before it had decided.
    pub(crate) so_far: Decision,
}

impl Fused {
    /// The chain of these instances; `None` if it would gain nothing, or could not keep to what they promise: a chain of one policy or of
    /// very many, one of another hook than the tuner's, one whose fuel is cut below what it was proved to need.
    ///
    /// # Errors
    /// As [`Instance::new`].
    pub(crate) fn new<'a>(instances: impl Iterator<Item = &'a Instance>) -> Result<Option<Fused>> {
        let instances: Vec<_> = instances.collect();
        let fits = |i: &&Instance| i.hook == Hook::Tuner && i.policy.max_fuel() == Some(i.fuel);
        if instances.iter().all(fits) { Fused::of(&instances) } else { Ok(None) }
    }

    /// As [`Fused::new`], of policies that nobody need have proved.
    pub(crate) fn of(instances: &[&Instance]) -> Result<Option<Fused>> {
        let Some(engine) = instances.first().map(|i| i.policy.engine()) else { return Ok(None) };
        let links: Vec<_> = instances.iter().map(|i| link(i)).collect();
        let Some((module, code)) = engine.chain(&links, LAYOUT)? else { return Ok(None) };
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Instantiate, format!("cannot instantiate a chain: {why}"))
        };
        let members = instances.iter().enumerate().map(|(at, i)| member(i, &code, at));
        let members: Vec<_> = members.collect::<std::result::Result<_, _>>().map_err(|why| failed(&why))?;
        let limits = store_limits(members.len(), members.len() + 1);
        let mut store = Store::new(engine.wasmtime(), Team { members, at: 0, limits });
        store.limiter(|team| &mut team.limits);
        store.set_fuel(0).map_err(|e| failed(&e))?;
        let imports = join(&mut store, instances).map_err(|why| failed(&why))?;
        let chain = wasmtime::Instance::new(&mut store, &module, &imports).map_err(|e| failed(&e))?;
        let entry = chain.get_typed_func(&mut store, layout::ENTRY_EXPORT).map_err(|e| failed(&e))?;
        let reads = |i: &usize| context::reads_inputs(instances[*i].reads);
        let readers = (0..instances.len()).filter(reads).collect();
        Ok(Some(Fused { store, entry, readers, prepared: 0 }))
    }

    /// As [`Instance::warm`].
    pub(crate) fn warm(&mut self) {
        self.store.data_mut().members.iter_mut().for_each(|member| member.data.touch());
        prepare_thread();
        if self.store.set_fuel(0).is_ok() {
            let stopped = self.entry.call(&mut self.store, (0, 0));
            debug_assert!(stopped.is_err(), "a call without fuel must not run");
        }
    }

    /// One decision of the whole chain, as if each policy had been asked with what those before it decided.
    ///
    /// # Errors
    /// [`Interrupted`]: those behind the policy that was stopped have not been asked.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        input: &TunerInput<'_>,
        so_far: Decision,
    ) -> std::result::Result<Decision, Box<Interrupted>> {
        let here = thread_pointer();
        if self.prepared != here {
            prepare_thread();
            self.prepared = here;
        }
        let (mut route, mut channels) = words(so_far);
        let result = self.begin(input).and_then(|fuel| {
            self.store.set_fuel(fuel).map_err(|_| stop("the engine counts no fuel"))?;
            let left = self.entry.call(&mut self.store, (route, channels));
            let r0;
            (route, channels, r0) = left.map_err(|e| self.stopped(&e))?;
            Ok(r0 == 0)
        });
        match result {
            Ok(submitted) => {
                let left = self.store.get_fuel().unwrap_or(0);
                if let Some(last) = self.store.data_mut().members.last_mut() {
                    last.finish(left, submitted);
                }
                Ok(decision(route, channels))
            }
            Err(fault) => Err(self.interrupted(*fault, so_far)),
        }
    }

    /// Writes what the policies read, and starts the first.
    #[inline]
    fn begin(&mut self, input: &TunerInput<'_>) -> std::result::Result<u64, Stopped> {
        let team = self.store.data_mut();
        team.at = 0;
        for at in &self.readers {
            let member = &mut team.members[*at];
            let (reads, context) = (member.reads, member.context().ok_or_else(|| stop("no context area"))?);
            context::fill_tuner_inputs(context, reads, input);
        }
        team.members.first_mut().map(Member::start).ok_or_else(|| stop("an empty chain"))
    }

    #[cold]
    fn stopped(&mut self, error: &wasmtime::Error) -> Stopped {
        let left = self.store.get_fuel().unwrap_or(0);
        let team = self.store.data_mut();
        let Some(member) = team.members.get_mut(team.at) else { return stop("the engine failed") };
        member.data.give_back(member.takes);
        let fault = fault(&member.policy, error);
        member.counters.faulted(&fault, (member.limit + member.after).saturating_sub(left));
        Box::new(fault)
    }

    /// What stood before the policy that was stopped is what the last before it that decided left in its context.
    #[cold]
    fn interrupted(&mut self, fault: Fault, so_far: Decision) -> Box<Interrupted> {
        let Team { members, at, .. } = self.store.data_mut();
        let before = members.iter_mut().take(*at).rev().find(|m| m.decides && m.submitted);
        let left = before.and_then(|m| m.context()).map(context::tuner_decision);
        Box::new(Interrupted { at: *at, fault, so_far: left.unwrap_or(so_far) })
    }
}

impl std::fmt::Debug for Fused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fused({} policies)", self.store.data().members.len())
    }
}

fn link(instance: &Instance) -> Link {
    Link { sees: context::reads_decision(instance.reads), decides: instance.policy.decides() }
}

fn member(instance: &Instance, code: &ChainModule, at: usize) -> std::result::Result<Member, String> {
    let (policy, maps) = (&instance.policy, instance.maps());
    let reader = prepare_maps(policy, maps)?;
    Ok(Member {
        data: Data::new(policy, maps, reader),
        policy: policy.clone(),
        counters: Arc::clone(&instance.counters),
        reads: instance.reads,
        limit: instance.fuel,
        grant: instance.fuel + code.before(at) + code.after(at),
        after: code.after(at),
        decides: link(instance).decides,
        submitted: false,
        takes: takes_something(policy),
        began: Began::default(),
    })
}

/// Instantiates the policies; what the chain's module imports, in its order.
fn join(store: &mut Store<Team>, instances: &[&Instance]) -> std::result::Result<Vec<Extern>, String> {
    let mut wanted: Vec<Extern> = vec![Func::wrap(&mut *store, step).into()];
    let mut memories: Vec<Extern> = Vec::new();
    for (at, instance) in instances.iter().enumerate() {
        let imports = imports(store, at, &instance.policy)?;
        // Compiled code checks fuel at entry: a start function, were there one, must not run for free.
        store.set_fuel(instance.fuel).map_err(|e| e.to_string())?;
        let made = wasmtime::Instance::new(&mut *store, instance.policy.module(), &imports);
        let made = made.map_err(|e| e.to_string())?;
        let memory: Memory = made.get_memory(&mut *store, layout::MEMORY_EXPORT).ok_or("no memory")?;
        GuestMemory::attach(store, &memory, |team| &mut team.members[at].data.memory);
        wanted.push(made.get_func(&mut *store, layout::ENTRY_EXPORT).ok_or("no entry")?.into());
        memories.push(memory.into());
    }
    wanted.extend(memories);
    Ok(wanted)
}

/// A decision as the chain's module takes it.
#[inline]
fn words(decision: Decision) -> (i64, i64) {
    let (route, channels) = context::decision_words(decision);
    (route as i64, channels as i64)
}

/// A decision as the chain's module leaves it.
#[inline]
fn decision(route: i64, channels: i64) -> Decision {
    let route = super::route(route as u32, (route as u64 >> 32) as u32);
    Decision { route, channels: NonZeroU32::new(channels as u32) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{COMM, channels, costs, decide, instance_in, map, policy, registry, verified};
    use super::*;
    use crate::decision::{Algo, CostTable, Proto};
    use ringfence_guest::abi::helper;
    use ringfence_translator::wasm::chain::MAX_POLICIES;
    use ringfence_translator::{MapDecl, MapKind};

    /// The same decision of a chain in one store, and of one whose policies are entered one by one.
    fn ask(fused: &mut Fused, so_far: Decision) -> std::result::Result<Decision, Box<Interrupted>> {
        let mut values = costs();
        let table = CostTable::new(&mut values, 7, 3).unwrap();
        let costs = table.costs();
        let (comm, call_seq) = (&COMM, 0x7_0000_0006);
        let (func, n_bytes, num_pipe_ops, reg_buff) = (4, 0x99_aabb_ccdd, 5, true);
        fused.decide(&TunerInput { comm, func, n_bytes, num_pipe_ops, reg_buff, call_seq, costs }, so_far)
    }

    fn set(offset: u32, value: i64) -> String {
        format!("w2 = {value}\n*(u32 *)(r1 + {offset}) = w2\n")
    }

    /// Counts its calls in a map, and adds `add` to the channels so far.
    fn counting(add: u32) -> String {
        format!(
            "r6 = r1\nw2 = 0\n*(u32 *)(r10 - 4) = w2\nr2 = r10\nr2 += -4\nr1 = map[counts] ll\ncall {}\nif r0 == 0 goto out\n\
             r1 = 1\nlock *(u64 *)(r0 + 0) += r1\n\
             w2 = *(u32 *)(r6 + 72)\nw2 += {add}\n*(u32 *)(r6 + 72) = w2\nout:\nr0 = 0\nexit",
            helper::MAP_LOOKUP_ELEM
        )
    }

    const TRAPS: &str = "w2 = 9\n*(u32 *)(r1 + 72) = w2\nr2 = 0\nr0 = *(u64 *)(r2 + 0)\nexit";

    fn links() -> Vec<String> {
        let and = |body: String, r0: i64| format!("{body}r0 = {r0}\nexit");
        vec![
            and(String::new(), 0),
            and(set(72, 7), 1),
            and(set(64, 1) + &set(68, 2), 0),
            and(set(64, 3) + &set(68, 1) + &set(72, 12), -1),
            and(set(64, 7), 0),
            and(set(68, 3) + &set(72, 0), 0),
            and(set(64, -1), 0),
            // Only looks at the decision so far.
            "w2 = *(u32 *)(r1 + 72)\nw0 = 0\nif w2 == 3 goto out\nw0 = 1\nout:\nexit".into(),
            // Reads the inputs and a cost.
            "w2 = *(u32 *)(r1 + 20)\nw3 = *(u32 *)(r1 + 92)\nw2 += w3\n*(u32 *)(r1 + 72) = w2\nr0 = 0\nexit"
                .into(),
            "w3 = 20\nspin:\nw3 += -1\nif w3 != 0 goto spin\nr0 = 0\nexit".into(),
            counting(1),
            counting(3),
        ]
    }

    /// The instances of a chain, not verified, with maps of their own.
    fn apart(texts: &[&str]) -> Vec<Instance> {
        made(policy, texts)
    }

    fn made(policy: fn(Hook, &str, &[MapDecl]) -> PolicyModule, texts: &[&str]) -> Vec<Instance> {
        let (registry, counts) = (registry(), [map("counts", MapKind::Array, 4, 8)]);
        let one = |text: &&str| {
            let maps: &[_] = if text.contains("map[") { &counts } else { &[] };
            instance_in(&registry, &policy(Hook::Tuner, text, maps))
        };
        texts.iter().map(one).collect()
    }

    fn one_by_one(chain: &mut [Instance], mut decision: Decision) -> Decision {
        for instance in chain {
            decision = decide(instance, decision).unwrap_or(decision);
        }
        decision
    }

    /// What policies, maps and counters show, but for the fuel of calls that were stopped.
    fn seen(chain: &[Instance]) -> Vec<(crate::metrics::Snapshot, Option<u64>)> {
        let count =
            |i: &Instance| i.maps().at(0).and_then(|m| m.bytes().load(m.value_offset(0, 0) as usize / 8));
        chain.iter().map(|i| (i.counters(), count(i))).collect()
    }

    #[test]
    fn a_chain_in_one_store_is_the_chain() {
        let links = links();
        let mut seed = 0x1234_5678_9abc_def1_u64;
        let mut random = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as usize % n
        };
        for round in 0..100 {
            // What is proved of verified ones leaves out what they do not need.
            let policy = if round % 2 == 0 { policy } else { verified };
            let texts: Vec<&str> = (0..2 + random(6)).map(|_| links[random(links.len())].as_str()).collect();
            let (mut alone, together) = (made(policy, &texts), made(policy, &texts));
            let fused = match round % 2 {
                0 => Fused::of(&together.iter().collect::<Vec<_>>()),
                _ => Fused::new(together.iter()),
            };
            let mut fused = fused.unwrap().expect("such chains are fused");
            fused.warm();
            for call in 0..40 {
                let route =
                    [None, Some((Algo::Tree, Proto::Ll)), Some((Algo::Pat, Proto::Simple))][random(3)];
                let so_far = Decision { route, channels: channels(random(4) as u32) };
                let want = one_by_one(&mut alone, so_far);
                assert_eq!(ask(&mut fused, so_far).unwrap(), want, "round {round}, call {call}: {texts:#?}");
            }
            assert_eq!(seen(&together), seen(&alone), "round {round}: {texts:#?}");
        }
    }

    #[test]
    fn a_policy_that_is_stopped_is_named_with_what_stood_before_it() {
        let links = links();
        for place in 0..3 {
            let mut texts = [links[10].as_str(), &links[2], &links[11]];
            texts[place] = TRAPS;
            let (mut alone, together) = (apart(&texts), apart(&texts));
            let mut fused = Fused::of(&together.iter().collect::<Vec<_>>()).unwrap().unwrap();
            let so_far = Decision { route: Some((Algo::Tree, Proto::Ll)), channels: channels(2) };
            let before = one_by_one(&mut alone[..place], so_far);
            let fault = decide(&mut alone[place], before).unwrap_err();
            let interrupted = ask(&mut fused, so_far).unwrap_err();
            assert_eq!((interrupted.at, interrupted.so_far), (place, before));
            assert_eq!(interrupted.fault, fault);
            // Those behind it were not asked, and the next call is like the first.
            assert_eq!(seen(&together), seen(&alone), "{place}");
            assert_eq!(ask(&mut fused, so_far).unwrap_err().at, place);
        }
    }

    #[test]
    fn a_loop_without_end_ends() {
        let spins = "spin:\nr0 = 0\ngoto spin";
        let together = apart(&["r0 = 0\nexit", spins, "r0 = 0\nexit"]);
        let mut fused = Fused::of(&together.iter().collect::<Vec<_>>()).unwrap().unwrap();
        let interrupted = ask(&mut fused, Decision::DEFER).unwrap_err();
        assert_eq!((interrupted.at, interrupted.fault), (1, Fault::OutOfFuel));
        let calls: Vec<_> = together.iter().map(|i| (i.counters().calls, i.counters().out_of_fuel)).collect();
        assert_eq!(calls, [(1, 0), (1, 1), (0, 0)]);
    }

    #[test]
    fn what_would_not_gain_or_not_keep_its_fuel_stays_apart() {
        let fused = |chain: &[Instance]| Fused::new(chain.iter()).unwrap().is_some();
        assert!(!fused(&[]));
        // Not proved, so not fused outside of these tests.
        assert!(!fused(&apart(&["r0 = 0\nexit"; 3])));
        let two = apart(&["r0 = 0\nexit"; 2]);
        assert!(Fused::of(&[&two[0]]).unwrap().is_none(), "one policy");
        let many = apart(&["r0 = 0\nexit"; MAX_POLICIES + 1]);
        assert!(Fused::of(&many.iter().collect::<Vec<_>>()).unwrap().is_none());
    }
}
