//! Callbacks, ring buffers, spin locks and tail calls, end to end: verified, run by the reference interpreter and in
//! wasmtime, with the same results, contexts, maps and records.

use ringfence_host::maps::{DEFAULT_MAP_BYTES, Map, MapSet, Owner};
use ringfence_host::{Engine, Fault, Instance, Limits, MapRegistry, PolicyModule, ScopeRules};
use ringfence_translator::interp::Interp;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, MapDecl, MapKind, Program, Translator};
use std::sync::Arc;

const CTX: u32 = 64;

fn map(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> MapDecl {
    MapDecl { name: name.into(), kind, key_size, value_size, max_entries, ..MapDecl::default() }
}

fn ring(bytes: u32) -> MapDecl {
    map("rb", MapKind::RingBuf, 0, 0, bytes)
}

/// A policy with its maps.
struct Policy {
    program: Program,
    module: PolicyModule,
    maps: MapSet,
}

impl Policy {
    fn new(text: &str, maps: &[MapDecl]) -> Policy {
        Policy::of(assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}")), text)
    }

    fn of(program: Program, text: &str) -> Policy {
        let verified = Verifier::new(Arc::new(Env::generic(CTX))).verify(program.clone());
        let verified = verified.unwrap_or_else(|e| panic!("{e}\n{text}"));
        let module = Translator::new().translate(&verified).unwrap();
        let engine = Engine::global().unwrap();
        let module = PolicyModule::compile(engine, module).unwrap();
        let owner = Owner { policy: "p".into(), communicator: 0 };
        let registry = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
        let maps = registry.resolve(module.maps(), &ScopeRules::default(), &owner).unwrap();
        Policy { program, module, maps }
    }

    fn instance(&self, fuel: Option<u64>) -> Instance {
        Instance::new(&self.module, &self.maps, Limits { fuel }).unwrap()
    }

    fn map(&self, name: &str) -> &Arc<Map> {
        self.maps.get(name).unwrap()
    }
}

fn ctx(words: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.resize(CTX as usize, 0);
    bytes
}

/// What both runs gave: r0 and the context. Maps were filled by `fill`, and are compared too.
fn run_filled(
    text: &str,
    maps: &[MapDecl],
    words: &[u64],
    fill: &[(&str, Vec<u8>, Vec<u8>)],
) -> (u64, Vec<u64>) {
    let policy = Policy::new(text, maps);
    let mut interp = Interp::new(&policy.program, ctx(words)).budget(100_000_000);
    for (name, key, value) in fill {
        policy.map(name).update(key, value, 0).unwrap();
        let of = interp.memory_mut().maps_mut().iter_mut().find(|m| m.decl().name == *name);
        of.unwrap().update(key, value, 0).unwrap();
    }
    let want = interp.run().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut bytes = ctx(words);
    // The proved bound is the limit: it must do.
    let got = policy.instance(None).run_generic(&mut bytes).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!((got, &bytes[..]), (want, interp.memory().ctx()), "{text}");
    compare_maps(&policy, &mut interp, text);
    let words = bytes.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
    (got, words)
}

fn compare_maps(policy: &Policy, interp: &mut Interp<'_>, text: &str) {
    for of in interp.memory_mut().maps_mut() {
        let host = policy.map(&of.decl().name.clone());
        if of.decl().kind == MapKind::RingBuf {
            let mut records = Vec::new();
            host.drain(usize::MAX, |r| records.push(r.to_vec()));
            assert_eq!(records, of.drain(), "{text}");
            continue;
        }
        for (key, value) in host.entries() {
            assert_eq!(of.value(&key), Some(&value[..]), "{text}");
        }
        assert_eq!(
            of.keys().iter().flatten().count() as u32,
            if of.decl().kind.is_hash() { host.len() } else { 0 }
        );
    }
}

fn run(text: &str, maps: &[MapDecl], words: &[u64]) -> (u64, Vec<u64>) {
    run_filled(text, maps, words, &[])
}

const SUM: &str = "
    r6 = r1
    *(u64 *)(r10 - 8) = 0
    r4 = *(u64 *)(r1 + 8)
    r1 = *(u64 *)(r1 + 0)
    r2 = fn add ll
    r3 = r10
    r3 += -8
    call loop
    r1 = *(u64 *)(r10 - 8)
    *(u64 *)(r6 + 16) = r1
    exit
fn add:
    r3 = *(u64 *)(r2 + 0)
    r3 += r1
    *(u64 *)(r2 + 0) = r3
    r0 = 0
    if r1 != 5000 goto +1
    r0 = 1
    exit";

#[test]
fn loops_go_round_as_often_as_asked() {
    let sum = |n: u64, flags: u64| {
        let (r0, ctx) = run(SUM, &[], &[n, flags]);
        (r0 as i64, ctx[2])
    };
    assert_eq!(sum(0, 0), (0, 0));
    assert_eq!(sum(1, 0), (1, 0));
    assert_eq!(sum(100, 0), (100, 4950));
    // A callback that gives 1 ends it, and its lap counts.
    assert_eq!(sum(1 << 23, 0), (5001, 5000 * 5001 / 2));
    assert_eq!(sum((1 << 23) + 1, 0), (-7, 0));
    assert_eq!(sum(3, 1), (-22, 0));
    assert_eq!(sum((1 << 40) + 3, 0), (3, 3), "the number of laps has 32 bits");
}

#[test]
fn loops_nest_and_keep_the_callers_registers() {
    let text = "
        r6 = r1
        r7 = 7
        *(u64 *)(r10 - 8) = 0
        r1 = 30
        r2 = fn outer ll
        r3 = r10
        r3 += -8
        r4 = 0
        call loop
        r1 = *(u64 *)(r10 - 8)
        r1 += r7
        *(u64 *)(r6 + 0) = r1
        exit
    fn outer:
        r7 = 1000
        r3 = r2
        r2 = fn inner ll
        r4 = 0
        call loop
        r0 = 0
        exit
    fn inner:
        r7 = 9
        r3 = *(u64 *)(r2 + 0)
        r3 += 1
        *(u64 *)(r2 + 0) = r3
        r0 = 0
        exit";
    let (r0, ctx) = run(text, &[], &[]);
    assert_eq!((r0, ctx[0]), (30, 30 * 29 / 2 + 7));
}

#[test]
fn which_function_may_be_decided_at_run_time() {
    let text = "
        r6 = r1
        r7 = fn one ll
        r2 = *(u64 *)(r1 + 0)
        if r2 == 0 goto +2
        r7 = fn two ll
        *(u64 *)(r10 - 8) = 0
        r1 = 10
        r2 = r7
        r3 = r10
        r3 += -8
        r4 = 0
        call loop
        r0 = *(u64 *)(r10 - 8)
        exit
    fn one:
        r3 = *(u64 *)(r2 + 0)
        r3 += 1
        *(u64 *)(r2 + 0) = r3
        r0 = 0
        exit
    fn two:
        r3 = *(u64 *)(r2 + 0)
        r3 += 2
        *(u64 *)(r2 + 0) = r3
        r0 = 0
        exit";
    assert_eq!((run(text, &[], &[0]).0, run(text, &[], &[1]).0), (10, 20));
}

const WALK: &str = "
    r6 = r1
    *(u64 *)(r10 - 8) = 0
    *(u64 *)(r10 - 16) = 0
    r4 = *(u64 *)(r1 + 0)
    r1 = map[m] ll
    r2 = fn visit ll
    r3 = r10
    r3 += -16
    call for_each_map_elem
    r1 = *(u64 *)(r10 - 16)
    *(u64 *)(r6 + 8) = r1
    r1 = *(u64 *)(r10 - 8)
    *(u64 *)(r6 + 16) = r1
    exit
fn visit:
    r2 = *(u32 *)(r2 + 0)
    r1 = *(u64 *)(r4 + 0)
    r1 += r2
    *(u64 *)(r4 + 0) = r1
    r1 = *(u64 *)(r4 + 8)
    r5 = *(u64 *)(r3 + 16)
    r1 += r5
    *(u64 *)(r4 + 8) = r1
    r5 += 1
    *(u64 *)(r3 + 16) = r5
    r0 = 0
    if r2 != 40 goto +1
    r0 = 1
    exit";

#[test]
fn each_entry_of_a_map_is_visited_once() {
    let key = |k: u32| k.to_le_bytes().to_vec();
    let value = |v: u64| [[0; 16].to_vec(), v.to_le_bytes().to_vec()].concat();
    for kind in [MapKind::Array, MapKind::Hash] {
        let maps = [map("m", kind, 4, 24, 20)];
        let fill: Vec<_> = (0..12).map(|k| ("m", key(k), value(100 + u64::from(k)))).collect();
        let visited = if kind == MapKind::Array { 20 } else { 12 };
        let keys: u64 = (0..visited).sum();
        let (r0, ctx) = run_filled(WALK, &maps, &[0], &fill);
        assert_eq!((r0, ctx[1], ctx[2]), (visited, keys, 12 * 100 + 66), "{kind:?}");
        assert_eq!(run_filled(WALK, &maps, &[1], &fill).0 as i64, -22);
    }
    let stop: Vec<_> = [1, 40, 2].map(|k| ("m", key(k), value(1))).to_vec();
    assert_eq!(run_filled(WALK, &[map("m", MapKind::Hash, 4, 24, 20)], &[0], &stop).0, 2);
    assert_eq!(run(WALK, &[map("m", MapKind::Hash, 4, 24, 20)], &[0]).0, 0);
}

/// A walk may delete what it visits, and add to it; keys of several words come whole.
#[test]
fn a_walk_bears_changes() {
    let text = "
        r1 = map[m] ll
        r2 = fn visit ll
        r3 = 0
        r4 = 0
        call for_each_map_elem
        exit
    fn visit:
        r6 = *(u64 *)(r2 + 16)
        r3 = *(u64 *)(r3 + 0)
        if r3 == r6 goto +2
        r0 = 1
        exit
        call map_delete_elem
        r0 = 0
        exit";
    let maps = [map("m", MapKind::Hash, 24, 8, 50)];
    let word = |k: u64| k.to_le_bytes().to_vec();
    let fill: Vec<_> = (0..50).map(|k| ("m", [word(1), word(2), word(k)].concat(), word(k))).collect();
    assert_eq!(run_filled(text, &maps, &[], &fill).0, 50);
}

/// The map of a walk may be one or the other.
#[test]
fn which_map_may_be_decided_at_run_time() {
    let text = "
        r5 = *(u64 *)(r1 + 0)
        r1 = map[a] ll
        if r5 == 0 goto +2
        r1 = map[h] ll
        r2 = fn visit ll
        r3 = 0
        r4 = 0
        call for_each_map_elem
        exit
    fn visit:
        *(u64 *)(r3 + 0) = 5
        r0 = 0
        exit";
    let maps = [map("a", MapKind::Array, 4, 8, 3), map("h", MapKind::Hash, 8, 8, 9)];
    let fill = [("h", vec![1; 8], vec![0; 8])];
    assert_eq!(run_filled(text, &maps, &[0], &fill).0, 3);
    assert_eq!(run_filled(text, &maps, &[1], &fill).0, 1);
}

const RECORDS: &str = "
    r7 = r1
    r6 = 0
again:
    r1 = map[rb] ll
    r2 = 24
    r3 = 0
    call ringbuf_reserve
    if r0 == 0 goto full
    *(u64 *)(r0 + 0) = r6
    *(u64 *)(r0 + 8) = r6
    *(u64 *)(r0 + 16) = r6
    r1 = r0
    r2 = 0
    r3 = r6
    r3 &= 1
    if r3 != 0 goto drop
    call ringbuf_submit
    goto next
drop:
    call ringbuf_discard
next:
    r6 += 1
    if r6 < 1000 goto again
full:
    *(u64 *)(r7 + 0) = r6
    r1 = map[rb] ll
    r2 = r7
    r3 = *(u8 *)(r7 + 8)
    if r3 > 64 goto out
    r4 = *(u64 *)(r7 + 16)
    call ringbuf_output
    *(u64 *)(r7 + 24) = r0
    r1 = map[rb] ll
    r2 = 0
    call ringbuf_query
    *(u64 *)(r7 + 32) = r0
out:
    r0 = 0
    exit";

#[test]
fn records_reach_the_host_in_order() {
    // 32 bytes each: one less than half of them fit, for the last byte stays free.
    let (_, ctx) = run(RECORDS, &[ring(4096)], &[0, 24, 0]);
    assert_eq!((ctx[0], ctx[3] as i64, ctx[4]), (127, -11, 127 * 32));
    let (_, ctx) = run(RECORDS, &[ring(1 << 16)], &[0, 16, 0]);
    assert_eq!((ctx[0], ctx[3], ctx[4]), (1000, 0, 1000 * 32 + 24));
    assert_eq!(run(RECORDS, &[ring(1 << 16)], &[0, 16, 4]).1[3] as i64, -22);
    assert_eq!(run(RECORDS, &[ring(1 << 16)], &[0, 0, 1]).1[3], 0);
}

#[test]
fn a_ring_goes_round() {
    let text = "
        r6 = r1
        r1 = map[rb] ll
        r2 = r6
        r3 = *(u8 *)(r6 + 0)
        if r3 > 64 goto out
        r4 = 0
        call ringbuf_output
        exit
    out:
        r0 = 0
        exit";
    let policy = Policy::new(text, &[ring(4096)]);
    let mut instance = policy.instance(None);
    let mut lens = 0..;
    for round in 0..2000u64 {
        let len = [1, 64, 17, 8, 0][round as usize % 5];
        let mut bytes = ctx(&[len, round]);
        assert_eq!(instance.run_generic(&mut bytes), Ok(0));
        if round % 7 != 6 {
            continue;
        }
        // Bounded: what fits into 100 bytes, and at least one.
        while policy.map("rb").drain(100, |record| {
            let expect = lens.next().unwrap();
            let len = [1, 64, 17, 8, 0][expect as usize % 5];
            assert_eq!(record.len(), len);
            assert_eq!(record, &ctx(&[len as u64, expect])[..len]);
        }) > 0
        {}
    }
    assert_eq!(policy.map("rb").dropped(), 0);
    assert!(lens.start >= 1995);
}

fn locked(offset: u32) -> MapDecl {
    MapDecl { spin_lock: Some(offset), ..map("m", MapKind::Array, 4, 16, 2) }
}

/// Adds to words 1 of a value under its lock, with a loop between lock and unlock.
const LOCKED: &str = "
    r7 = *(u32 *)(r1 + 0)
    *(u32 *)(r10 - 4) = 1
    r2 = r10
    r2 += -4
    r1 = map[m] ll
    call map_lookup_elem
    if r0 == 0 goto out
    r6 = r0
    r1 = r6
    call spin_lock
    if r7 > 1000 goto unlock
again:
    if r7 == 0 goto unlock
    r1 = *(u64 *)(r6 + 8)
    r1 += 1
    *(u64 *)(r6 + 8) = r1
    r7 -= 1
    goto again
unlock:
    r1 = r6
    call spin_unlock
out:
    r0 = 0
    exit";

#[test]
fn a_lock_keeps_others_out() {
    let policy = Policy::new(LOCKED, &[locked(0)]);
    let threads = 4;
    std::thread::scope(|s| {
        for _ in 0..threads {
            let mut instance = policy.instance(None);
            s.spawn(move || {
                for _ in 0..500 {
                    assert_eq!(instance.run_generic(&mut ctx(&[100])), Ok(0));
                }
            });
        }
    });
    let value = policy.map("m").lookup(&[1, 0, 0, 0]).unwrap();
    assert_eq!(value[8..], (threads * 500 * 100u64).to_le_bytes());
    assert_eq!(value[..4], [0; 4]);
    assert_eq!(run(LOCKED, &[locked(0)], &[77]).0, 0);
}

/// A policy that is stopped while it holds a lock or a record does not keep others from them.
#[test]
fn what_a_stopped_call_holds_is_given_back() {
    let policy = Policy::new(LOCKED, &[locked(0)]);
    let mut starved = policy.instance(Some(1000));
    assert_eq!(starved.run_generic(&mut ctx(&[1000])), Err(Fault::OutOfFuel));
    assert_ne!(policy.map("m").lookup(&[1, 0, 0, 0]).unwrap()[8..], [0; 8], "it had begun");
    assert_eq!(policy.instance(None).run_generic(&mut ctx(&[1])), Ok(0));
    let text = "
        r7 = *(u16 *)(r1 + 0)
        r1 = map[rb] ll
        r2 = 8
        r3 = 0
        call ringbuf_reserve
        if r0 == 0 goto out
        *(u64 *)(r0 + 0) = r7
    again:
        if r7 == 0 goto submit
        r7 -= 1
        goto again
    submit:
        r1 = r0
        r2 = 0
        call ringbuf_submit
    out:
        r0 = 0
        exit";
    let policy = Policy::new(text, &[ring(4096)]);
    assert_eq!(policy.instance(Some(1000)).run_generic(&mut ctx(&[60_000])), Err(Fault::OutOfFuel));
    assert_eq!(policy.instance(None).run_generic(&mut ctx(&[7])), Ok(0));
    let mut records = Vec::new();
    assert_eq!(policy.map("rb").drain(100, |r| records.push(r.to_vec())), 1);
    assert_eq!(records, [7u64.to_le_bytes()]);
}

/// Updates by helper and by the host leave the lock alone, and nobody sees it.
#[test]
fn updates_do_not_touch_the_lock() {
    let text = "
        r6 = map[m][0] + 4 ll
        *(u64 *)(r10 - 16) = -1
        *(u64 *)(r10 - 8) = -1
        *(u32 *)(r10 - 20) = 0
        r1 = map[m] ll
        r2 = r10
        r2 += -20
        r3 = r10
        r3 += -16
        r4 = 0
        call map_update_elem
        r1 = r6
        call spin_lock
        r1 = map[m][0] + 8 ll
        r7 = *(u32 *)(r1 + 0)
        r1 = map[m][0] + 4 ll
        call spin_unlock
        r0 = r7
        exit";
    assert_eq!(run(text, &[locked(4)], &[]).0, 0xffff_ffff);
    let policy = Policy::new(text, &[locked(4)]);
    policy.map("m").update(&[0; 4], &[0xaa; 16], 0).unwrap();
    let value = policy.map("m").lookup(&[0; 4]).unwrap();
    assert_eq!(value, [[0xaa; 4], [0; 4], [0xaa; 4], [0xaa; 4]].concat());
    assert_eq!(policy.instance(None).run_generic(&mut ctx(&[])), Ok(0xffff_ffff));
}

/// What both runs gave for a program with targets in the slots of `p`.
fn run_tails(text: &str, maps: &[MapDecl], slots: &[Option<&str>], words: &[u64]) -> (u64, Vec<u64>) {
    let program = assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let policy = Policy::of(program.with_targets("p", slots).unwrap(), text);
    let mut interp = Interp::new(&policy.program, ctx(words));
    let want = interp.run().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut instance = policy.instance(None);
    for _ in 0..2 {
        // The second run counts anew.
        let mut bytes = ctx(words);
        let got = instance.run_generic(&mut bytes).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!((got, &bytes[..]), (want, interp.memory().ctx()), "{text}");
    }
    let words = interp.memory().ctx().chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    (want, words.collect())
}

#[test]
fn a_tail_call_goes_on_in_the_program_of_its_slot() {
    let text = "
        r3 = *(u64 *)(r1 + 0)
        r2 = map[p] ll
        call tail_call
        r0 = 99
        exit
    fn one:
        *(u64 *)(r1 + 8) = 1
        r0 = r2
        exit
    fn two:
        r6 = r1
        call fn help
        *(u64 *)(r6 + 8) = r0
        r0 = 2
        exit
    fn help:
        *(u64 *)(r10 - 8) = 77
        r0 = *(u64 *)(r10 - 8)
        exit";
    let maps = [map("p", MapKind::ProgArray, 4, 4, 8)];
    let at = |slot: u64| {
        let (r0, ctx) = run_tails(text, &maps, &[None, Some("one"), Some("two")], &[slot]);
        (r0, ctx[1])
    };
    assert_eq!((at(0), at(3), at(8)), ((99, 0), (99, 0), (99, 0)));
    // r2 is the size of the buffer, as at any entry.
    assert_eq!((at(1), at(2)), ((64, 1), (2, 77)));
    assert_eq!(at((1 << 32) + 1), (64, 1), "the slot has 32 bits");
}

/// A program that goes on in itself does so 33 times.
#[test]
fn tail_calls_are_counted() {
    let text = "
        r6 = r1
        r2 = *(u64 *)(r1 + 8)
        r2 += 1
        *(u64 *)(r1 + 8) = r2
        r2 = map[p] ll
        r3 = 0
        call tail_call
        r0 = *(u64 *)(r6 + 8)
        exit";
    let maps = [map("p", MapKind::ProgArray, 4, 4, 1)];
    assert_eq!(run_tails(text, &maps, &[Some("main")], &[]).0, 34);
}

#[test]
fn a_tail_call_without_a_target_comes_back() {
    let text = "
        r6 = r1
        r2 = map[p] ll
        r3 = 1
        call tail_call
        r0 = *(u64 *)(r6 + 0)
        exit";
    assert_eq!(run(text, &[map("p", MapKind::ProgArray, 4, 4, 4)], &[42]).0, 42);
}
