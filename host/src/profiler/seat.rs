//! [`Seat`]: the place of one communicator's policies. One thread at a time is inside; whoever finds it taken leaves its work in a
//! bounded queue for that thread, and goes on.

use super::counters::{Count, Counters};
use super::work::{Queue, Work};
use crate::ffi::lock::TryLock;

/// What runs the policies of a communicator.
pub(crate) trait Policies: Send {
    /// Runs every policy that stands on the work's hook, in order.
    fn run(&mut self, work: &Work);
    /// The communicator has ended.
    fn leave(self: Box<Self>);
}

/// See the module.
pub(crate) struct Seat {
    inside: TryLock<Option<Box<dyn Policies>>>,
    waiting: Queue,
}

impl Seat {
    pub(crate) fn new() -> Seat {
        Seat { inside: TryLock::new(None), waiting: Queue::new() }
    }

    /// Seats the policies of a new communicator. False if a call that panicked holds the place for good.
    pub(crate) fn seat(&self, policies: Box<dyn Policies>) -> bool {
        self.patiently(|seat| *seat = Some(policies)).is_some()
    }

    /// Takes the policies away, after they did what was waiting.
    pub(crate) fn vacate(&self) {
        let left = self.patiently(|seat| {
            if let Some(policies) = seat {
                self.serve_waiting(policies.as_mut());
            }
            seat.take()
        });
        if let Some(policies) = left.flatten() {
            policies.leave();
        }
        while self.waiting.pop().is_some() {}
    }

    /// Runs the policies on `work`, here or on the thread that is inside. Never waits.
    ///
    /// If that thread leaves at the very moment in which this one finds the place taken, the work waits for the next event of the
    /// communicator, or its end.
    #[inline]
    pub(crate) fn run(&self, work: &Work, counters: &Counters) {
        let entered = self.inside.enter(|seat| {
            if let Some(policies) = seat {
                policies.run(work);
                self.serve_waiting(policies.as_mut());
            }
        });
        if entered.is_none() {
            self.hand_over(work, counters);
        }
    }

    #[cold]
    fn hand_over(&self, work: &Work, counters: &Counters) {
        if !self.waiting.push(work) {
            counters.count(Count::Dropped);
            return;
        }
        counters.count(Count::HandedOver);
        self.inside.enter_once(|seat| {
            if let Some(policies) = seat {
                self.serve_waiting(policies.as_mut());
            }
        });
    }

    #[inline]
    fn serve_waiting(&self, policies: &mut dyn Policies) {
        if self.waiting.is_empty() {
            return;
        }
        // Bounded: this may be NCCL's proxy thread, and others may keep adding.
        for _ in 0..super::work::QUEUE {
            let Some(work) = self.waiting.pop() else { return };
            policies.run(&work);
        }
    }

    /// Off the event path: waits for a call that is inside (a microsecond at most), and gives up after a while.
    fn patiently<R>(&self, f: impl FnOnce(&mut Option<Box<dyn Policies>>) -> R) -> Option<R> {
        let mut f = Some(f);
        for _ in 0..1000 {
            let done = self.inside.enter_once(|seat| f.take().map(|f| f(seat)));
            if let Some(result) = done {
                return result;
            }
            std::thread::yield_now();
        }
        None
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seat")
    }
}
