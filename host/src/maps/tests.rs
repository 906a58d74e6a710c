use super::*;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

fn decl(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> MapDecl {
    MapDecl { name: name.into(), kind, key_size, value_size, max_entries, ..MapDecl::default() }
}

fn map(kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> Map {
    Map::new(Engine::global().unwrap(), &decl("m", kind, key_size, value_size, max_entries)).unwrap()
}

/// One step of a table test: what is done, and what the kernel answers.
enum Step {
    Update(u32, u8, u64, Result<(), Errno>),
    Delete(u32, Result<(), Errno>),
    Lookup(u32, Option<u8>),
    Len(u32),
}

/// Keys and values are the given numbers, repeated over their bytes.
fn run(map: &Map, steps: &[Step]) {
    let key = |k: &u32| -> Vec<u8> {
        k.to_le_bytes().into_iter().cycle().take(map.decl.key_size as usize).collect()
    };
    let value = |v: &u8| vec![*v; map.decl.value_size as usize];
    for (i, step) in steps.iter().enumerate() {
        match step {
            Step::Update(k, v, flags, want) => {
                assert_eq!(map.update(&key(k), &value(v), *flags), *want, "step {i}")
            }
            Step::Delete(k, want) => assert_eq!(map.delete(&key(k)), *want, "step {i}"),
            Step::Lookup(k, want) => assert_eq!(map.lookup(&key(k)), want.as_ref().map(value), "step {i}"),
            Step::Len(want) => assert_eq!(map.len(), *want, "step {i}"),
        }
    }
}

use Step::*;

#[test]
fn array_semantics() {
    for value_size in [1, 4, 8, 20, 300] {
        run(
            &map(MapKind::Array, 4, value_size, 3),
            &[
                Lookup(0, Some(0)),
                Update(2, 7, 0, Ok(())),
                Lookup(2, Some(7)),
                Lookup(1, Some(0)),
                Update(2, 8, 2, Ok(())),
                Lookup(2, Some(8)),
                Update(2, 9, 1, Err(Errno::EXIST)),
                Update(3, 9, 1, Err(Errno::TOO_BIG)),
                Update(3, 9, 0, Err(Errno::TOO_BIG)),
                Update(0, 9, 3, Err(Errno::INVAL)),
                Update(0, 9, 4, Err(Errno::INVAL)),
                Lookup(3, None),
                Lookup(u32::MAX, None),
                Delete(0, Err(Errno::INVAL)),
                Len(3),
            ],
        );
    }
}

#[test]
fn hash_semantics() {
    for (key_size, value_size) in [(4, 8), (8, 1), (16, 12), (5, 7), (64, 40), (512, 8)] {
        run(
            &map(MapKind::Hash, key_size, value_size, 3),
            &[
                Lookup(1, None),
                Update(1, 1, 2, Err(Errno::NOENT)),
                Update(1, 1, 1, Ok(())),
                Update(1, 2, 1, Err(Errno::EXIST)),
                Lookup(1, Some(1)),
                Update(1, 2, 0, Ok(())),
                Update(1, 3, 2, Ok(())),
                Lookup(1, Some(3)),
                Update(1, 3, 3, Err(Errno::INVAL)),
                Update(2, 4, 0, Ok(())),
                Update(3, 5, 0, Ok(())),
                Update(4, 6, 0, Err(Errno::TOO_BIG)),
                Update(3, 6, 0, Ok(())),
                Len(3),
                Delete(4, Err(Errno::NOENT)),
                Delete(2, Ok(())),
                Delete(2, Err(Errno::NOENT)),
                Lookup(2, None),
                Len(2),
                Update(4, 6, 0, Ok(())),
                Lookup(4, Some(6)),
                Lookup(1, Some(3)),
                Lookup(3, Some(6)),
            ],
        );
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let m = map(MapKind::Hash, 8, 8, 4);
    assert_eq!(m.update(&[0; 4], &[0; 8], 0), Err(Errno::INVAL));
    assert_eq!(m.update(&[0; 8], &[0; 9], 0), Err(Errno::INVAL));
    assert_eq!(m.delete(&[0; 9]), Err(Errno::INVAL));
    assert_eq!(m.lookup(&[0; 9]), None);
    let bad = |d: MapDecl| Map::new(Engine::global().unwrap(), &d).unwrap_err().kind();
    for (k, v, n) in
        [(0, 8, 1), (513, 8, 1), (8, 0, 1), (8, 8, 0), (8, (1 << 20) + 1, 1), (8, 1 << 20, 1 << 20)]
    {
        assert_eq!(bad(decl("m", MapKind::Hash, k, v, n)), ErrorKind::BadMap, "{k} {v} {n}");
    }
    assert_eq!(bad(decl("m", MapKind::Array, 8, 8, 1)), ErrorKind::BadMap);
}

/// Against `HashMap`, with keys chosen to collide in a small map; freed places come back first-freed first.
#[test]
fn hash_agrees_with_a_model() {
    use std::collections::HashMap;
    let m = map(MapKind::Hash, 8, 8, 8);
    let (mut model, mut seed) = (HashMap::new(), 1u64);
    for step in 0..20_000u64 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let (k, op) = (seed % 12, seed >> 32 & 3);
        let (key, value) = (k.to_le_bytes(), step.to_le_bytes());
        if op == 0 {
            let want = model.remove(&k).map(|_| ()).ok_or(Errno::NOENT);
            assert_eq!(m.delete(&key), want);
        } else if model.len() < 8 || model.contains_key(&k) {
            model.insert(k, step);
            assert_eq!(m.update(&key, &value, 0), Ok(()));
        } else {
            assert_eq!(m.update(&key, &value, 0), Err(Errno::TOO_BIG));
        }
        assert_eq!(m.len() as usize, model.len());
        for k in 0..12u64 {
            assert_eq!(m.lookup(&k.to_le_bytes()), model.get(&k).map(|v: &u64| v.to_le_bytes().to_vec()));
        }
    }
    let mut entries: Vec<_> = m.entries().map(|(k, v)| (word_at(&k, 0), word_at(&v, 0))).collect();
    let mut want: Vec<_> = model.into_iter().collect();
    entries.sort_unstable();
    want.sort_unstable();
    assert_eq!(entries, want);
}

/// As the call of a policy is to the maps.
fn call<T>(reader: &Reader, f: impl FnOnce() -> T) -> T {
    reader.enter();
    reader.settle();
    let result = f();
    reader.exit();
    result
}

fn key(k: u64) -> [u8; 8] {
    k.to_le_bytes()
}

/// As a policy does it, who does not try again.
fn insert(m: &Map, k: u64) -> Result<(), Errno> {
    m.upsert(&[k], 0, 0, |_| k)
}

/// A place is not used again before the call that looked it up is over, however many are freed meanwhile, and then is.
#[test]
fn a_deleted_entry_s_place_rests_while_a_call_may_hold_it() {
    let m = map(MapKind::Hash, 8, 8, 8);
    let (reader, spare) = (Reader::join().unwrap(), m.layout.places - 8);
    assert!(m.allow_deletes());
    insert(&m, 1).unwrap();
    let held = call(&reader, || {
        let held = m.find(&[1]).unwrap();
        m.remove(&[1]).unwrap();
        let mut kept = 0;
        for k in 100.. {
            match insert(&m, k) {
                Ok(()) => {
                    assert_ne!(m.find(&[k]), Some(held));
                    m.remove(&[k]).unwrap();
                    kept += 1;
                }
                Err(e) => {
                    // Nothing is there, and yet there is no place: not the same as a full map.
                    assert_eq!((e, m.len()), (Errno::BUSY, 0));
                    break;
                }
            }
        }
        assert_eq!(kept, 8 + spare - 1);
        let bytes = m.bytes().load(m.value_offset(0, held) as usize / 8);
        assert_eq!(bytes, Some(1), "the pointer shows what the entry was");
        held
    });
    let mut seen = false;
    for k in 0..u64::from(m.layout.places) {
        insert(&m, k).unwrap();
        seen |= m.find(&[k]) == Some(held);
        m.remove(&[k]).unwrap();
    }
    assert!(seen, "the place is used again, once nobody holds it");
}

/// A call under way keeps what it could have found, and nothing that was freed before it began.
#[test]
fn a_late_call_delays_only_what_it_could_have_found() {
    let m = map(MapKind::Hash, 8, 8, 1);
    let (early, late) = (Reader::join().unwrap(), Reader::join().unwrap());
    assert!(m.allow_deletes());
    // Churn by calls that end: with 16 spare places, 1000 rounds need each many times.
    for k in 0..1000 {
        call(&early, || insert(&m, k).and_then(|()| m.remove(&[k]))).unwrap();
    }
    late.enter();
    late.settle();
    let rounds =
        (0..1000).take_while(|k| call(&early, || insert(&m, *k).and_then(|()| m.remove(&[*k]))).is_ok());
    let rounds = rounds.count() as u32;
    // What was freed since the late call began stays with it, up to two epochs' worth more.
    assert!((8..=2 * m.layout.places).contains(&rounds), "{rounds}");
    assert_eq!(insert(&m, 1), Err(Errno::BUSY));
    late.exit();
    assert_eq!(insert(&m, 1), Ok(()));
}

/// A map from which nobody deleted becomes one from which somebody does, while calls look up in it without a fence of their own:
/// what they found stays theirs all the same.
#[test]
fn a_first_deletion_waits_for_calls_that_did_not_expect_it() {
    for round in 0..300u64 {
        let m = map(MapKind::Hash, 8, 8, 4);
        insert(&m, 1).unwrap();
        let (stop, wrong) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                let reader = Reader::join().unwrap();
                while !stop.load(Relaxed) {
                    reader.enter();
                    // As the helper does it.
                    if m.reclaims() {
                        reader.settle();
                    }
                    if let Some(place) = m.find(&[1]) {
                        let at = m.value_offset(0, place) as usize / 8;
                        wrong.fetch_add(
                            (0..20).filter(|_| m.bytes().load(at) != Some(1)).count() as u32,
                            Relaxed,
                        );
                    }
                    reader.exit();
                }
            });
            (0..round % 30 * 20).for_each(|_| std::hint::spin_loop());
            assert!(m.allow_deletes());
            m.remove(&[1]).unwrap();
            // Each goes to the place that was freed first, once it may be used.
            for k in 100..1000u64 {
                let _ = insert(&m, k).and_then(|()| m.remove(&[k]));
            }
            stop.store(true, Relaxed);
        });
        assert_eq!(wrong.into_inner(), 0, "round {round}");
    }
}

