//! LRU hashes, per-CPU maps and the rule for deleted entries, as policies see them: verified, translated, in wasmtime.

use ringfence_host::maps::{DEFAULT_MAP_BYTES, Map, MapSet, Owner};
use ringfence_host::{Engine, Hook, Instance, Limits, MapRegistry, PolicyModule, ScopeRules};
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, MapDecl, MapKind, Translator, WasmModule};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const CTX: usize = 32;

fn map(name: &str, kind: MapKind, value_size: u32, max_entries: u32) -> MapDecl {
    let key_size = if kind.is_hash() { 8 } else { 4 };
    MapDecl { name: name.into(), kind, key_size, value_size, max_entries, ..MapDecl::default() }
}

fn translate(text: &str, maps: &[MapDecl]) -> WasmModule {
    let program = assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let verified = Verifier::new(Arc::new(Env::generic(CTX as u32))).verify(program);
    Translator::new().translate(&verified.unwrap_or_else(|e| panic!("{e}\n{text}"))).unwrap()
}

/// A policy with its maps, for as many ranks as one likes.
struct Policy {
    module: PolicyModule,
    maps: MapSet,
}

impl Policy {
    fn new(text: &str, maps: &[MapDecl]) -> Policy {
        let registry = MapRegistry::new(Engine::global().unwrap(), DEFAULT_MAP_BYTES);
        Policy::with(text, maps, &registry)
    }

    fn with(text: &str, maps: &[MapDecl], registry: &MapRegistry) -> Policy {
        let module = PolicyModule::compile(Engine::global().unwrap(), translate(text, maps)).unwrap();
        let owner = Owner { policy: "p".into(), communicator: 0 };
        let maps = registry.resolve(module.maps(), &ScopeRules::default(), &owner).unwrap();
        Policy { module, maps }
    }

    /// An instance for the rank of that communicator.
    fn rank(&self, communicator: u64) -> Instance {
        Instance::new(&self.module, &self.maps.for_communicator(communicator), Limits::default()).unwrap()
    }

    fn map(&self, name: &str) -> &Arc<Map> {
        self.maps.get(name).unwrap()
    }
}

/// Runs with context words; r0, and the context afterwards.
fn run(instance: &mut Instance, words: &[u64]) -> (u64, [u64; CTX / 8]) {
    let mut bytes = [0u8; CTX];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, w)| to.copy_from_slice(&w.to_le_bytes()));
    let r0 = instance.run_generic(&mut bytes).unwrap_or_else(|e| panic!("{e:?}"));
    let mut out = [0; CTX / 8];
    out.iter_mut()
        .zip(bytes.chunks_exact(8))
        .for_each(|(w, b)| *w = u64::from_le_bytes(b.try_into().unwrap()));
    (r0, out)
}

fn words(value: &[u8]) -> Vec<u64> {
    value.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect()
}

/// Adds context word 1 to entry word 0 of an array, or gives 1 where there is none.
const ADD: &str = "
    r6 = *(u64 *)(r1 + 8)
    r2 = *(u64 *)(r1 + 0)
    *(u64 *)(r10 - 8) = r2
    r2 = r10
    r2 += -8
    r1 = map[m] ll
    call map_lookup_elem
    if r0 != 0 goto found
    r0 = 1
    exit
found:
    r1 = *(u64 *)(r0 + 0)
    r1 += r6
    *(u64 *)(r0 + 0) = r1
    r0 = 0
    exit";

#[test]
fn each_rank_has_its_own_values_of_a_per_cpu_array() {
    let decl = map("m", MapKind::PercpuArray, 12, 5);
    // The look-up is code of the module, as an array's.
    assert!(translate(ADD, std::slice::from_ref(&decl)).helpers().is_empty());
    let policy = Policy::new(ADD, &[decl]);
    let mut ranks: Vec<Instance> = (0..3).map(|c| policy.rank(c)).collect();
    for (rank, instance) in ranks.iter_mut().enumerate() {
        for index in 0..7 {
            for _ in 0..=rank {
                let (r0, _) = run(instance, &[index, 10 + index]);
                assert_eq!(r0, u64::from(index >= 5));
            }
        }
    }
    let m = policy.map("m");
    assert_eq!(m.slots(), 3);
    for index in 0..5u32 {
        let value = words(&m.lookup(&index.to_le_bytes()).unwrap());
        let of = |rank: u64| (rank + 1) * (10 + u64::from(index));
        assert_eq!(value, [of(0), 0, of(1), 0, of(2), 0], "{index}");
    }
    // Two instances of one rank see one value; a new rank takes over a slot that is free, with what is in it.
    let mut again = policy.rank(1);
    run(&mut again, &[0, 1000]);
    assert_eq!(words(&m.lookup(&[0; 4]).unwrap())[2], 20 + 1000);
    drop((again, ranks));
    run(&mut policy.rank(77), &[0, 1]);
    assert_eq!((words(&m.lookup(&[0; 4]).unwrap())[0], m.slots()), (11, 3));
}

