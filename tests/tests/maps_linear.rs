//! Operations of many threads on one map are linearizable, key by key: each takes effect at one moment between its call and
//! its return. Histories are recorded under load and given to a checker (Wing and Gong, "Testing and verifying concurrent objects", 1993; with
//! Lowe's memory of states that were tried, 2017). Keys are independent of each other as long as the map is not full, which
//! it never is here; so each key's history is checked alone.
//!
//! `RINGFENCE_LINEAR_ROUNDS=N` and `RINGFENCE_LINEAR_SEED=N` change the run; `make soak` takes 5000 rounds.

use ringfence_host::Engine;
use ringfence_host::maps::{Errno, Map};
use ringfence_soak::Random;
use ringfence_translator::{MapDecl, MapKind};
use std::collections::{BTreeMap, HashSet};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

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

/// `threads` threads, each with so many operations on a few keys; by key.
fn record(map: &Map, threads: u64, ops: u64, keys: u64, seed: u64) -> BTreeMap<u64, Vec<Event>> {
    let (clock, start) = (AtomicU64::new(0), Barrier::new(threads as usize));
    let one = |thread: u64| {
        let mut r = Random::new(seed * 1000 + thread);
        let mut mine = Vec::new();
        start.wait();
        for n in 0..ops {
            let key = r.below(keys);
            let k = key.to_le_bytes();
            // No two operations write the same value.
            let value = ((thread + 1) << 32) | (n + 1);
            let call = clock.fetch_add(1, SeqCst);
            let code = |done: Result<(), Errno>| done.map_or_else(Errno::code, |()| 0);
            let op = match r.below(6) {
                0..3 => Op::Get(map.lookup(&k).map(|v| u64::from_le_bytes(v.try_into().unwrap()))),
                3 => Op::Delete(code(map.delete(&k))),
                _ => {
                    let flags = [0, 0, 1, 2][r.below(4) as usize];
                    Op::Set(value, flags, code(map.update(&k, &value.to_le_bytes(), flags)))
                }
            };
            mine.push((key, Event { op, call, back: clock.fetch_add(1, SeqCst) }));
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

fn map(kind: MapKind, max_entries: u32) -> Map {
    let decl =
        MapDecl { name: "m".into(), kind, key_size: 8, value_size: 8, max_entries, ..MapDecl::default() };
    Map::new(Engine::global().unwrap(), &decl).unwrap()
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
            let map = map(kind, entries.max(keys as u32));
            for (key, events) in record(&map, threads, 400, keys, seed + round) {
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
    let map = map(MapKind::Hash, 64);
    let mut found = false;
    for seed in 0..5 {
        for mut events in record(&map, 4, 400, 2, seed).into_values() {
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
