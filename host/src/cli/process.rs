//! [`find`]: the processes of this user that have Ringfence loaded, by the status files that they keep.

use crate::observe::dir::{MAX_STATUS, STATUS, host_name, split_name};
use crate::observe::{RunDir, Status, locations};
use anyhow::bail;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Which process a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// The process, as `status` names it; without it, the only one that has Ringfence loaded.
    #[arg(long, value_name = "PID", global = true)]
    pub(super) pid: Option<Pid>,
}

/// A process number, or that of one of its hosts: `4242`, `4242.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pid {
    pid: u32,
    part: Option<u32>,
}

impl std::str::FromStr for Pid {
    type Err = String;

    fn from_str(text: &str) -> Result<Pid, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no process number"));
        Ok(match text.split_once('.') {
            Some((pid, part)) => Pid { pid: number(pid)?, part: Some(number(part)?) },
            None => Pid { pid: number(text)?, part: None },
        })
    }
}

impl std::fmt::Display for Pid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&host_name(self.pid, self.part.unwrap_or(0)))
    }
}

impl Pid {
    fn means(self, status: &Status) -> bool {
        self.pid == status.pid && self.part.is_none_or(|part| part == status.part)
    }
}

/// A process with the directory that it keeps its files in.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) status: Status,
    pub(super) dir: RunDir,
    /// It lives in another process namespace (a container), so nobody here can tell whether it lives.
    pub(super) elsewhere: bool,
}

impl Process {
    /// Time since the status was written.
    pub(super) fn age(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(Duration::from_millis(self.status.written_unix_ms))
    }

    /// `4242 (python3)`
    pub(super) fn title(&self) -> String {
        format!("{} ({})", self.status.id(), self.status.command.escape_debug())
    }
}

/// All processes, or the one of that number. Files of dead ones are removed on the way; what cannot be read is told on standard error.
pub(super) fn find(pid: Option<Pid>) -> anyhow::Result<Vec<Process>> {
    let places = locations();
    if places.is_empty() {
        bail!("RINGFENCE_RUN_DIR is off: no process can be found");
    }
    let mut found = Vec::new();
    for place in places {
        match RunDir::open(&place) {
            Ok(dir) => read_all(&dir, pid, &mut found)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => eprintln!("ringfence: {e}"),
        }
    }
    found.sort_by_key(|p| (p.status.pid, p.status.part));
    Ok(found)
}

fn read_all(dir: &RunDir, pid: Option<Pid>, found: &mut Vec<Process>) -> anyhow::Result<()> {
    dir.clean();
    for name in dir.names()? {
        let Some((number, STATUS)) = split_name(&name) else { continue };
        if pid.is_some_and(|pid| pid.pid != number) {
            continue;
        }
        let status = match dir.read(&name, MAX_STATUS) {
            Ok(bytes) => Status::parse(&bytes),
            // Its process ended this very moment.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => Err(e.to_string()),
        };
        match status {
            Ok(status) if pid.is_some_and(|pid| !pid.means(&status)) => {}
            Ok(status) => {
                let elsewhere = status.identity().is_alive().is_none();
                found.push(Process { status, dir: RunDir::open(dir.path())?, elsewhere });
            }
            Err(why) => eprintln!("ringfence: {}: {why}", dir.path().join(&name).display()),
        }
    }
    Ok(())
}

/// The one process that is meant.
pub(super) fn one(choice: &Choice) -> anyhow::Result<Process> {
    let mut found = find(choice.pid)?;
    match (found.len(), found.pop(), choice.pid) {
        (1, Some(process), _) => Ok(process),
        (0, _, Some(pid)) => bail!("process {pid} {}", nothing()),
        (0, _, None) => bail!("no process of this user {}", nothing()),
        (_, last, _) => {
            let pids: Vec<_> = found.iter().chain(&last).map(Process::title).collect();
            bail!("several processes have Ringfence loaded, choose one with --pid: {}", pids.join(", "))
        }
    }
}

/// Why nothing is found.
pub(super) fn nothing() -> String {
    let looked: Vec<_> = locations().iter().map(PathBuf::as_path).map(|p| p.display().to_string()).collect();
    format!(
        "has a policy source and communicators (looked in {}; a job with another RINGFENCE_RUN_DIR needs it here too)",
        looked.join(" and ")
    )
}
