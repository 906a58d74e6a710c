//! NCCL's side: the driver, the plugin below, and what a run printed.

use crate::plugin::so;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

pub(crate) const VERSIONS: [u32; 7] = [6, 7, 8, 9, 10, 11, 12];

fn cc(arguments: &[String], source: &str, out: &Path) {
    let cc = std::env::var_os("CC").unwrap_or_else(|| OsStr::new("cc").to_owned());
    let status = Command::new(cc)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .args(arguments)
        .arg("-o")
        .arg(out)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("netplug").join(source))
        .arg("-ldl")
        .status()
        .expect("a C compiler (cc, or $CC)");
    assert!(status.success(), "{source}");
}

/// Files of this test's process, gone with it.
pub(crate) fn scratch() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIR.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

pub(crate) fn driver() -> PathBuf {
    static DRIVER: OnceLock<PathBuf> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            let out = scratch().join("netdrive");
            cc(&[], "netdrive.c", &out);
            out
        })
        .clone()
}

/// Builds the plugin over TCP with those versions and further macros.
pub(crate) fn netplug(versions: &[u32], defines: &[&str]) -> PathBuf {
    let named: String =
        versions.iter().map(|v| format!("-v{v}")).chain(defines.iter().map(|d| format!("-{d}"))).collect();
    let out = scratch().join(format!("libnccl-net-plug{named}.so"));
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if !out.exists() {
        let mut arguments = vec!["-fPIC".to_owned(), "-shared".to_owned()];
        arguments.extend(versions.iter().map(|v| format!("-DV{v}")));
        arguments.extend(defines.iter().map(|d| format!("-D{d}")));
        cc(&arguments, "netplug.c", &out);
    }
    out
}

/// What one run printed: results, log lines apart, and what the plugin below noted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) results: Vec<String>,
    pub(crate) log: Vec<String>,
    pub(crate) below: Vec<String>,
}

impl Run {
    pub(crate) fn has(&self, text: &str) -> bool {
        self.log.iter().any(|l| l.contains(text))
    }
}

/// Runs commands against a library, with further variables in the environment.
pub(crate) fn run(library: &Path, env: &[(&str, &OsStr)], commands: &str) -> Run {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let notes = scratch().join(format!("notes-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    let mut side = Side::start(library, &[env, &[("NETPLUG_LOG", notes.as_os_str())]].concat());
    let results: Vec<String> = commands.lines().map(|c| side.ask(c)).collect();
    let log = side.end();
    let below = std::fs::read_to_string(&notes).unwrap_or_default().lines().map(str::to_owned).collect();
    Run { results, log, below }
}

/// Runs commands against Ringfence around `below`.
pub(crate) fn wrapped(below: &Path, env: &[(&str, &OsStr)], commands: &str) -> Run {
    run(&so(), &[env, &[("RINGFENCE_CHAIN_NET", below.as_os_str())]].concat(), commands)
}

/// A running driver.
pub(crate) struct Side {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    pub(crate) log: Vec<String>,
}

impl Side {
    pub(crate) fn start(library: &Path, env: &[(&str, &OsStr)]) -> Side {
        let mut command = Command::new(driver());
        for name in ["RINGFENCE_POLICY", "RINGFENCE_LOG", "RINGFENCE_CHAIN_NET", "NCCL_DEBUG"] {
            command.env_remove(name);
        }
        command.arg(library).envs(env.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Side { child, to, from, log: Vec::new() }
    }

    /// Carries out one command; its result. What is logged meanwhile is kept.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        writeln!(self.to.as_mut().unwrap(), "{command}").unwrap();
        loop {
            let mut line = String::new();
            let n = self.from.read_line(&mut line).unwrap();
            assert!(n > 0, "the driver died at {command:?}: {:?} {:?}", self.child.wait(), self.log);
            match line.trim_end() {
                log if log.starts_with("LOG ") => self.log.push(log.to_owned()),
                result => return result.to_owned(),
            }
        }
    }

    /// Ends the driver, which must end well.
    pub(crate) fn end(mut self) -> Vec<String> {
        self.to = None;
        for line in self.from.lines() {
            self.log.push(line.unwrap());
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {:?}", self.log);
        self.log
    }
}