#[test]
fn a_full_lru_hash_evicts_what_was_not_looked_up() {
    let m = map(MapKind::LruHash, 8, 8, 4);
    (1..=4).for_each(|k| insert(&m, k).unwrap());
    // Looked up by a policy: spared. The host's own look-ups spare nothing.
    assert!(m.find(&[1]).is_some() && m.find(&[3]).is_some());
    assert!((1..=4).all(|k| m.lookup(&key(k)) == Some(key(k).to_vec())));
    let keys = || {
        let mut keys: Vec<u64> = m.entries().map(|(k, _)| word_at(&k, 0)).collect();
        keys.sort_unstable();
        keys
    };
    insert(&m, 5).unwrap();
    insert(&m, 6).unwrap();
    assert_eq!((keys(), m.len()), (vec![1, 3, 5, 6], 4));
    // Without new look-ups the hand's lap took the marks away; an update is a use.
    insert(&m, 1).unwrap();
    insert(&m, 7).unwrap();
    insert(&m, 8).unwrap();
    assert!(keys().contains(&1) && m.len() == 4, "{:?}", keys());
    run(
        &map(MapKind::LruHash, 8, 8, 3),
        &[
            Update(1, 1, 2, Err(Errno::NOENT)),
            Update(1, 1, 1, Ok(())),
            Update(1, 2, 1, Err(Errno::EXIST)),
            Update(1, 2, 4, Err(Errno::INVAL)),
            Update(2, 2, 0, Ok(())),
            Update(3, 2, 0, Ok(())),
            Update(4, 2, 2, Err(Errno::NOENT)),
            Len(3),
            Update(4, 2, 1, Ok(())),
            Len(3),
            Delete(4, Ok(())),
            Delete(4, Err(Errno::NOENT)),
            Len(2),
        ],
    );
}

