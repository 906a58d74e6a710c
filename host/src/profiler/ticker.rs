//! [`Ticker`]: the thread that opens and closes sampling windows and follows a downstream profiler's mask. It runs only where one of the
//! two is in use, and only while there are communicators.

use super::mask::Sampling;
use super::table::Profilers;
use crate::ffi::sys;
use crate::host::tell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a downstream profiler's mask is looked at.
const FOLLOW: Duration = Duration::from_millis(100);

/// The running thread.
pub(super) struct Ticker {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
    /// After a fork the thread is not in this process.
    pid: u32,
}

impl Ticker {
    /// Starts the thread, with all signals blocked. `None`, and a line in the log, if there can be none.
    pub(super) fn start(profilers: &'static Profilers, sampling: Option<Sampling>) -> Option<Ticker> {
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = end.clone();
        let builder = std::thread::Builder::new().name("ringfence-prof".into());
        let run = move || run(profilers, sampling, &shared);
        match sys::with_signals_blocked(|| builder.spawn(run)) {
            Ok(thread) => Some(Ticker { end, thread, pid: std::process::id() }),
            Err(e) => {
                tell!(Warn, "no sampling thread ({e}): events are asked for all the time");
                None
            }
        }
    }

    /// Ends the thread and waits for it.
    pub(super) fn stop(self) {
        if self.pid != std::process::id() {
            return;
        }
        *self.end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.1.notify_all();
        let _ = self.thread.join();
    }
}

fn run(profilers: &Profilers, sampling: Option<Sampling>, end: &(Mutex<bool>, Condvar)) {
    let begun = Instant::now();
    let mut ended = end.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*ended {
        let (paused, next) = sampling.map_or((false, FOLLOW), |s| s.at(begun.elapsed()));
        // Not under the lock: `stop` wants it, and the table's own lock may be waited for.
        drop(ended);
        profilers.tick(paused);
        ended = end.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !*ended {
            ended = end.1.wait_timeout(ended, next.min(FOLLOW)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Sampling {
    /// Is that moment outside of a window, and how long until that changes?
    pub(super) fn at(self, since: Duration) -> (bool, Duration) {
        let (on, period) = (Duration::from_millis(self.on_ms), Duration::from_millis(self.period_ms));
        let within = Duration::from_nanos((since.as_nanos() % period.as_nanos()) as u64);
        if within < on { (false, on - within) } else { (true, period - within) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_open_at_each_period() {
        let sampling = Sampling { on_ms: 10, period_ms: 100 };
        let ms = Duration::from_millis;
        for (at, want) in [
            (0, (false, ms(10))),
            (9, (false, ms(1))),
            (10, (true, ms(90))),
            (99, (true, ms(1))),
            (100, (false, ms(10))),
            (1_000_005, (false, ms(5))),
        ] {
            assert_eq!(sampling.at(ms(at)), want, "{at} ms");
        }
    }
}
