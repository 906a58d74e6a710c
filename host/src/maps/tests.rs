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

#[test]
fn freed_places_are_reused_last() {
    let m = map(MapKind::Hash, 8, 8, 3);
    let place = |k: u64| m.find(&[k]);
    for k in [1u64, 2, 3] {
        m.update(&k.to_le_bytes(), &[0; 8], 0).unwrap();
    }
    let (a, b) = (place(1), place(2));
    m.delete(&2u64.to_le_bytes()).unwrap();
    m.delete(&1u64.to_le_bytes()).unwrap();
    m.update(&4u64.to_le_bytes(), &[0; 8], 0).unwrap();
    m.update(&5u64.to_le_bytes(), &[0; 8], 0).unwrap();
    assert_eq!((place(4), place(5)), (b, a));
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
