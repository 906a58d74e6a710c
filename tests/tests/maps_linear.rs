//! Operations of many threads on one map are linearizable, key by key: each takes effect at one moment between its call and
//! its return. Histories are recorded under load and given to a checker (Wing and Gong, "Testing and verifying concurrent objects", 1993; with
//! Lowe's memory of states that were tried, 2017). Keys are independent of each other as long as the map is not full, which
//! it never is here; so each key's history is checked alone.
//!
//! `RINGFENCE_LINEAR_ROUNDS=N` and `RINGFENCE_LINEAR_SEED=N` change the run; `make soak` takes 5000 rounds.

use ringfence_host::maps::{DEFAULT_MAP_BYTES, Errno, Map, MapSet, Owner};
use ringfence_host::{Engine, Instance, Limits, MapRegistry, PolicyModule, ScopeRules};
use ringfence_soak::Random;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, MapDecl, MapKind, Translator};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

/// What was asked and what was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// The value, if there was one.
    Get(Option<u64>),
    /// `map_update_elem`: value, flags, error code.
    Set(u64, u64, i64),
    /// `map_delete_elem`: error code.
    Delete(i64),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    op: Op,
    call: u64,
    back: u64,
}

impl Op {
    /// What the key holds after it, if it answers so for what the key held before; `None` if it would not.
    fn after(self, held: Option<u64>) -> Option<Option<u64>> {
        let (answer, then) = match (self, held) {
            (Op::Get(seen), _) => return (seen == held).then_some(held),
            (Op::Set(_, 1, _), Some(_)) => (Errno::EXIST.code(), held),
            (Op::Set(_, 2, _), None) => (Errno::NOENT.code(), held),
            (Op::Set(value, ..), _) => (0, Some(value)),
            (Op::Delete(_), None) => (Errno::NOENT.code(), None),
            (Op::Delete(_), Some(_)) => (0, None),
        };
        match self {
            Op::Set(_, _, code) | Op::Delete(code) if code != answer => None,
            _ => Some(then),
        }
    }
}

/// Is there an order of these operations on one key, each between its call and its return, in which all answers are right?
fn linearizable(events: &[Event]) -> bool {
    let mut events = events.to_vec();
    events.sort_by_key(|e| e.call);
    // A history with a hundred operations in flight at a time cannot occur with a few threads; states are (done, held).
    let mut seen: HashSet<(Vec<u64>, Option<u64>)> = HashSet::new();
    let mut stack = vec![(vec![0u64; events.len().div_ceil(64)], None, 0usize)];
    while let Some((done, held, first)) = stack.pop() {
        let is_done = |i: usize| done[i / 64] >> (i % 64) & 1 != 0;
        let first = (first..events.len()).find(|i| !is_done(*i)).unwrap_or(events.len());
        if first == events.len() {
            return true;
        }
        // Next may be whatever was called before the first of those left returned.
        let left = || (first..events.len()).filter(|i| !is_done(*i));
        let until = left().map(|i| events[i].back).min().unwrap_or(u64::MAX);
        for i in left().take_while(|i| events[*i].call < until) {
            let Some(then) = events[i].op.after(held) else { continue };
            let mut next = done.clone();
            next[i / 64] |= 1 << (i % 64);
            if seen.insert((next.clone(), then)) {
                stack.push((next, then, first));
            }
        }
    }
    false
}

/// One operation on map `m`: context words 0 (0 look up, 1 update, 2 delete), 1 (key), 2 (value, also out), 3 (flags).
const PROGRAM: &str = "
    r6 = r1
    r7 = *(u64 *)(r1 + 0)
    r2 = *(u64 *)(r1 + 8)
    *(u64 *)(r10 - 8) = r2
    r2 = *(u64 *)(r1 + 16)
    *(u64 *)(r10 - 16) = r2
    r4 = *(u64 *)(r1 + 24)
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    if r7 == 1 goto update
    if r7 == 2 goto delete
    call map_lookup_elem
    if r0 == 0 goto none
    r0 = *(u64 *)(r0 + 0)
    *(u64 *)(r6 + 16) = r0
    r0 = 1
none:
    exit
update:
    r3 = r10
    r3 += -16
    call map_update_elem
    exit
delete:
    call map_delete_elem
    exit";

/// Who does the operations of a thread: the host from outside, or a policy through helpers and pointers.
enum Side<'a> {
    Host(&'a Map),
    Policy(Box<Instance>),
}