/// All looked up: the hand gives up after [`hash`]'s bound, and an insertion still succeeds. A million of them keep the map full.
#[test]
fn an_lru_hash_whose_entries_are_all_used_still_takes_new_ones() {
    let m = map(MapKind::LruHash, 8, 8, 500);
    for k in 0..20_000u64 {
        insert(&m, k).unwrap();
        assert!(m.find(&[k]).is_some());
        // The ten latest are always there: they were marked after the hand passed, or never met it.
        assert!((k.saturating_sub(10)..=k).all(|k| m.find(&[k]).is_some()), "{k}");
    }
    assert_eq!((m.len(), m.entries().count()), (500, 500));
}

/// Evictions obey the same rule as deletions.
#[test]
fn an_evicted_entry_s_place_rests_while_a_call_may_hold_it() {
    let m = map(MapKind::LruHash, 8, 8, 2);
    let reader = Reader::join().unwrap();
    insert(&m, 1).unwrap();
    insert(&m, 2).unwrap();
    call(&reader, || {
        let held = m.find(&[1]).unwrap();
        let inserted = (10..).take_while(|k| insert(&m, *k).is_ok()).count() as u32;
        assert_eq!((inserted, m.len()), (m.layout.places - 2, 2));
        assert_eq!(m.bytes().load(m.value_offset(0, held) as usize / 8), Some(1));
    });
    assert_eq!(insert(&m, 99), Ok(()));
}

