//! [`Observer`]: what a process tells about itself while it runs: a status file, a control file for its maps, and metrics for
//! Prometheus. All of it is the reload thread's work; NCCL's threads only count.
//!
//! [`RunDir`] is the directory where it lies, [`Status`] what the status file holds, [`prometheus`] the metrics, [`control`] the control
//! file, [`value`] map contents as BTF names them.

mod collect;
pub mod control;
pub mod dir;
mod numbers;
pub mod prometheus;
mod speak;
pub mod status;
pub mod value;

pub use dir::{Identity, RunDir, locations};
pub use status::Status;

use crate::host::{Host, tell};
use crate::profiler::PROFILERS;
use control::Server;
use dir::STATUS;
use numbers::MapNumbers;
use speak::Speaker;
use status::{OperationStatus, operations_since};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Environment variable that names a file for Prometheus; `%p` in it is the process number.
pub const METRICS_FILE_VAR: &str = "RINGFENCE_METRICS_FILE";
/// Environment variable for the seconds between two versions of that file, 1 to 86400.
pub const METRICS_INTERVAL_VAR: &str = "RINGFENCE_METRICS_INTERVAL";
const DEFAULT_METRICS_INTERVAL: Duration = Duration::from_secs(30);
/// A status that says nothing new is written again after so long, so that its age tells that the process lives.
const REPEAT: Duration = Duration::from_secs(10);

/// What the environment says, read on NCCL's thread: see [`Host`].
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    dir: Option<PathBuf>,
    metrics_file: Option<PathBuf>,
    metrics_interval: Duration,
    source: Option<String>,
    slurm_job_id: Option<String>,
}

impl Settings {
    /// Reads the environment.
    pub(crate) fn from_env(source: Option<&Path>) -> Settings {
        let interval = std::env::var(METRICS_INTERVAL_VAR).ok();
        let file = std::env::var_os(METRICS_FILE_VAR).filter(|v| !v.is_empty()).map(PathBuf::from);
        if file.is_some() {
            // Now, and not on the observer's thread: the first communicator may have ended when that begins.
            PROFILERS.keep_ended();
        }
        Settings {
            dir: locations().into_iter().next(),
            metrics_file: file.map(|f| std::path::absolute(&f).unwrap_or(f)),
            metrics_interval: seconds(interval.as_deref()).unwrap_or(DEFAULT_METRICS_INTERVAL),
            source: source.map(|s| s.display().to_string()),
            slurm_job_id: std::env::var("SLURM_JOB_ID").ok(),
        }
    }
}

fn seconds(text: Option<&str>) -> Option<Duration> {
    let n = text?.trim().parse().ok().filter(|n| (1..=86400).contains(n))?;
    Some(Duration::from_secs(n))
}

/// Observers of this copy of Ringfence so far.
static OBSERVERS: AtomicU64 = AtomicU64::new(1);

/// A number that no other observer of the process has: where this copy of Ringfence lies (there may be another, in a library), and which
/// observer of it this is. Not which host: while a host's last observer puts its files away, the next one may begin.
fn unique_number() -> u64 {
    let copy = std::ptr::from_ref(&OBSERVERS).addr() as u64;
    copy << 16 | OBSERVERS.fetch_add(1, Ordering::Relaxed) & 0xffff
}

/// See the module's text. Lives on the reload thread.
pub(crate) struct Observer {
    settings: Settings,
    identity: Identity,
    /// A number that no other observer of the process has.
    host: u64,
    part: u32,
    command: String,
    node: String,
    dir: Option<RunDir>,
    server: Option<Server>,
    numbers: MapNumbers,
    speaker: Speaker,
    /// The status as written last, and when.
    written: Option<(Status, Instant)>,
    metrics_due: Instant,
    /// As in the metrics written last: what they tell of operations is about the time since.
    exported: Vec<OperationStatus>,
    /// As in the metrics before those, and the ended communicators that were in those: the job's last metrics go back that far.
    earlier: Vec<OperationStatus>,
    ended: Vec<OperationStatus>,
    /// Said once, not each second.
    complained: bool,
}

impl Observer {
    /// Opens the directory, removes what dead processes left there, makes the control file, and writes a first status.
    pub(crate) fn start(settings: Settings, host: &Host) -> Observer {
        let mut observer = Observer {
            dir: None,
            server: None,
            identity: Identity::own(),
            host: unique_number(),
            part: 0,
            command: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim().to_owned(),
            node: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            numbers: MapNumbers::default(),
            speaker: Speaker::default(),
            written: None,
            metrics_due: Instant::now(),
            exported: Vec::new(),
            earlier: Vec::new(),
            ended: Vec::new(),
            complained: false,
            settings,
        };
        observer.open();
        observer.tick(host);
        observer
    }

    fn open(&mut self) {
        let Some(path) = &self.settings.dir else { return };
        match RunDir::create(path) {
            Ok(dir) => {
                dir.clean();
                self.dir = Some(dir);
                self.open_server();
            }
            Err(e) => {
                tell!(Warn, "no status of this process ({e}); {} names another directory", dir::RUN_DIR_VAR)
            }
        }
    }

    fn open_server(&mut self) {
        let Some(dir) = &self.dir else { return };
        match Server::open(dir, self.identity, self.host) {
            Ok(server) => {
                self.part = server.part();
                self.server = Some(server);
            }
            Err(e) => self.complain(&format!("`ringfence map` cannot reach this process: {e}")),
        }
    }

