//! [`Slot`]: how a communicator gets its next chain from the reload thread.
//!
//! The reload thread offers; the calling thread, which alone owns the chain in use, exchanges at its next call;
//! what it had goes back through the same slot, and the reload thread drops it. So the calling thread neither
//! waits, nor allocates, nor frees: one atomic load tells that there is nothing new. If the two meet at the lock, the
//! caller goes on with what it has and looks again at its next call; the reload thread polls instead of waiting
//! in the kernel, so that the caller's unlock never has anybody to wake.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

#[derive(Debug)]
enum State<T> {
    Empty,
    Offered(T),
    Retired(T),
}

static OFFERS: AtomicU64 = AtomicU64::new(1);

/// How many offers were made in this process, to whatever slot; never 0. For callers that have nothing to do until there is a new
/// plan for somebody, and keep that in one word.
#[inline]
pub(crate) fn offers() -> u64 {
    OFFERS.load(Ordering::Acquire)
}

/// A mailbox of one value in each direction.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    /// Of the newest value ever offered, or of the first one in use.
    generation: AtomicU64,
    state: Mutex<State<T>>,
}

impl<T> Slot<T> {
    /// A slot whose owner uses a value of that generation.
    pub(crate) fn new(generation: u64) -> Slot<T> {
        Slot { generation: AtomicU64::new(generation), state: Mutex::new(State::Empty) }
    }

    /// Generation of the newest value offered, or else of the first.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reload thread: offers a value; returns what lay in the slot (an offer that nobody took, or a retired
    /// value), to be dropped here.
    #[must_use = "drop it on this thread"]
    pub(crate) fn offer(&self, generation: u64, value: T) -> Option<T> {
        let mut state = self.lock_politely();
        let old = std::mem::replace(&mut *state, State::Offered(value));
        self.generation.store(generation, Ordering::Release);
        OFFERS.fetch_add(1, Ordering::Release);
        old.into_value()
    }

    /// Reload thread: takes a retired value out, to be dropped here.
    #[must_use = "drop it on this thread"]
    pub(crate) fn collect(&self) -> Option<T> {
        let mut state = self.lock_politely();
        match std::mem::replace(&mut *state, State::Empty) {
            State::Retired(value) => Some(value),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Calling thread: is there anything newer than `have`? One atomic load.
    #[inline]
    pub(crate) fn has_news(&self, have: u64) -> bool {
        self.generation.load(Ordering::Acquire) != have
    }

    /// Calling thread: exchanges `value` for the offer, if there is one and the lock is free, after `inherit(new, old)`.
    /// `have` follows.
    #[cold]
    pub(crate) fn exchange(&self, value: &mut T, have: &mut u64, inherit: impl FnOnce(&mut T, &T)) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        match std::mem::replace(&mut *state, State::Empty) {
            State::Offered(mut new) => {
                inherit(&mut new, value);
                *state = State::Retired(std::mem::replace(value, new));
                *have = self.generation.load(Ordering::Acquire);
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    fn lock_politely(&self) -> MutexGuard<'_, State<T>> {
        loop {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(poisoned)) => return PoisonError::into_inner(poisoned),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

impl<T> State<T> {
    fn into_value(self) -> Option<T> {
        match self {
            State::Empty => None,
            State::Offered(value) | State::Retired(value) => Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_value_is_exchanged_once_and_the_old_one_comes_back() {
        let slot = Slot::new(1);
        let (mut value, mut have) = ("one", 1);
        assert!(!slot.has_news(have));
        assert_eq!(slot.offer(2, "two"), None);
        assert!(slot.has_news(have));
        assert_eq!(slot.offer(3, "three"), Some("two"), "an offer that nobody took");
        assert!(slot.exchange(&mut value, &mut have, |_, _| ()));
        assert_eq!((value, have), ("three", 3));
        assert!(!slot.has_news(have));
        assert!(!slot.exchange(&mut value, &mut have, |_, _| ()));
        assert_eq!(slot.collect(), Some("one"));
        assert_eq!(slot.collect(), None);
    }

    #[test]
    fn collecting_leaves_an_offer_alone() {
        let slot = Slot::new(1);
        assert_eq!(slot.offer(2, "two"), None);
        assert_eq!(slot.collect(), None);
        let (mut value, mut have) = ("one", 1);
        assert!(slot.exchange(&mut value, &mut have, |_, _| ()));
        assert_eq!(value, "two");
    }

    /// Drops are counted by thread role: the caller must never drop.
    struct Tracked(u64, Arc<AtomicUsize>, std::thread::ThreadId);
    impl Drop for Tracked {
        fn drop(&mut self) {
            if std::thread::current().id() == self.2 {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn under_load_generations_only_grow_and_the_caller_never_drops() {
        let caller = std::thread::current().id();
        let dropped_by_caller = Arc::new(AtomicUsize::new(0));
        let slot = Slot::new(0);
        let mut value = Tracked(0, dropped_by_caller.clone(), caller);
        let mut have = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for generation in 1..=2000 {
                    drop(slot.offer(generation, Tracked(generation, dropped_by_caller.clone(), caller)));
                    drop(slot.collect());
                }
            });
            while have < 2000 {
                let before = value.0;
                if slot.has_news(have) {
                    slot.exchange(&mut value, &mut have, |_, _| ());
                }
                assert!(value.0 >= before);
                assert_eq!(value.0, have);
            }
        });
        assert_eq!(dropped_by_caller.load(Ordering::Relaxed), 0);
    }
}