/// Each slot has its own value; the host sees all, and a new entry of a hash is 0 in the slots that did not make it.
#[test]
fn per_cpu_values_are_one_for_each_slot() {
    for kind in [MapKind::PercpuArray, MapKind::PercpuHash] {
        let m = map(kind, 4, 12, 3);
        assert_eq!((m.slots(), m.slot_value_bytes()), (1, 16));
        (0..3).for_each(|slot| m.use_slot(slot));
        let words = |a: u64, b: u64, c: u64| {
            [a, 0, b, 0, c, 0].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()
        };
        m.upsert(&[1], 0, 1, |i| if i == 0 { 7 } else { 0 }).unwrap();
        assert_eq!(m.lookup(&1u32.to_le_bytes()), Some(words(0, 7, 0)), "{kind:?}");
        m.upsert(&[1], 0, 2, |i| if i == 0 { 9 } else { 0 }).unwrap();
        assert_eq!(m.lookup(&1u32.to_le_bytes()), Some(words(0, 7, 9)), "{kind:?}");
        // The host: one value for all, or one for each.
        let one: Vec<u8> = words(5, 0, 0)[..12].to_vec();
        m.update(&2u32.to_le_bytes(), &one, 0).unwrap();
        assert_eq!(m.lookup(&2u32.to_le_bytes()), Some(words(5, 5, 5)));
        m.update(&2u32.to_le_bytes(), &words(1, 2, 3), 0).unwrap();
        assert_eq!(m.lookup(&2u32.to_le_bytes()), Some(words(1, 2, 3)));
        assert_eq!(m.update(&2u32.to_le_bytes(), &words(1, 2, 3)[..32], 0), Err(Errno::INVAL));
        assert_eq!(m.update(&2u32.to_le_bytes(), &one, 4), Err(Errno::INVAL), "no BPF_F_LOCK here");
        assert_eq!(m.entries().count() as u32, m.len());
        m.update_slot(&2u32.to_le_bytes(), 1, &one, 0).unwrap();
        let of = |n: u64| words(n, 0, 0)[..12].to_vec();
        assert_eq!(m.lookup_slots(&2u32.to_le_bytes()), Some(vec![of(1), of(5), of(3)]));
        assert_eq!(m.update_slot(&2u32.to_le_bytes(), 3, &one, 0), Err(Errno::INVAL));
        let all: Vec<_> = (0..m.places()).filter_map(|p| m.entry_at(p)).collect();
        assert!(all.len() as u32 == m.len() && all.iter().all(|(_, v)| v.len() == 3 && v[0].len() == 12));
        assert_eq!(m.entry_at(m.places()), None);
        if kind == MapKind::PercpuHash {
            // A place that is used again keeps nothing of its former entry.
            for k in 3..100u32 {
                m.update(&k.to_le_bytes(), &words(k.into(), k.into(), k.into()), 0).unwrap();
                m.delete(&k.to_le_bytes()).unwrap();
                m.upsert(&[200], 0, 1, |i| u64::from(i == 0)).unwrap();
                assert_eq!(m.lookup(&200u32.to_le_bytes()), Some(words(0, 1, 0)));
                m.delete(&200u32.to_le_bytes()).unwrap();
            }
        }
    }
}