    /// What becomes readable when a tool asks for something.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.server.as_ref().and_then(Server::wake)
    }

    /// Answers a tool, if one has asked.
    pub(crate) fn serve(&mut self, host: &Host) {
        if let Some(server) = &mut self.server {
            server.serve(host.maps().as_deref(), &mut self.numbers);
        }
    }

    /// Once a second.
    pub(crate) fn tick(&mut self, host: &Host) {
        self.serve(host);
        self.speaker.speak(host);
        if self.server.as_ref().is_some_and(Server::is_lost) {
            // The next one may have another name.
            self.withdraw();
            self.server = None;
            self.open_server();
        }
        let metrics = self.settings.metrics_file.is_some() && self.metrics_due <= Instant::now();
        if self.dir.is_none() && !metrics {
            return;
        }
        let status = self.collect(host);
        if metrics {
            self.metrics_due = Instant::now() + self.settings.metrics_interval;
            self.export(host, &status, false);
        }
        self.publish(status);
    }

    /// The name of the status file.
    fn status_name(&self) -> String {
        format!("{}{STATUS}", dir::host_name(self.identity.pid, self.part))
    }

    /// Removes the status file.
    fn withdraw(&mut self) {
        if let (Some(dir), Some(_)) = (&self.dir, self.written.take()) {
            let _ = dir.remove(&self.status_name());
        }
    }

    /// Writes the status, if it says anything new. Without a control file its name may be another host's.
    fn publish(&mut self, status: Status) {
        let (Some(dir), Some(_)) = (&self.dir, &self.server) else { return };
        if let Some((last, when)) = &self.written
            && when.elapsed() < REPEAT
            && last.says_the_same(&status)
        {
            return;
        }
        let put = serde_json::to_vec(&status)
            .map_err(io::Error::from)
            .and_then(|bytes| dir.put(&self.status_name(), &bytes));
        match put {
            Ok(()) => self.written = Some((status, Instant::now())),
            Err(e) => self.complain(&format!("cannot write the status of this process: {e}")),
        }
    }

    /// Writes the metrics. Communicators that have ended since the last time are in them for the last time. The job's `last` metrics,
    /// which stay, go back one turn further: else they would be empty where the turn before had just been.
    fn export(&mut self, host: &Host, status: &Status, last: bool) {
        let Some(path) = &self.settings.metrics_file else { return };
        let path = expand(path, self.identity.pid, self.part);
        let ended = if host.is_named() { Vec::new() } else { collect::ended_operations() };
        let mut all = [&status.operations[..], &ended].concat();
        let mut before = std::mem::replace(&mut self.exported, status.operations.clone());
        if last {
            all.append(&mut self.ended);
            before = std::mem::take(&mut self.earlier);
        }
        let operations = operations_since(&all, &before);
        (self.earlier, self.ended) = (before, ended);
        let text = prometheus::render(&[Status { operations, ..status.clone() }]);
        if let Err(e) = replace(&path, text.as_bytes()) {
            self.complain(&format!("cannot write {}: {e}", path.display()));
        }
    }

    fn complain(&mut self, what: &str) {
        if !std::mem::replace(&mut self.complained, true) {
            tell!(Warn, "{what}");
        }
    }

    /// Writes what is left to say and the metrics a last time, and removes the files.
    pub(crate) fn stop(mut self, host: &Host) {
        self.speaker.speak(host);
        if self.settings.metrics_file.is_some() {
            let status = self.collect(host);
            self.export(host, &status, true);
        }
        self.withdraw();
        if let (Some(dir), Some(server)) = (&self.dir, self.server) {
            server.close(dir);
        }
    }
}

/// The path with `%p` replaced by the process number; a further host of the process has its number there too, or before the ending.
fn expand(path: &Path, pid: u32, part: u32) -> PathBuf {
    let Some(text) = path.to_str() else { return path.to_owned() };
    if part == 0 || text.contains("%p") {
        return text.replace("%p", &dir::host_name(pid, part)).into();
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some(ending) => path.with_extension(format!("{part}.{ending}")),
        None => path.with_extension(part.to_string()),
    }
}

/// Replaces a file in one step: written beside it, then renamed, so that nobody reads half of it. Everybody may read it: who collects
/// metrics is another user as a rule.
///
/// # Errors
/// Of the system.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let open = || -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&temporary)
    };
    let file = open().or_else(|e| match e.kind() {
        // Left by a process of our number that died.
        io::ErrorKind::AlreadyExists => std::fs::remove_file(&temporary).and_then(|()| open()),
        _ => Err(e),
    });
    let done = file.and_then(|mut file| {
        file.write_all(contents)?;
        // Whatever the job's umask is.
        file.set_permissions(Permissions::from_mode(0o644))?;
        std::fs::rename(&temporary, path)
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_whole_seconds() {
        for (text, want) in [("1", Some(1)), (" 30 ", Some(30)), ("86400", Some(86400))] {
            assert_eq!(seconds(Some(text)), want.map(Duration::from_secs), "{text}");
        }
        for text in ["", "0", "-1", "86401", "1.5", "x"] {
            assert_eq!(seconds(Some(text)), None, "{text}");
        }
        assert_eq!(seconds(None), None);
    }

    #[test]
    fn a_file_is_replaced_in_one_step_and_readable_by_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.prom");
        std::fs::write(dir.path().join(format!(".m.prom.{}.tmp", std::process::id())), "left over").unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(replace(&dir.path().join("no/such"), b"x").is_err());
        assert!(replace(Path::new("/"), b"x").is_err());
    }

    #[test]
    fn the_process_number_stands_for_percent_p() {
        for (path, part, want) in [
            ("/x/%p.prom", 0, "/x/7.prom"),
            ("/x/%p.prom", 2, "/x/7.2.prom"),
            ("/x/a.prom", 0, "/x/a.prom"),
            ("/x/a.prom", 2, "/x/a.2.prom"),
            ("/x/a", 2, "/x/a.2"),
        ] {
            assert_eq!(expand(Path::new(path), 7, part), Path::new(want), "{path} {part}");
        }
    }
}