/// Sets key word 0 to word 1; gives the values of slots word 2 and of its own in words 2 and 3.
const SET_AND_READ: &str = "
    r6 = r1
    r2 = *(u64 *)(r1 + 0)
    *(u64 *)(r10 - 8) = r2
    r2 = *(u64 *)(r1 + 8)
    if r2 == 0 goto read
    *(u64 *)(r10 - 16) = r2
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    r3 = r10
    r3 += -16
    r4 = 0
    call map_update_elem
    if r0 == 0 goto read
    exit
read:
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    r3 = *(u64 *)(r6 + 16)
    call map_lookup_percpu_elem
    if r0 == 0 goto none
    r0 = *(u64 *)(r0 + 0)
    *(u64 *)(r6 + 16) = r0
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    call map_lookup_elem
    if r0 == 0 goto none
    r0 = *(u64 *)(r0 + 0)
    *(u64 *)(r6 + 24) = r0
    r0 = 0
    exit
none:
    r0 = 77
    exit";

#[test]
fn ranks_see_each_other_s_values_of_a_per_cpu_hash_where_they_ask() {
    let policy = Policy::new(SET_AND_READ, &[map("m", MapKind::PercpuHash, 8, 4)]);
    let mut ranks: Vec<Instance> = (0..2).map(|c| policy.rank(c)).collect();
    assert_eq!(run(&mut ranks[0], &[5, 0, 0, 0]).0, 77, "no such key");
    let (r0, ctx) = run(&mut ranks[0], &[5, 100, 1, 0]);
    assert_eq!((r0, &ctx[2..]), (0, &[0, 100][..]), "a new entry is 0 in other slots");
    let (r0, ctx) = run(&mut ranks[1], &[5, 200, 0, 0]);
    assert_eq!((r0, &ctx[2..]), (0, &[100, 200][..]));
    // As in the kernel, slot numbers have 32 bits, and there is nothing beyond the last.
    assert_eq!(run(&mut ranks[1], &[5, 0, 1 << 32, 0]), (0, [5, 0, 100, 200]));
    for beyond in [2, 63, 64, u64::from(u32::MAX)] {
        assert_eq!(run(&mut ranks[1], &[5, 0, beyond, 0]).0, 77, "{beyond}");
    }
    assert_eq!(words(&policy.map("m").lookup(&5u64.to_le_bytes()).unwrap()), [100, 200]);
    for k in 6..9u64 {
        assert_eq!(run(&mut ranks[0], &[k, 1, 0, 0]).0, 0);
    }
    assert_eq!(run(&mut ranks[0], &[9, 1, 0, 0]).0 as i64, -7, "full");
}

/// The sum of the first words of all entries, and how many.
const SUM: &str = "
    r6 = r1
    *(u64 *)(r10 - 8) = 0
    r1 = map[m] ll
    r2 = fn add ll
    r3 = r10
    r3 += -8
    r4 = 0
    call for_each_map_elem
    r1 = *(u64 *)(r10 - 8)
    *(u64 *)(r6 + 0) = r1
    exit
fn add:
    r1 = *(u64 *)(r3 + 0)
    r2 = *(u64 *)(r4 + 0)
    r2 += r1
    *(u64 *)(r4 + 0) = r2
    r0 = 0
    exit";