/// With `BPF_F_LOCK` a value is written under its lock, and not while somebody holds it.
#[test]
fn updates_under_the_lock() {
    for kind in [MapKind::Array, MapKind::Hash] {
        let m =
            Map::new(Engine::global().unwrap(), &MapDecl { spin_lock: Some(4), ..decl("m", kind, 4, 16, 2) })
                .unwrap();
        let k = 1u32.to_le_bytes();
        assert_eq!(m.update(&k, &[1; 16], 0), Ok(()));
        assert_eq!(m.update(&k, &[2; 16], 4), Ok(()));
        assert_eq!(m.update(&k, &[2; 16], 4 | 1), Err(Errno::EXIST));
        assert_eq!(m.update(&k, &[2; 16], 4 | 2), Ok(()));
        assert_eq!(m.update(&k, &[2; 16], 4 | 3), Err(Errno::INVAL));
        assert_eq!(m.update(&k, &[2; 16], 8), Err(Errno::INVAL));
        let mut want = vec![2; 16];
        want[4..8].fill(0);
        assert_eq!(m.lookup(&k), Some(want.clone()));
        let place = m.find(&[1]).unwrap();
        let lock = m.value_offset(0, place) + 4;
        assert!(m.bytes().try_lock(lock));
        assert_eq!(m.upsert(&[1], 4, 0, |_| 3), Err(Errno::BUSY));
        assert_eq!(m.lookup(&k), Some(want));
        m.bytes().unlock(lock);
        assert_eq!(m.upsert(&[1], 4, 0, |_| 3), Ok(()));
        // Without the flag the lock is not asked, and never overwritten.
        assert!(m.bytes().try_lock(lock));
        assert_eq!(m.upsert(&[1], 0, 0, |_| 4), Ok(()));
        assert!(!m.bytes().try_lock(lock));
    }
    // Values without a lock cannot be locked.
    assert_eq!(
        map(MapKind::Array, 4, 16, 2).upsert(&[9], 4, 0, |_| 0),
        Err(Errno::TOO_BIG),
        "the helper looks at the index first"
    );
    for (kind, k, want) in [
        (MapKind::Array, 0u32, Errno::INVAL),
        (MapKind::Array, 9, Errno::INVAL),
        (MapKind::Hash, 9, Errno::INVAL),
    ] {
        assert_eq!(map(kind, 4, 16, 2).update(&k.to_le_bytes(), &[0; 16], 4), Err(want));
    }
}

