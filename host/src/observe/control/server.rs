//! [`Server`]: the process's side of its control file. It runs on the reload thread, which wakes when somebody writes the file (inotify),
//! and looks once a second besides; never on a thread of NCCL.
//!
//! A request is copied before anybody looks at it, one is answered at a time, and each answer is bounded: what others write into the
//! file costs this thread time, and nothing else.

use super::super::dir::{CONTROL, Identity, RunDir, host_name};
use super::super::numbers::{MapNumbers, Numbered};
use super::answer;
use super::frame::{Frame, MAX_BODY, initialise, owner_in};
use super::message::{Request, Response};
use crate::maps::MapRegistry;
use inotify::{Inotify, WatchMask};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Between its making and its first words a control file looks like a left-over: no other host of this process may look then.
static OPENING: Mutex<()> = Mutex::new(());

/// Waits for [`OPENING`], but not for ever: in a forked child it may be held by a thread that does not exist here.
fn alone() -> Option<MutexGuard<'static, ()>> {
    (0..100).find_map(|_| {
        let guard = OPENING.try_lock().ok();
        if guard.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        guard
    })
}

/// Most hosts with files of their own under one process number.
const MAX_PARTS: u32 = 32;

/// The open control file.
pub(crate) struct Server {
    file: File,
    name: String,
    part: u32,
    /// Wakes the thread; without it (the limit on instances is reached), requests wait for the next look.
    inotify: Option<Inotify>,
    /// The request that was answered last.
    answered: u64,
}

impl Server {
    /// Makes the control file of a host of this process. One that an earlier process of this number left is replaced; names that
    /// other hosts of this process, or processes of that number in other containers, use are passed by.
    ///
    /// # Errors
    /// Of the system; all names are taken.
    pub(crate) fn open(dir: &RunDir, owner: Identity, host: u64) -> io::Result<Server> {
        let _one = alone();
        for part in 0..MAX_PARTS {
            let name = format!("{}{CONTROL}", host_name(owner.pid, part));
            let file = match dir.create_new(&name) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    let left = dir.open_rw(&name).ok().and_then(|f| owner_in(&f));
                    let taken = |(process, of): (Identity, u64)| {
                        process.namespace != owner.namespace || process == owner && of != host
                    };
                    if left.is_some_and(taken) {
                        continue;
                    }
                    dir.remove(&name)?;
                    dir.create_new(&name)?
                }
                made => made?,
            };
            initialise(&file, owner, host)?;
            let inotify = watch(&dir.path().join(&name)).ok();
            return Ok(Server { file, name, part, inotify, answered: 0 });
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many hosts of one process number"))
    }

    /// The number behind the process's in the names of this host's files.
    pub(crate) fn part(&self) -> u32 {
        self.part
    }

    /// What becomes readable when somebody wrote.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Somebody removed or truncated the file: nobody can ask any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.file.metadata().map_or(true, |m| m.nlink() == 0 || m.len() < MAX_BODY as u64)
    }

    /// Answers the request at hand, if there is a new one.
    pub(crate) fn serve(&mut self, registry: Option<&MapRegistry>, numbers: &mut MapNumbers) {
        self.forget_events();
        let number = Frame::Request.number(&self.file);
        if number == 0 || number == self.answered {
            return;
        }
        let Some((number, body)) = Frame::Request.read(&self.file) else { return };
        self.answered = number;
        let maps = registry.map_or_else(Vec::new, |r| numbers.of(r));
        let response = respond(&body, &maps);
        // Whoever asked is told, or gives up by its own clock.
        let _ = Frame::Response.write(&self.file, number, &response);
    }

    fn forget_events(&mut self) {
        let mut buffer = [0; 1024];
        if let Some(inotify) = &mut self.inotify {
            // Not for ever: somebody may write without end.
            for _ in 0..16 {
                if !inotify.read_events(&mut buffer).is_ok_and(|mut events| events.next().is_some()) {
                    break;
                }
            }
        }
    }

    /// Removes the file.
    pub(crate) fn close(self, dir: &RunDir) {
        if !self.is_lost() {
            let _ = dir.remove(&self.name);
        }
    }
}

fn watch(path: &std::path::Path) -> io::Result<Inotify> {
    let inotify = Inotify::init()?;
    inotify.watches().add(path, WatchMask::MODIFY | WatchMask::DONT_FOLLOW)?;
    Ok(inotify)
}

fn respond(body: &[u8], maps: &[Numbered]) -> Vec<u8> {
    let response = match serde_json::from_slice::<Request>(body) {
        Ok(request) => answer::to(&request, maps),
        Err(e) => Response::refused(None, format!("this process does not understand the request ({e})")),
    };
    let bytes = serde_json::to_vec(&response).unwrap_or_default();
    if bytes.len() <= MAX_BODY {
        return bytes;
    }
    let refused = Response::refused(None, "the answer is too large for a control file");
    serde_json::to_vec(&refused).unwrap_or_default()
}
