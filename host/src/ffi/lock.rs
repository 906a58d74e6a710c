//! [`TryLock`]: a lock that is never waited for, and costs its usual thread no locked instruction.
//!
//! NCCL enters a communicator from one thread at a time, nearly always the same. The atomic exchange of a plain
//! try-lock takes some 8 ns by itself and practically never has a rival. So the lock is *biased*: the first thread that
//! enters owns the bias and enters with plain stores; whoever else comes takes the bias away first, for good.
//!
//! Not shown yet: that a whole decision gains by it. noop stood at 44 ns of CPU with the plain lock and with this one (`benches/decide.rs`,
//! one machine, one run each). If a quiet machine confirms that, the plain lock is the better code.
//!
//! # Why at most one thread is inside
//! The owner announces itself (`busy`), then looks whether it still is the owner. Who takes the bias away clears `owner`, then
//! makes every thread of the process pass a full memory barrier (`membarrier`, Linux), then looks at `busy`. The barrier falls
//! either before the owner's announcement, and then the owner sees that it has lost the bias and stays out; or after
//! it, and then the other sees it, and stays out. This is Dekker's algorithm with the owner's fence moved to the
//! rival, as in biased locks of virtual machines. Rivals exclude each other by `guard`.
//! What one thread did inside is seen by the next: `busy` and `guard` are released on leaving and acquired on entering.
//!
//! A bias is granted once in a lock's life. With a second one, an owner that lost the first between its two looks at `owner` could
//! still set and clear `busy`, long after, and hide the next owner's announcement. (It also bounds the price: taking a bias
//! away is a system call of some microseconds.) Afterwards, and where the kernel has no `membarrier` or a sandbox
//! forbids it, every entry goes by `guard`.
//!
//! A thread is known by its thread pointer. A thread that starts at the address of one that ended inherits its bias; that
//! is sound, as the C library orders the end of the one before the start of the other.

use super::sys;
use crate::memory::thread_pointer;
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

/// No thread has this thread pointer.
const NOBODY: usize = 0;

/// A value that one thread at a time may enter; others are turned away, never made to wait.
pub(crate) struct TryLock<T> {
    /// Thread pointer of the bias's owner.
    owner: AtomicUsize,
    /// The owner is inside. Written by the one thread that ever was the owner.
    busy: AtomicBool,
    /// Somebody without a bias is inside.
    guard: AtomicBool,
    /// There was an owner. Written under the guard.
    granted: AtomicBool,
    cell: UnsafeCell<T>,
}

// SAFETY: `cell` is only touched by the one thread inside (module docs), and entering and leaving hand the value from thread
// to thread like a mutex does; hence T: Send is enough.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    pub(crate) const fn new(value: T) -> TryLock<T> {
        TryLock {
            owner: AtomicUsize::new(NOBODY),
            busy: AtomicBool::new(false),
            guard: AtomicBool::new(false),
            granted: AtomicBool::new(false),
            cell: UnsafeCell::new(value),
        }
    }

    /// Runs `f` on the value if nobody is inside (`None` otherwise), and keeps the way short for this thread's next time. A
    /// panic in `f` leaves the lock closed for good: the value may be half-changed.
    #[inline]
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let me = thread_pointer();
        self.enter_as(me, me, f)
    }

    /// As [`enter`](TryLock::enter), for a thread that will not come back soon: it gets no bias.
    pub(crate) fn enter_once<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.enter_as(thread_pointer(), NOBODY, f)
    }

    #[inline]
    fn enter_as<R>(&self, me: usize, next: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.owner.load(Ordering::Relaxed) == me && !self.busy.load(Ordering::Relaxed) {
            self.busy.store(true, Ordering::Relaxed);
            // The rival's membarrier makes of this a full fence where it matters.
            compiler_fence(Ordering::SeqCst);
            if self.owner.load(Ordering::Relaxed) == me {
                // SAFETY: this thread is the owner and announced itself before it checked that: nobody else is inside
                // or gets in until `busy` is cleared (module docs).
                let result = f(unsafe { &mut *self.cell.get() });
                self.busy.store(false, Ordering::Release);
                return Some(result);
            }
            self.busy.store(false, Ordering::Release);
        }
        self.enter_unbiased(next, f)
    }

    /// Enters by the guard; afterwards the bias is `next`'s, if there never was one.
    #[cold]
    fn enter_unbiased<R>(&self, next: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.guard.swap(true, Ordering::Acquire) {
            return None;
        }
        if !self.revoke() {
            // Closed for good: nobody can tell any more whether the last owner is inside.
            return None;
        }
        if self.busy.load(Ordering::Acquire) {
            self.guard.store(false, Ordering::Release);
            return None;
        }
        // SAFETY: this thread holds the guard, nobody has a bias any more, and the last owner is not inside.
        let result = f(unsafe { &mut *self.cell.get() });
        if next != NOBODY && !self.granted.load(Ordering::Relaxed) && bias_is_possible() {
            self.granted.store(true, Ordering::Relaxed);
            self.owner.store(next, Ordering::Release);
        }
        self.guard.store(false, Ordering::Release);
        Some(result)
    }

    /// Takes the bias from whoever has it, under the guard. False if that could not be made sure of (never seen: the kernel
    /// granted the barrier when the process registered for it).
    fn revoke(&self) -> bool {
        if self.owner.load(Ordering::Relaxed) == NOBODY {
            return true;
        }
        self.owner.store(NOBODY, Ordering::SeqCst);
        sys::barrier_in_all_threads()
    }
}

