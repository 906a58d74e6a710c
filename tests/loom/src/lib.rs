//! The hash's index and the rule for freed places under loom: every interleaving of a few operations, and every value that the
//! memory model lets a load see, within a bound on preemptions. The host's `hash.rs` and `grace.rs` are compiled here once more, with
//! loom's atomics. `cargo test --manifest-path tests/loom/Cargo.toml`; `make test` does it.
#![cfg(test)]
#![allow(dead_code, unused_imports, reason = "the host uses the rest of these files")]

use errno::{Errno, UpdateMode};
use hash::{HashIndex, Shape};
use loom::thread::spawn;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use sync::{Arc, AtomicU64};

#[path = "../../../host/src/maps/errno.rs"]
mod errno;
#[path = "../../../host/src/maps/grace.rs"]
mod grace;
#[path = "../../../host/src/maps/hash.rs"]
mod hash;

const MAX_KEY_WORDS: usize = 64;

mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, fence};
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    pub(super) const LOCK_SPINS: u32 = 1;
    pub(super) const FIND_RETRIES: u32 = 2;

    pub(super) fn store_fence(cell: &AtomicU64, value: u64) {
        cell.store(value, Relaxed);
        fence(SeqCst);
    }

    pub(super) fn fence_on(_held: &AtomicBool) {
        fence(SeqCst);
    }
}

/// A map of 8-byte keys, whose values repeat their key.
struct World {
    index: HashIndex,
    values: Vec<AtomicU64>,
    grace: Arc<grace::Grace>,
}

impl World {
    fn new(max_entries: u32, places: u32, lru: bool) -> Arc<World> {
        let grace = Arc::new(grace::Grace::new(2));
        let shape = Shape { key_size: 8, max_entries, places, lru };
        let index = HashIndex::new(shape, Arc::clone(&grace));
        Arc::new(World { index, values: (0..places).map(|_| AtomicU64::new(0)).collect(), grace })
    }

    fn set(&self, key: u64, mode: UpdateMode) -> Result<(), Errno> {
        self.index.upsert(&[key], mode, |place, _| {
            self.values[place as usize].store(key, Relaxed);
            Ok(())
        })
    }

    fn get(&self, key: u64) -> Option<u64> {
        let place = self.index.find(&[key]).ok().flatten()?;
        Some(self.values[place as usize].load(Relaxed))
    }
}

fn patiently(f: impl Fn() -> Result<(), Errno>) {
    while f() == Err(Errno::BUSY) {
        loom::thread::yield_now();
    }
}

/// Preemptions of a thread in one interleaving. `RINGFENCE_LOOM_PREEMPTIONS=N` looks further, and takes longer.
const PREEMPTIONS: usize = 4;

/// How a reader of a model makes itself known.
#[derive(Clone, Copy)]
enum Known {
    Settled,
    /// Without the fence that the look-up needs.
    Unsettled,
    Not,
}

fn check(f: impl Fn() + Sync + Send + 'static) {
    let set = std::env::var("RINGFENCE_LOOM_PREEMPTIONS").ok().and_then(|n| n.parse().ok());
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(set.unwrap_or(PREEMPTIONS));
    model.check(f);
}

/// A call looks up key 1 and reads its value twice, while `free` makes its place free and puts key 2 there if it can. The pointer
/// never shows key 2.
fn holds_a_pointer(known: Known, places: u32, lru: bool, free: fn(&World)) {
    check(move || {
        let w = World::new(1, places, lru);
        let me = w.grace.join().expect("a reader");
        w.set(1, UpdateMode::Any).expect("room");
        let writer = spawn({
            let w = Arc::clone(&w);
            move || free(&w)
        });
        if !matches!(known, Known::Not) {
            w.grace.enter(me);
        }
        if matches!(known, Known::Settled) {
            w.grace.settle(me);
        }
        if let Ok(Some(place)) = w.index.find(&[1]) {
            for _ in 0..2 {
                assert_eq!(w.values[place as usize].load(Relaxed), 1, "the place went to another key");
            }
        }
        w.grace.exit(me);
        writer.join().expect("the writer ends");
    });
}

/// Deletes key 1, and tries to insert key 2 until that would take another look at all readers.
fn delete_and_insert(w: &World) {
    let _ = w.index.remove(&[1]);
    let _ = w.set(2, UpdateMode::Any);
}

#[test]
fn a_deleted_place_is_not_reused_while_a_call_holds_it() {
    holds_a_pointer(Known::Settled, 1, false, delete_and_insert);
}

#[test]
fn an_evicted_place_is_not_reused_while_a_call_holds_it() {
    // The second place lets key 2 in; key 3 then needs that of key 1.
    holds_a_pointer(Known::Settled, 2, true, |w| {
        let _ = w.set(2, UpdateMode::Any);
        let _ = w.set(3, UpdateMode::Any);
    });
}

/// The model can fail: without a note the place is reused.
#[test]
#[should_panic(expected = "the place went to another key")]
fn a_call_that_nobody_knows_of_loses_its_place() {
    holds_a_pointer(Known::Not, 1, false, delete_and_insert);
}

/// And the fence is needed: without it the note may come too late.
#[test]
#[should_panic(expected = "the place went to another key")]
fn a_call_whose_note_is_not_settled_loses_its_place() {
    holds_a_pointer(Known::Unsettled, 1, false, delete_and_insert);
}

/// A key that stays is found, with its own value, while another one in its chain comes and goes.
#[test]
fn look_ups_see_whole_chains() {
    check(|| {
        let w = World::new(2, 3, false);
        w.set(1, UpdateMode::Any).expect("room");
        let writer = spawn({
            let w = Arc::clone(&w);
            move || {
                patiently(|| w.set(2, UpdateMode::Any));
                patiently(|| w.index.remove(&[2]));
            }
        });
        // Only if the lock's holder stands still is the answer "busy"; never "no such key".
        assert_ne!(w.index.find(&[1]), Ok(None), "a key that is always there");
        if let Some(value) = w.get(1) {
            assert_eq!(value, 1);
        }
        writer.join().expect("the writer ends");
        assert_eq!((w.get(1), w.get(2), w.index.len()), (Some(1), None, 1));
    });
}

/// Of two that create a key, one does; the other is told that it is there, or to try again.
#[test]
fn a_key_is_created_once() {
    check(|| {
        let w = World::new(2, 3, false);
        let won = Arc::new(AtomicU64::new(0));
        let create = |w: &World, won: &AtomicU64| match w.set(1, UpdateMode::NoExist) {
            Ok(()) => {
                won.fetch_add(1, SeqCst);
            }
            Err(e) => assert!(e == Errno::EXIST || e == Errno::BUSY, "{e}"),
        };
        let other = spawn({
            let (w, won) = (Arc::clone(&w), Arc::clone(&won));
            move || create(&w, &won)
        });
        create(&w, &won);
        other.join().expect("the writer ends");
        assert_eq!((won.load(SeqCst), w.index.len(), w.get(1)), (1, 1, Some(1)));
    });
}

/// Deleted once, by one of two.
#[test]
fn a_key_is_deleted_once() {
    check(|| {
        let w = World::new(1, 2, false);
        w.set(1, UpdateMode::Any).expect("room");
        let other = spawn({
            let w = Arc::clone(&w);
            move || u32::from(w.index.remove(&[1]).is_ok())
        });
        let mine = u32::from(w.index.remove(&[1]).is_ok());
        let both = mine + other.join().expect("the writer ends");
        assert_eq!((both, w.index.len()), (1, 0));
    });
}
