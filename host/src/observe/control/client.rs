//! [`Client`]: the tool's side of a control file.

use super::super::dir::{CONTROL, Identity, RunDir, host_name};
use super::frame::{Frame, identity_in};
use super::message::{MapInfo, Request, Response};
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long another tool may keep the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How long a process may take to answer. It may be busy with a reload.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at the answer.
const LOOK: Duration = Duration::from_millis(1);

/// Why a process gave no answer.
#[derive(Debug)]
pub enum CallError {
    /// The process said no: the kernel's name for the error, and why.
    Refused(Option<String>, String),
    /// It could not be asked.
    Failed(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Refused(Some(errno), why) => write!(f, "{why} ({errno})"),
            CallError::Refused(None, why) | CallError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for CallError {}

/// A conversation with one process. No other tool can have one meanwhile.
#[derive(Debug)]
pub struct Client {
    file: File,
    process: Identity,
    number: u64,
}

fn failed<T>(why: String) -> Result<T, CallError> {
    Err(CallError::Failed(why))
}

impl Client {
    /// Opens the control file of a host of a process (0 for the first) and waits until no other tool uses it.
    ///
    /// # Errors
    /// There is no such file, it is none of ours, or another tool does not let go of it.
    pub fn connect(dir: &RunDir, pid: u32, part: u32) -> Result<Client, CallError> {
        let name = format!("{}{CONTROL}", host_name(pid, part));
        let shown = dir.path().join(&name);
        let file = match dir.open_rw(&name) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return failed(format!(
                    "process {pid} has no control file ({}): see `ringfence status`",
                    shown.display()
                ));
            }
            Err(e) => return failed(format!("cannot open {}: {e}", shown.display())),
        };
        let Some(process) = identity_in(&file).filter(|i| i.pid == pid) else {
            return failed(format!("{} is not a control file of this version of Ringfence", shown.display()));
        };
        if process.is_alive() == Some(false) {
            return failed(format!("process {pid} is gone, and left {}", shown.display()));
        }
        lock(&file, pid)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Client { file, process, number: now.as_nanos() as u64 })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The process refuses, ends, or does not answer in time.
    pub fn call(&mut self, request: &Request) -> Result<Response, CallError> {
        self.number = self.fresh_number();
        let body = serde_json::to_vec(request).map_err(|e| CallError::Failed(e.to_string()))?;
        Frame::Request
            .write(&self.file, self.number, &body)
            .map_err(|e| CallError::Failed(format!("cannot ask: {e}")))?;
        let body = self.wait()?;
        match serde_json::from_slice(&body) {
            Ok(Response::Refused { errno, why }) => Err(CallError::Refused(errno, why)),
            Ok(response) => Ok(response),
            Err(e) => failed(format!("the answer of process {} makes no sense ({e})", self.process.pid)),
        }
    }

    /// All maps of the process.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn maps(&mut self) -> Result<Vec<MapInfo>, CallError> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(start) = from {
            match self.call(&Request::Maps { from: start })? {
                Response::Maps { maps, next } => {
                    all.extend(maps);
                    // Numbers go up, or it would never end.
                    from = next.filter(|next| *next > start);
                }
                _ => return self.unexpected(),
            }
        }
        Ok(all)
    }

    /// An answer to another question.
    ///
    /// # Errors
    /// Always.
    pub fn unexpected<T>(&self) -> Result<T, CallError> {
        failed(format!("process {} gave an answer that does not fit the question", self.process.pid))
    }

    /// A number that neither message in the file has: an answer to whoever asked before must not be taken for ours.
    fn fresh_number(&self) -> u64 {
        let taken = [0, Frame::Request.number(&self.file), Frame::Response.number(&self.file)];
        let mut number = self.number.wrapping_add(1);
        while taken.contains(&number) {
            number = number.wrapping_add(1);
        }
        number
    }

    fn wait(&self) -> Result<Vec<u8>, CallError> {
        let (start, pid) = (Instant::now(), self.process.pid);
        let mut looked_after = Duration::ZERO;
        loop {
            if Frame::Response.number(&self.file) == self.number
                && let Some((number, body)) = Frame::Response.read(&self.file)
                && number == self.number
            {
                return Ok(body);
            }
            let waited = start.elapsed();
            if waited > looked_after + Duration::from_millis(100) {
                looked_after = waited;
                if self.process.is_alive() == Some(false) {
                    return failed(format!("process {pid} ended before it answered"));
                }
            }
            if waited > PATIENCE {
                return failed(format!(
                    "process {pid} did not answer in {PATIENCE:?}: it is stopped, or has ended its last communicator"
                ));
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Keeps other tools away until the file is closed.
fn lock(file: &File, pid: u32) -> Result<(), CallError> {
    let start = Instant::now();
    while let Err(e) = flock(file, FlockOperation::NonBlockingLockExclusive) {
        if e != rustix::io::Errno::WOULDBLOCK {
            return failed(format!("cannot lock the control file of process {pid}: {e}"));
        }
        if start.elapsed() > LOCK_PATIENCE {
            return failed(format!(
                "another ringfence command keeps the control file of process {pid}: try again"
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