/// Did the kernel grant this process its barrier? Asked once, off the decision path: a lock's first user goes by the guard.
fn bias_is_possible() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(sys::register_barrier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_fight_for_it_never_meet_inside() {
        let lock = TryLock::new((0u64, false));
        let entered: u64 = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let visit = |v: &mut (u64, bool)| {
                            assert!(!v.1, "somebody else is inside");
                            v.1 = true;
                            v.0 += 1;
                            std::hint::black_box(&mut *v);
                            v.1 = false;
                        };
                        (0..50_000).filter(|_| lock.enter(visit).is_some()).count() as u64
                    })
                })
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).sum()
        });
        assert_eq!(lock.enter(|v| v.0), Some(entered));
    }

    /// Fresh locks, so that each round has an owner that enters without pause while a rival takes its bias.
    #[test]
    fn a_rival_takes_the_bias_from_a_running_owner() {
        for _ in 0..200 {
            let lock = TryLock::new(0u64);
            let entered: u64 = std::thread::scope(|scope| {
                let owner = scope.spawn(|| (0..2_000).filter(|_| lock.enter(|v| *v += 1).is_some()).count());
                let rival = scope.spawn(|| (0..20).filter(|_| lock.enter(|v| *v += 1).is_some()).count());
                (owner.join().unwrap() + rival.join().unwrap()) as u64
            });
            assert_eq!(lock.enter(|v| *v), Some(entered));
        }
    }

    #[test]
    fn the_owner_is_turned_away_from_inside_and_so_are_others() {
        let lock = TryLock::new(1);
        assert_eq!(lock.enter(|v| *v), Some(1));
        let seen = lock.enter(|_| {
            let other = std::thread::scope(|s| s.spawn(|| lock.enter(|v| *v)).join().unwrap());
            (lock.enter(|v| *v), other)
        });
        assert_eq!(seen, Some((None, None)));
        assert_eq!(lock.enter(|v| *v), Some(1));
        assert_eq!(std::thread::scope(|s| s.spawn(|| lock.enter(|v| *v)).join().unwrap()), Some(1));
    }

    #[test]
    fn a_bias_is_granted_once_and_users_may_keep_changing() {
        let lock = TryLock::new(0);
        assert_eq!(lock.enter_once(|v| *v += 1), Some(()));
        assert_eq!(lock.owner.load(Ordering::Relaxed), NOBODY);
        assert_eq!(lock.enter(|v| *v += 1), Some(()));
        let biased = lock.owner.load(Ordering::Relaxed) == thread_pointer();
        assert_eq!(biased, bias_is_possible());
        assert_eq!(lock.enter_once(|v| *v += 1), Some(()), "its owner takes the short way");
        assert_eq!(lock.owner.load(Ordering::Relaxed) != NOBODY, biased);
        for _ in 0..10 {
            let entered = std::thread::scope(|s| s.spawn(|| lock.enter(|v| *v += 1)).join().unwrap());
            assert_eq!(entered, Some(()));
            assert_eq!(lock.enter(|v| *v += 1), Some(()));
            assert_eq!(lock.owner.load(Ordering::Relaxed), NOBODY);
        }
        assert_eq!(lock.enter(|v| *v), Some(23));
    }
}