/// Flags of a definition: honoured, or refused by name.
#[test]
fn flags_of_definitions() {
    use MapKind::*;
    let kinds = [Hash, LruHash, PercpuHash, Array, PercpuArray, RingBuf];
    // Bit, and the kinds that take it, as the kernel does (but for MMAPABLE of a global, and the user's side of access).
    let table: [(u32, &[MapKind]); 10] = [
        (0, &[Hash, PercpuHash]),
        (1, &[LruHash]),
        (2, &kinds),
        (3, &[]),
        (4, &[]),
        (5, &[]),
        (6, &[Hash, LruHash, PercpuHash]),
        (7, &[Hash, LruHash, PercpuHash, Array, PercpuArray]),
        (8, &[]),
        (10, &[Array]),
    ];
    for (bit, takes) in table {
        for kind in kinds {
            let sizes = if kind == RingBuf { (0, 0, 4096) } else { (4, 8, 4) };
            let decl = MapDecl { flags: 1 << bit, ..decl("m", kind, sizes.0, sizes.1, sizes.2) };
            match Map::new(Engine::global().unwrap(), &decl) {
                Ok(_) => assert!(takes.contains(&kind), "bit {bit}: {kind:?}"),
                Err(e) => {
                    assert!(!takes.contains(&kind), "bit {bit}: {kind:?}: {e}");
                    assert!(e.kind() == ErrorKind::BadMap && e.message().contains("BPF_F_"), "{e}");
                }
            }
        }
    }
}

/// Four threads insert, update, delete and look up. Each value is one 8-byte word that repeats its key in both halves: a torn
/// word, or a value under the wrong key, would show. Each thread's stable keys must all be there at the end.
#[test]
fn concurrent_hash_loses_and_tears_nothing() {
    const STABLE: u64 = 64;
    const ROUNDS: u64 = 3000;
    let m = Arc::new(map(MapKind::Hash, 8, 8, 1024));
    let failed = AtomicBool::new(false);
    let whole = |k: u64| (k << 32 | k).to_le_bytes();
    let check = |k: u64| {
        if let Some(v) = m.lookup(&k.to_le_bytes())
            && v != whole(k)
        {
            failed.store(true, Relaxed);
        }
    };
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (m, check) = (&m, &check);
            s.spawn(move || {
                for i in 0..ROUNDS {
                    // Kept for good, first seen at i < STABLE and updated ever after.
                    let mine = 1000 * (t + 1) + i % STABLE;
                    m.update(&mine.to_le_bytes(), &whole(mine), 0).unwrap();
                    // Fought over by all.
                    let shared = 1 + i % 16;
                    match (i + t) % 3 {
                        0 => drop(m.delete(&shared.to_le_bytes())),
                        _ => m.update(&shared.to_le_bytes(), &whole(shared), 0).unwrap(),
                    }
                    (1..=16).for_each(check);
                    check(mine);
                }
            });
        }
    });
    assert!(!failed.load(Relaxed), "a torn or foreign value");
    for t in 0..4u64 {
        for i in 0..STABLE {
            let k = 1000 * (t + 1) + i;
            assert_eq!(m.lookup(&k.to_le_bytes()), Some(whole(k).to_vec()), "lost {k}");
        }
    }
    assert_eq!(m.entries().count(), m.len() as usize);
}