impl Side<'_> {
    fn run(instance: &mut Instance, words: [u64; 4]) -> (i64, u64) {
        let mut ctx: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let r0 = instance.run_generic(&mut ctx).expect("no fault") as i64;
        (r0, u64::from_le_bytes(ctx[16..24].try_into().unwrap()))
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        match self {
            Side::Host(map) => {
                map.lookup(&key.to_le_bytes()).map(|v| u64::from_le_bytes(v.try_into().unwrap()))
            }
            Side::Policy(instance) => {
                let (found, value) = Side::run(instance, [0, key, 0, 0]);
                (found == 1).then_some(value)
            }
        }
    }

    fn set(&mut self, key: u64, value: u64, flags: u64) -> i64 {
        match self {
            Side::Host(map) => code(map.update(&key.to_le_bytes(), &value.to_le_bytes(), flags)),
            Side::Policy(instance) => Side::run(instance, [1, key, value, flags]).0,
        }
    }

    fn delete(&mut self, key: u64) -> i64 {
        match self {
            Side::Host(map) => code(map.delete(&key.to_le_bytes())),
            Side::Policy(instance) => Side::run(instance, [2, key, 0, 0]).0,
        }
    }
}

fn code(done: Result<(), Errno>) -> i64 {
    done.map_or_else(Errno::code, |()| 0)
}

/// A map, and a policy that uses it.
struct World {
    module: PolicyModule,
    maps: MapSet,
}

impl World {
    fn new(kind: MapKind, max_entries: u32) -> World {
        let decl =
            MapDecl { name: "m".into(), kind, key_size: 8, value_size: 8, max_entries, ..MapDecl::default() };
        let program = assemble(PROGRAM, &[decl]).expect("assembles");
        let verified = Verifier::new(Arc::new(Env::generic(32))).verify(program).expect("is accepted");
        let engine = Engine::global().expect("an engine");
        let module = Translator::new().translate(&verified).expect("translates");
        let module = PolicyModule::compile(engine, module).expect("compiles");
        let owner = Owner { policy: "p".into(), communicator: 0 };
        let registry = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
        let maps = registry.resolve(module.maps(), &ScopeRules::default(), &owner).expect("maps");
        World { module, maps }
    }

    fn map(&self) -> &Map {
        self.maps.get("m").expect("the map")
    }

    /// Of thread `n`: every second one is a policy.
    fn side(&self, n: u64) -> Side<'_> {
        if n.is_multiple_of(2) {
            return Side::Host(self.map());
        }
        let instance = Instance::new(&self.module, &self.maps.for_communicator(n), Limits::default());
        Side::Policy(Box::new(instance.expect("an instance")))
    }
}