#[test]
fn a_walk_over_a_per_cpu_map_shows_the_rank_s_own_values() {
    for kind in [MapKind::PercpuArray, MapKind::PercpuHash] {
        let policy = Policy::new(SUM, &[map("m", kind, 8, 3)]);
        let mut ranks: Vec<Instance> = (0..2).map(|c| policy.rank(c)).collect();
        let m = policy.map("m");
        for k in 0..3u64 {
            let value: Vec<u8> = [k + 1, 100 * (k + 1)].iter().flat_map(|w| w.to_le_bytes()).collect();
            m.update(&k.to_le_bytes()[..m.decl().key_size as usize], &value, 0).unwrap();
        }
        assert_eq!([0, 1].map(|r| run(&mut ranks[r], &[]).1[0]), [6, 600], "{kind:?}");
        assert_eq!(run(&mut ranks[0], &[]).0, 3);
    }
}

/// Looks up key 1; deletes it; inserts and deletes keys 100, 101, ... (word 0 of them); gives what the pointer shows in word 1, and the
/// last error in word 2.
const HOLD: &str = "
    r6 = r1
    r8 = *(u64 *)(r1 + 0)
    *(u64 *)(r10 - 8) = 1
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    call map_lookup_elem
    if r0 == 0 goto none
    r7 = r0
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    call map_delete_elem
    r9 = 0
again:
    if r9 >= r8 goto show
    if r9 >= 1000 goto show
    r9 += 1
    *(u64 *)(r10 - 8) = r9
    r1 = *(u64 *)(r10 - 8)
    r1 += 100
    *(u64 *)(r10 - 8) = r1
    *(u64 *)(r10 - 16) = 555
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    r3 = r10
    r3 += -16
    r4 = 0
    call map_update_elem
    *(u64 *)(r6 + 16) = r0
    r1 = map[m] ll
    r2 = r10
    r2 += -8
    call map_delete_elem
    goto again
show:
    r0 = *(u64 *)(r7 + 0)
    *(u64 *)(r6 + 8) = r0
    r0 = 0
    exit
none:
    r0 = 1
    exit";

/// In Linux the pointer would show 555.
#[test]
fn a_pointer_shows_the_deleted_entry_until_the_call_returns() {
    let policy = Policy::new(HOLD, &[map("m", MapKind::Hash, 8, 4)]);
    let mut instance = policy.rank(0);
    // Few: they go to spare places. Many: the places run out, and the call is told so.
    for (count, error) in [(3, 0), (1000, -16)] {
        policy.map("m").update(&1u64.to_le_bytes(), &42u64.to_le_bytes(), 0).unwrap();
        let (r0, ctx) = run(&mut instance, &[count]);
        assert_eq!((r0, ctx[1], ctx[2] as i64), (0, 42, error), "{count}");
    }
    // Once the call is over, all places are good again.
    for k in 0..4u64 {
        policy.map("m").update(&k.to_le_bytes(), &[0; 8], 0).unwrap();
    }
}

/// One policy holds pointers over many instructions while others churn the same map; a pointer never shows another key's value.
#[test]
fn no_pointer_shows_another_entry_under_load() {
    const READ: &str = "
        r6 = r1
        r7 = *(u64 *)(r1 + 0)
        *(u64 *)(r10 - 8) = r7
        r1 = map[m] ll
        r2 = r10
        r2 += -8
        call map_lookup_elem
        if r0 == 0 goto fine
        r8 = r0
        r9 = 200
    again:
        r1 = *(u64 *)(r8 + 0)
        if r1 != r7 goto wrong
        r9 += -1
        if r9 != 0 goto again
    fine:
        r0 = 0
        exit
    wrong:
        r0 = 1
        exit";
    const CHURN: &str = "
        r6 = r1
        r7 = *(u64 *)(r1 + 0)
        *(u64 *)(r10 - 8) = r7
        *(u64 *)(r10 - 16) = r7
        r1 = map[m] ll
        r2 = r10
        r2 += -8
        r3 = r10
        r3 += -16
        r4 = 0
        call map_update_elem
        r1 = *(u64 *)(r6 + 8)
        if r1 == 0 goto done
        r1 = map[m] ll
        r2 = r10
        r2 += -8
        call map_delete_elem
    done:
        r0 = 0
        exit";
    for kind in [MapKind::Hash, MapKind::LruHash] {
        let decl = map("m", kind, 8, 6);
        let registry = MapRegistry::new(Engine::global().unwrap(), DEFAULT_MAP_BYTES);
        let read = Policy::with(READ, std::slice::from_ref(&decl), &registry);
        let churn = Policy::with(CHURN, &[decl], &registry);
        let (stop, deletes) = (AtomicBool::new(false), u64::from(kind == MapKind::Hash));
        std::thread::scope(|s| {
            for t in 0..2u64 {
                let (churn, stop) = (&churn, &stop);
                s.spawn(move || {
                    let mut instance = churn.rank(10 + t);
                    let mut k = t;
                    while !stop.load(Relaxed) {
                        k = (k + 2) % 16;
                        run(&mut instance, &[k, deletes]);
                    }
                });
            }
            let mut instance = read.rank(1);
            let wrong = (0..20_000).filter(|i| run(&mut instance, &[i % 16]).0 != 0).count();
            stop.store(true, Relaxed);
            assert_eq!(wrong, 0, "{kind:?}");
        });
    }
}