/// A reader never misses a key that is always there, while others come and go in the same chain.
#[test]
fn lookups_see_stable_keys_under_churn() {
    let m = map(MapKind::Hash, 8, 8, 2);
    m.update(&7u64.to_le_bytes(), &[9; 8], 0).unwrap();
    let (stop, misses) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            for k in 100..20_100u64 {
                m.update(&k.to_le_bytes(), &[1; 8], 0).unwrap();
                m.delete(&k.to_le_bytes()).unwrap();
            }
            stop.store(true, Relaxed);
        });
        while !stop.load(Relaxed) {
            if m.lookup(&7u64.to_le_bytes()) != Some(vec![9; 8]) {
                misses.fetch_add(1, Relaxed);
            }
        }
    });
    assert_eq!(misses.load(Relaxed), 0);
}

fn registry() -> MapRegistry {
    MapRegistry::new(Engine::global().unwrap(), 1 << 20)
}

fn owner(policy: &str, communicator: u64) -> Owner {
    Owner { policy: policy.into(), communicator }
}

#[test]
fn scopes_decide_who_shares() {
    let reg = registry();
    let hash = decl("h", MapKind::Hash, 4, 8, 16);
    for (scope, same_policy, same_comm, neither) in [
        (Scope::Process, true, true, true),
        (Scope::Policy, true, false, false),
        (Scope::Communicator, false, true, false),
    ] {
        let rules = ScopeRules { by_name: [("h".to_string(), scope)].into(), ..ScopeRules::default() };
        let get = |p, c| reg.resolve(from_ref(&hash), &rules, &owner(p, c)).unwrap();
        let base = get("a", 1);
        let shared = |other: MapSet| Arc::ptr_eq(base.at(0).unwrap(), other.at(0).unwrap());
        assert_eq!(shared(get("a", 2)), same_policy, "{scope:?}");
        assert_eq!(shared(get("b", 1)), same_comm, "{scope:?}");
        assert_eq!(shared(get("b", 2)), neither, "{scope:?}");
    }
}

#[test]
fn a_reload_keeps_contents_and_refuses_another_shape() {
    let (reg, rules, a) = (registry(), ScopeRules::default(), owner("a", 1));
    let old = decl("h", MapKind::Hash, 4, 8, 16);
    let first = reg.resolve(from_ref(&old), &rules, &a).unwrap();
    first.at(0).unwrap().update(&[1; 4], &[2; 8], 0).unwrap();
    let again = reg.resolve(from_ref(&old), &rules, &a).unwrap();
    drop(first);
    assert_eq!(again.get("h").unwrap().lookup(&[1; 4]), Some(vec![2; 8]));

    let new = MapDecl { value_size: 16, ..old.clone() };
    let e = reg.resolve(from_ref(&new), &rules, &a).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::MapShape);
    assert!(e.message().contains("value 8") && e.message().contains("value 16"), "{e}");

    let reset = ScopeRules { reset: ["h".to_string()].into(), ..rules.clone() };
    let fresh = reg.resolve(&[new], &reset, &a).unwrap();
    assert_eq!(fresh.at(0).unwrap().lookup(&[1; 4]), None);
    // The old one is out of the registry's names, but counts until its last user is gone.
    assert_eq!((reg.maps().len(), reg.memory_bytes()), (2, again.at(0).unwrap().memory_bytes() * 2));
    drop((again, fresh));
    assert_eq!(reg.memory_bytes(), 0);
    assert!(reg.resolve(&[old], &rules, &a).is_ok());
}

