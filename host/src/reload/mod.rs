//! `Reloader`: the thread that watches the policy directory. Reading, verifying, compiling and instantiating happen on it;
//! a communicator only exchanges pointers, at its next call (`Slot`).
//!
//! [`SwitchPolicy`] says which communicators take a new plan, and is the seam for switching several ranks at an agreed
//! call.

mod plan;
mod slot;
mod watch;

pub(crate) use slot::Slot;

use crate::config::Source;
use crate::decision::CommInfo;
use crate::ffi::sys;
use crate::host::{Host, tell};
use plan::{Action, Event, Planner};
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watch::Watch;

/// When a communicator takes a new plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwitchPolicy {
    /// At its next call: it has one rank, hence nobody to disagree with.
    NextCall,
    /// Never: its ranks would switch at different calls and hang. New communicators get the new plan.
    NewCommunicators,
}

impl SwitchPolicy {
    /// The policy for a communicator.
    pub fn of(info: &CommInfo) -> SwitchPolicy {
        if info.n_ranks <= 1 { SwitchPolicy::NextCall } else { SwitchPolicy::NewCommunicators }
    }
}

/// The running thread.
pub(crate) struct Reloader {
    stop: PipeWriter,
    thread: JoinHandle<()>,
}

impl Reloader {
    /// Starts the thread, with all signals blocked.
    pub(crate) fn start(host: &'static Host, source: Source) -> io::Result<Reloader> {
        let (stopped, stop) = io::pipe()?;
        let builder = std::thread::Builder::new().name("ringfence".into());
        let thread = sys::with_signals_blocked(|| builder.spawn(move || run(host, &source, &stopped)))?;
        Ok(Reloader { stop, thread })
    }

    /// Stops the thread and waits until it has ended; a load under way is finished first.
    pub(crate) fn stop(mut self) {
        // A byte, not only a hang-up: a forked child may hold a copy of the pipe's end.
        let _ = self.stop.write_all(&[1]);
        drop(self.stop);
        let _ = self.thread.join();
    }
}

fn run(host: &'static Host, source: &Source, stopped: &PipeReader) {
    let mut watch = match Watch::new(source.clone()) {
        Ok(watch) => Some(watch),
        Err(e) => {
            tell!(Warn, "cannot watch {} ({e}): no hot reload", source.path().display());
            None
        }
    };
    let start = Instant::now();
    let mut planner = Planner::new(Duration::ZERO);
    loop {
        while let Some(action) = planner.due(start.elapsed()) {
            let host = AssertUnwindSafe(host);
            // A panic while loading one set must not end reloading for the rest of the job.
            if catch_unwind(AssertUnwindSafe(|| act(*host, source, &mut watch, &mut planner, action, start)))
                .is_err()
            {
                tell!(Error, "a defect stopped a reload; the policy in force stays");
            }
        }
        match wait(&mut watch, stopped, &mut planner, start) {
            Ok(true) => return,
            Ok(false) => {}
            Err(e) => {
                tell!(Warn, "cannot watch {} any more ({e}): no hot reload", source.path().display());
                return;
            }
        }
    }
}

fn act(
    host: &Host,
    source: &Source,
    watch: &mut Option<Watch>,
    planner: &mut Planner,
    action: Action,
    start: Instant,
) {
    match (action, watch) {
        (Action::Watch, Some(watch)) => planner.watching(start.elapsed(), watch.renew().is_ok()),
        (Action::Watch, None) => planner.watching(start.elapsed(), false),
        (Action::Reload, _) => host.reload(source),
        (Action::Tick, watch) => {
            host.tick();
            if watch.as_ref().is_some_and(Watch::is_stale) {
                planner.event(start.elapsed(), Event::Gone);
            }
        }
    }
}

/// Sleeps until something happens or is due; true when the thread is to end.
fn wait(
    watch: &mut Option<Watch>,
    stopped: &PipeReader,
    planner: &mut Planner,
    start: Instant,
) -> io::Result<bool> {
    // Rounded up, or the last fraction of a millisecond would be spent spinning.
    let sleep = planner.sleep(start.elapsed()) + Duration::from_millis(1);
    let Some(watch) = watch else {
        return Ok(sys::wait_readable([stopped.as_fd()], sleep)?[0]);
    };
    let [end, events] = sys::wait_readable([stopped.as_fd(), watch.as_fd()], sleep)?;
    if events && !end {
        watch.drain(|event| planner.event(start.elapsed(), event))?;
    }
    Ok(end)
}
