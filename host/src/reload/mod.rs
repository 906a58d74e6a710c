//! `Reloader`: the thread that watches the policy directory. Reading, verifying, compiling and instantiating happen on it;
//! a communicator only exchanges pointers, at its next call (`Slot`). It also tells the world about the process
//! ([`observe`](crate::observe)), so that no other thread is needed.
//!
//! [`SwitchPolicy`] says which communicators take a new plan, and is the seam for switching several ranks at an agreed
//! call.

mod plan;
mod slot;
mod watch;

pub(crate) use slot::{Slot, offers};

use crate::config::Source;
use crate::decision::CommInfo;
use crate::ffi::sys;
use crate::host::{Host, tell};
use crate::observe::{Observer, Settings};
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
    /// Starts the thread, with all signals blocked. The environment is read here, on NCCL's thread.
    pub(crate) fn start(host: &'static Host, source: Source) -> io::Result<Reloader> {
        let (stopped, stop) = io::pipe()?;
        let settings = Settings::from_env(Some(&source.path()));
        let builder = std::thread::Builder::new().name("ringfence".into());
        let body = move || run(host, &source, &stopped, settings);
        let thread = sys::with_signals_blocked(|| builder.spawn(body))?;
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

fn run(host: &'static Host, source: &Source, stopped: &PipeReader, settings: Settings) {
    let watch = match Watch::new(source.clone()) {
        Ok(watch) => Some(watch),
        Err(e) => {
            tell!(Warn, "cannot watch {} ({e}): no hot reload", source.path().display());
            None
        }
    };
    let planner = Planner::new(Duration::ZERO);
    let observer = guarded("the status", || Observer::start(settings, host));
    let mut work = Work { host, source, watch, planner, observer, start: Instant::now() };
    while let Ok(false) = work.step(stopped).inspect_err(|e| {
        tell!(Warn, "cannot watch {} any more ({e}): no hot reload", source.path().display());
    }) {}
    if let Some(observer) = work.observer {
        guarded("the last status", || observer.stop(host));
    }
}

/// Runs `f`; a panic in it must not end the thread's other work for the rest of the job.
fn guarded<R>(what: &str, f: impl FnOnce() -> R) -> Option<R> {
    let done = catch_unwind(AssertUnwindSafe(f)).ok();
    if done.is_none() {
        tell!(Error, "a defect stopped {what}; the policy in force stays");
    }
    done
}

/// What the thread works with.
struct Work<'a> {
    host: &'static Host,
    source: &'a Source,
    watch: Option<Watch>,
    planner: Planner,
    observer: Option<Observer>,
    start: Instant,
}

impl Work<'_> {
    /// Does what is due, then sleeps until something happens or is due; true when the thread is to end.
    fn step(&mut self, stopped: &PipeReader) -> io::Result<bool> {
        while let Some(action) = self.planner.due(self.start.elapsed()) {
            guarded("a reload", || self.act(action));
        }
        self.wait(stopped)
    }

    fn act(&mut self, action: Action) {
        let now = self.start.elapsed();
        match (action, &mut self.watch) {
            (Action::Watch, Some(watch)) => self.planner.watching(now, watch.renew().is_ok()),
            (Action::Watch, None) => self.planner.watching(now, false),
            (Action::Reload, _) => self.host.reload(self.source),
            (Action::Tick, watch) => {
                self.host.tick();
                if watch.as_ref().is_some_and(Watch::is_stale) {
                    self.planner.event(now, Event::Gone);
                }
                self.observe("the status", |observer, host| observer.tick(host));
            }
        }
    }

    fn wait(&mut self, stopped: &PipeReader) -> io::Result<bool> {
        // Rounded up, or the last fraction of a millisecond would be spent spinning.
        let sleep = self.planner.sleep(self.start.elapsed()) + Duration::from_millis(1);
        let events = self.watch.as_ref().map(|w| w.as_fd());
        let asked = self.observer.as_ref().and_then(Observer::wake);
        let [end, events, asked] = sys::wait_readable([Some(stopped.as_fd()), events, asked], sleep)?;
        if end {
            return Ok(true);
        }
        if events && let Some(watch) = &mut self.watch {
            watch.drain(|event| self.planner.event(self.start.elapsed(), event))?;
        }
        if asked {
            self.observe("answering a tool", |observer, host| observer.serve(host));
        }
        Ok(false)
    }

    /// Lets the observer do something. It is not asked again after a panic: it would come each second.
    fn observe(&mut self, what: &str, f: impl FnOnce(&mut Observer, &Host)) {
        let Some(observer) = &mut self.observer else { return };
        if guarded(what, || f(observer, self.host)).is_none() {
            self.observer = None;
        }
    }
}