/// `threads` threads, each with so many operations on a few keys; by key. An operation that gave up (`EBUSY`) did nothing, and is
/// left out.
fn record(world: &World, threads: u64, ops: u64, keys: u64, seed: u64) -> BTreeMap<u64, Vec<Event>> {
    let (clock, start) = (AtomicU64::new(0), Barrier::new(threads as usize));
    let one = |thread: u64| {
        let mut r = Random::new(seed * 1000 + thread);
        let (mut mine, mut side) = (Vec::new(), world.side(thread));
        start.wait();
        for n in 0..ops {
            let (key, what) = (r.below(keys), r.below(6));
            // No two operations write the same value.
            let (value, flags) = (((thread + 1) << 32) | (n + 1), [0, 0, 1, 2][r.below(4) as usize]);
            let call = clock.fetch_add(1, SeqCst);
            let op = match what {
                0..3 => Op::Get(side.get(key)),
                3 => Op::Delete(side.delete(key)),
                _ => Op::Set(value, flags, side.set(key, value, flags)),
            };
            let back = clock.fetch_add(1, SeqCst);
            let busy = Errno::BUSY.code();
            if !matches!(op, Op::Delete(e) | Op::Set(_, _, e) if e == busy) {
                mine.push((key, Event { op, call, back }));
            }
        }
        mine
    };
    let mut by_key: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    std::thread::scope(|s| {
        let one = &one;
        let threads: Vec<_> = (0..threads).map(|t| s.spawn(move || one(t))).collect();
        for (key, event) in threads.into_iter().flat_map(|t| t.join().unwrap()) {
            by_key.entry(key).or_default().push(event);
        }
    });
    by_key
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[test]
fn hashes_are_linearizable_under_load() {
    let (rounds, seed) = (setting("RINGFENCE_LINEAR_ROUNDS", 60), setting("RINGFENCE_LINEAR_SEED", 1));
    let (mut operations, mut overlapping) = (0, 0);
    for round in 0..rounds {
        for kind in [MapKind::Hash, MapKind::LruHash] {
            // One bucket for all keys, or one for each.
            let (threads, keys, entries) = [(4, 3, 4), (8, 8, 64), (3, 2, 8)][round as usize % 3];
            let world = World::new(kind, entries.max(keys as u32));
            for (key, events) in record(&world, threads, 400, keys, seed + round) {
                assert!(linearizable(&events), "{kind:?}, seed {}, key {key}: {events:?}", seed + round);
                operations += events.len();
                overlapping += events.iter().filter(|e| e.back > e.call + 1).count();
            }
        }
    }
    println!("{operations} operations, {overlapping} of them beside others");
    assert!(overlapping > 0, "nothing ran at the same time: the test shows nothing");
}

fn event(op: Op, call: u64, back: u64) -> Event {
    Event { op, call, back }
}

/// The checker accepts what is right and refuses what is wrong.
#[test]
fn the_checker_tells_right_from_wrong() {
    use Op::*;
    let right: &[&[Event]] = &[
        &[],
        &[
            event(Set(1, 0, 0), 0, 1),
            event(Get(Some(1)), 2, 3),
            event(Delete(0), 4, 5),
            event(Get(None), 6, 7),
        ],
        // A look-up beside an update may see either.
        &[
            event(Set(1, 0, 0), 0, 1),
            event(Set(2, 0, 0), 2, 9),
            event(Get(Some(1)), 3, 4),
            event(Get(Some(2)), 5, 6),
        ],
        &[event(Set(1, 1, 0), 0, 5), event(Set(2, 1, -17), 1, 4), event(Get(Some(1)), 6, 7)],
        // Both deletions beside one insertion: one before it, one after.
        &[event(Set(1, 0, 0), 0, 9), event(Delete(-2), 1, 2), event(Delete(0), 3, 4)],
    ];
    for (i, history) in right.iter().enumerate() {
        assert!(linearizable(history), "{i}");
    }
    let wrong: &[&[Event]] = &[
        &[event(Get(Some(1)), 0, 1)],
        // A stale look-up.
        &[event(Set(1, 0, 0), 0, 1), event(Set(2, 0, 0), 2, 3), event(Get(Some(1)), 4, 5)],
        // A look-up that misses a key which is there all the while.
        &[event(Set(1, 0, 0), 0, 1), event(Set(2, 0, 0), 2, 9), event(Get(None), 3, 4)],
        // New, then old again.
        &[
            event(Set(1, 0, 0), 0, 1),
            event(Set(2, 0, 0), 2, 9),
            event(Get(Some(2)), 3, 4),
            event(Get(Some(1)), 5, 6),
        ],
        // Created twice, deleted twice.
        &[event(Set(1, 1, 0), 0, 5), event(Set(2, 1, 0), 1, 4)],
        &[event(Set(1, 0, 0), 0, 1), event(Delete(0), 2, 5), event(Delete(0), 3, 4)],
        // Replaced where nothing was.
        &[event(Set(1, 2, 0), 0, 1)],
        // An update that says that it is there, when it is not.
        &[event(Set(1, 1, -17), 0, 1)],
        // A lost update.
        &[event(Set(1, 0, 0), 0, 1), event(Delete(-2), 2, 3)],
    ];
    for (i, history) in wrong.iter().enumerate() {
        assert!(!linearizable(history), "{i}");
    }
}

/// And a map that is not linearizable is found out: look-ups that come an update too late.
#[test]
fn the_checker_finds_a_stale_map() {
    let world = World::new(MapKind::Hash, 64);
    let mut found = false;
    for seed in 0..5 {
        for mut events in record(&world, 4, 400, 2, seed).into_values() {
            events.sort_by_key(|e| e.call);
            let mut last = None;
            for e in &mut events {
                if let Op::Get(seen) = &mut e.op {
                    std::mem::swap(seen, &mut last);
                }
            }
            found |= !linearizable(&events);
        }
    }
    assert!(found);
}