/// A cache: look up, and insert what is missing. What is asked for often stays, whatever else comes by.
#[test]
fn an_lru_hash_keeps_what_policies_use() {
    const CACHE: &str = "
        r6 = r1
        r2 = *(u64 *)(r1 + 0)
        *(u64 *)(r10 - 8) = r2
        *(u64 *)(r10 - 16) = r2
        r1 = map[m] ll
        r2 = r10
        r2 += -8
        call map_lookup_elem
        if r0 == 0 goto missing
        r0 = 1
        exit
    missing:
        r1 = map[m] ll
        r2 = r10
        r2 += -8
        r3 = r10
        r3 += -16
        r4 = 1
        call map_update_elem
        exit";
    let policy = Policy::new(CACHE, &[map("m", MapKind::LruHash, 8, 32)]);
    let mut instance = policy.rank(0);
    let mut misses = 0;
    for i in 0..10_000u64 {
        // Eight hot keys between a stream of keys that come once.
        let hot = run(&mut instance, &[i % 8]).0 as i64;
        assert!(hot == 0 || hot == 1, "{hot}");
        misses += u32::from(hot == 0);
        assert_eq!(run(&mut instance, &[1000 + i]).0, 0);
    }
    assert_eq!((misses, policy.map("m").len()), (8, 32));
}

/// A tuner's and a profiler's policy that declare a map of one name and shape have one map, on whichever hook it was made first;
/// with another shape, the second is refused, and both shapes are named.
#[test]
fn policies_of_different_hooks_share_maps_by_name_and_shape() {
    const COUNT: &str = "
        *(u64 *)(r10 - 8) = 0
        r1 = map[m] ll
        r2 = r10
        r2 += -8
        call map_lookup_elem
        if r0 == 0 goto done
        r1 = *(u64 *)(r0 + 0)
        r1 += 1
        *(u64 *)(r0 + 0) = r1
    done:
        r0 = 0
        exit";
    let of = |hook: Hook, value_size: u32| {
        let program = assemble(COUNT, &[map("m", MapKind::Hash, value_size, 4)]).unwrap();
        let verified = Verifier::new(hook.env()).verify(program).unwrap();
        let module = Translator::new().translate(&verified).unwrap();
        PolicyModule::compile(Engine::global().unwrap(), module).unwrap()
    };
    let registry = MapRegistry::new(Engine::global().unwrap(), DEFAULT_MAP_BYTES);
    let resolve = |module: &PolicyModule, policy: &str| {
        let owner = Owner { policy: policy.into(), communicator: 1 };
        registry.resolve(module.maps(), &ScopeRules::default(), &owner)
    };
    let (tuner, profiler) = (of(Hook::Tuner, 8), of(Hook::Profiler, 8));
    let (a, b) = (resolve(&tuner, "t").unwrap(), resolve(&profiler, "p").unwrap());
    assert!(Arc::ptr_eq(a.get("m").unwrap(), b.get("m").unwrap()));
    let error = resolve(&of(Hook::Net, 16), "n").unwrap_err();
    assert_eq!(error.kind(), ringfence_host::ErrorKind::MapShape);
    assert!(error.message().contains("value 8") && error.message().contains("value 16"), "{error}");
    drop((a, b));
    assert!(resolve(&of(Hook::Net, 16), "n").is_ok(), "once nobody uses it, the name is free");
}