#[test]
fn global_data_belongs_to_its_policy() {
    let (reg, rules, a) = (registry(), ScopeRules::default(), owner("a", 1));
    let global = |name: &str, read_only, init: &[u8]| MapDecl {
        read_only,
        init: init.to_vec(),
        ..decl(name, MapKind::Global, 4, init.len() as u32, 1)
    };
    let (data, ro) = (global(".data", false, &[1; 12]), global(".rodata", true, &[2; 4]));
    let first = reg.resolve(&[data.clone(), ro.clone()], &rules, &a).unwrap();
    let read = |set: &MapSet, i: usize| set.at(i).unwrap().lookup(&[0; 4]).unwrap();
    assert_eq!((read(&first, 0), read(&first, 1)), (vec![1; 12], vec![2; 4]));
    first.at(0).unwrap().update(&[0; 4], &[7; 12], 0).unwrap();

    // Same size: .data survives, .rodata is taken from the new object.
    let second = reg
        .resolve(&[global(".data", false, &[3; 12]), global(".rodata", true, &[4; 4])], &rules, &a)
        .unwrap();
    assert_eq!((read(&second, 0), read(&second, 1)), (vec![7; 12], vec![4; 4]));
    assert_eq!(read(&first, 1), vec![2; 4]);
    // Another size starts anew; so does another policy.
    let third = reg.resolve(&[global(".data", false, &[5; 16])], &rules, &a).unwrap();
    assert_eq!(read(&third, 0), vec![5; 16]);
    let other = reg.resolve(&[data], &rules, &owner("b", 1)).unwrap();
    assert_eq!(read(&other, 0), vec![1; 12]);
}

/// A target of tail calls that is linked into another policy has the data that it has on its own.
#[test]
fn global_data_of_a_linked_program_is_its_object_s() {
    let (reg, rules, a, b) = (registry(), ScopeRules::default(), owner("a", 1), owner("b", 1));
    let global =
        |name: &str, first: u8| MapDecl { init: vec![first; 8], ..decl(name, MapKind::Global, 4, 8, 1) };
    let hash = decl("h@b", MapKind::Hash, 4, 8, 16);
    let of_b = DataOf { policy: "b".into(), section: ".data".into() };
    let data = [(".data@b".to_string(), of_b.clone()), ("h@b".to_string(), of_b)].into();
    let decls = [global(".data", 1), global(".data@b", 2), hash, global(".data@c", 3)];
    let linked = reg.resolve_linked(&decls, &rules, &a, &data).unwrap();
    let alone = reg.resolve(&[global(".data", 2)], &rules, &b).unwrap();
    assert!(Arc::ptr_eq(linked.at(1).unwrap(), alone.at(0).unwrap()));
    let names: Vec<&str> = linked.iter().map(|m| m.decl().name.as_str()).collect();
    assert_eq!(names, [".data", ".data", "h@b", ".data@c"], "only global data has an owner of its own");
    // Two names of one section, as when a policy calls another one of its own object.
    let own = DataOf { policy: "a".into(), section: ".data".into() };
    let data = [(".data@d".to_string(), own)].into();
    let twice = reg.resolve_linked(&[global(".data", 1), global(".data@d", 1)], &rules, &a, &data).unwrap();
    assert!(Arc::ptr_eq(twice.at(0).unwrap(), twice.at(1).unwrap()));
    assert!(Arc::ptr_eq(twice.at(0).unwrap(), linked.at(0).unwrap()));
}

#[test]
fn memory_is_limited_and_returned() {
    let (reg, rules, a) = (registry(), ScopeRules::default(), owner("a", 1));
    let big = |name: &str| decl(name, MapKind::Array, 4, 1 << 10, 512);
    let one = reg.resolve(&[big("one")], &rules, &a).unwrap();
    let e = reg.resolve(&[big("two"), big("three")], &rules, &a).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::MapLimit);
    // All or nothing: the failed attempt left nothing behind.
    assert_eq!(reg.maps().len(), 1);
    assert!(reg.resolve(&[big("one"), big("two")], &rules, &a).is_ok());
    drop(one);
    assert!(reg.resolve(&[big("two"), big("three")], &rules, &a).is_ok());
}

#[test]
fn large_maps_are_served() {
    let m = map(MapKind::Array, 4, 1 << 16, 1 << 10);
    let (last, value) = (1023u32.to_le_bytes(), vec![9; 1 << 16]);
    m.update(&last, &value, 0).unwrap();
    assert_eq!((m.lookup(&last), m.memory_bytes()), (Some(value), 64 << 20));
}
