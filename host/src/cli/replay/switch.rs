//! [`Switch`]: the replacement of the policy in the middle of a replay, and [`Reload`], how it went.

use super::Args;
use super::group::Shape;
use super::stage::{Prepared, Stage};
use super::worker::Shared;
use crate::ffi::driver::{LogLine, take_log};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// How long the plugin may take to load the new policy.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at the log.
const TICK: Duration = Duration::from_micros(100);
/// `NCCL_LOG_WARN`.
pub(super) const WARN: i32 = 2;

/// Is this the plugin's word that it refused a policy?
pub(super) fn is_refusal(line: &LogLine) -> bool {
    line.level <= WARN && line.text.contains("refused")
}

/// How a reload went.
#[derive(Debug, Default)]
pub(super) struct Reload {
    /// Collectives done when the policy was replaced.
    pub(super) at: u64,
    /// From the rename to the plugin's first word about the new policy.
    pub(super) told: Option<Duration>,
    /// What it said from the rename on.
    pub(super) lines: Vec<LogLine>,
    /// The plugin refused the new policy.
    pub(super) refused: bool,
    /// Communicators had to be made anew, since those of several ranks keep their policy.
    pub(super) renewed: bool,
}

/// A replacement that is ready.
pub(super) struct Switch(Prepared);

impl Switch {
    /// Copies the new policy beside the old one; `None` if no reload is asked for.
    pub(super) fn prepare(args: &Args, root: &Path) -> anyhow::Result<Option<Switch>> {
        let (Some(with), Some(policy)) = (&args.with, std::env::var_os(super::POLICY_VAR)) else {
            return Ok(None);
        };
        let stage = Stage::reopen(root, Path::new(&policy))?;
        Ok(Some(Switch(stage.prepare(with)?)))
    }

    /// Replaces the policy and waits until all threads run on the new one, or it is refused.
    pub(super) fn run(self, shape: Shape, threads: u32, shared: &Shared) -> anyhow::Result<Reload> {
        take_log();
        let at = shared.done.load(SeqCst);
        shared.switched_ns.store(shared.now_ns(), SeqCst);
        let start = Instant::now();
        self.0.switch()?;
        let mut reload = Reload { at, ..Reload::default() };
        while start.elapsed() < PATIENCE && !reload.listen(start) {
            if shared.arrived.load(SeqCst) >= threads {
                break;
            }
            thread::sleep(TICK);
        }
        if !reload.refused && reload.told.is_some() {
            reload.renewed = shape.ranks > 1;
            reload.follow(threads, shared, start);
        }
        shared.settled.store(true, SeqCst);
        Ok(reload)
    }
}

impl Reload {
    /// Takes new lines of the log; true once the plugin has told that it loaded or refused the policy.
    fn listen(&mut self, start: Instant) -> bool {
        for line in take_log() {
            self.refused |= is_refusal(&line);
            if line.text.contains("policy") {
                self.told.get_or_insert_with(|| start.elapsed());
            }
            self.lines.push(line);
        }
        self.told.is_some()
    }

    /// Lets every thread come to the new policy, by new communicators where needed.
    fn follow(&mut self, threads: u32, shared: &Shared, start: Instant) {
        if self.renewed {
            shared.generation.fetch_add(1, SeqCst);
        }
        shared.told.store(self.told.is_some() && !self.renewed, SeqCst);
        while shared.arrived.load(SeqCst) < threads && start.elapsed() < PATIENCE {
            self.listen(start);
            thread::sleep(TICK);
        }
    }
}
