//! [`Sets`]: the communicators of this process, by the name of their set.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{FAILED, Outcome, wait_for};
use crate::nccl::{Buffer, Code, Comm, Nccl, Registration, UniqueId};
use crate::script::Config;

/// How long a rank waits for the unique id of another process.
const ID_TIMEOUT: Duration = Duration::from_secs(60);

/// A communicator and what belongs to it.
pub(crate) struct Member {
    pub(crate) comm: Comm,
    pub(crate) rank: u32,
    /// How many ranks its communicator has.
    pub(crate) ranks: u32,
    pub(crate) device: i32,
    /// Send and receive buffer, once there was a need for them.
    pub(crate) buffers: Option<[Buffer; 2]>,
    registrations: Vec<Registration>,
}

impl Member {
    fn new(comm: Comm, rank: u32, ranks: u32, device: i32) -> Self {
        Self { comm, rank, ranks, device, buffers: None, registrations: Vec::new() }
    }

    /// Buffers of at least so many bytes each. NCCL allocates on the current device.
    pub(crate) fn reserve(&mut self, nccl: &Nccl, bytes: u64) -> Result<[Buffer; 2], Code> {
        if let Some(buffers) = self.buffers.filter(|buffers| buffers[0].bytes >= bytes) {
            return Ok(buffers);
        }
        on_device(nccl, self.device);
        let allocate = || match nccl.allocate(bytes.max(1)) {
            (Code::SUCCESS, buffer) => Ok(buffer),
            (code, _) => Err(code),
        };
        let buffers = [allocate()?, allocate()?];
        self.buffers = Some(buffers);
        Ok(buffers)
    }
}

/// All sets by name.
#[derive(Default)]
pub(crate) struct Sets {
    sets: BTreeMap<String, Vec<Member>>,
}

/// The device of a rank. The fake GPU has as many as `FAKEGPU_COUNT` says, eight if it says nothing.
fn device_of(rank: u32) -> i32 {
    let count = std::env::var("FAKEGPU_COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(8_u32);
    (rank % count.max(1)).cast_signed()
}

pub(crate) fn on_device(nccl: &Nccl, device: i32) {
    // Devices come from `device_of`, which stays below their number.
    let _ = nccl.set_device(device);
}

/// Runs `body` for each item, in one group if there are several, and returns the first failure.
pub(crate) fn grouped<T>(nccl: &Nccl, items: &mut [T], mut body: impl FnMut(&mut T) -> Code) -> Code {
    if let [only] = items {
        return body(only);
    }
    let start = nccl.group_start();
    let inside = items.iter_mut().fold(start, |code, item| code.and(|| body(item)));
    // The group is ended in any case, or the next call would be inside of it.
    let end = nccl.group_end();
    inside.and(|| end)
}

impl Sets {
    /// The communicators of a set; none if there is no such set.
    pub(crate) fn members(&mut self, set: &str) -> &mut [Member] {
        self.sets.get_mut(set).map_or(&mut [], Vec::as_mut_slice)
    }

    pub(crate) fn init_all(&mut self, nccl: &Nccl, set: &str, ranks: u32) -> Code {
        let (code, comms) = nccl.init_all(ranks);
        let members = (0..).zip(comms).map(|(rank, comm)| Member::new(comm, rank, ranks, rank.cast_signed()));
        self.sets.insert(set.to_owned(), members.collect());
        code
    }

    pub(crate) fn init_rank(
        &mut self,
        nccl: &Nccl,
        set: &str,
        ranks: u32,
        local: &[u32],
        id_file: Option<&Path>,
        config: &Config,
    ) -> Code {
        let id = match unique_id(nccl, local.contains(&0), id_file) {
            Ok(id) => id,
            Err(code) => return code,
        };
        let mut members = Vec::new();
        let mut local = local.to_vec();
        let code = grouped(nccl, &mut local, |&mut rank| {
            on_device(nccl, device_of(rank));
            let (code, comm) = nccl.init_rank(ranks, id, rank, config);
            members.push(Member::new(comm, rank, ranks, device_of(rank)));
            code
        });
        self.sets.insert(set.to_owned(), members);
        code
    }

    pub(crate) fn split(
        &mut self,
        nccl: &Nccl,
        set: &str,
        into: &str,
        colors: &[i32],
        config: &Config,
    ) -> Code {
        let mut children = Vec::new();
        let code = grouped(nccl, self.members(set), |parent| {
            let color = colors.get(parent.rank as usize).copied().unwrap_or(-1);
            let (code, comm) = nccl.split(parent.comm, color, parent.rank.cast_signed(), config);
            if color >= 0 {
                let before = colors.iter().take(parent.rank as usize).filter(|c| **c == color).count() as u32;
                let ranks = colors.iter().filter(|c| **c == color).count() as u32;
                children.push(Member::new(comm, before, ranks, parent.device));
            }
            code
        });
        self.sets.insert(into.to_owned(), children);
        code
    }

    pub(crate) fn register(&mut self, nccl: &Nccl, set: &str, bytes: u64) -> Code {
        for member in self.members(set) {
            let buffers = match member.reserve(nccl, bytes) {
                Ok(buffers) => buffers,
                Err(code) => return code,
            };
            for buffer in buffers {
                let (code, registration) = nccl.register(member.comm, buffer);
                if code != Code::SUCCESS {
                    return code;
                }
                member.registrations.push(registration);
            }
        }
        Code::SUCCESS
    }

    pub(crate) fn deregister(&mut self, nccl: &Nccl, set: &str) -> Code {
        self.members(set).iter_mut().fold(Code::SUCCESS, |code, member| {
            let registrations = std::mem::take(&mut member.registrations);
            registrations.into_iter().fold(code, |code, r| code.and(|| nccl.deregister(member.comm, r)))
        })
    }

    /// The state that all communicators came to, with the number of times that one was still in progress.
    pub(crate) fn settle(&mut self, nccl: &Nccl, set: &str, timeout: Duration) -> Outcome {
        let (start, mut waits) = (Instant::now(), 0_u32);
        for member in self.members(set) {
            loop {
                let (code, state) = nccl.async_error(member.comm);
                if code != Code::SUCCESS || state != Code::IN_PROGRESS {
                    if code.and(|| state) != Code::SUCCESS {
                        return Outcome::from(code.and(|| state)).with("waits", waits);
                    }
                    break;
                }
                if start.elapsed() > timeout {
                    return Outcome::from(Code::IN_PROGRESS).with("waits", waits);
                }
                waits += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Outcome::from(Code::SUCCESS).with("waits", waits)
    }

    /// Count, rank and device of each communicator (`count0`, ...) and how many there are.
    pub(crate) fn query(&mut self, nccl: &Nccl, set: &str) -> Outcome {
        let members = self.members(set);
        let mut outcome = Outcome::from(Code::SUCCESS).with("members", members.len() as u32);
        for (i, member) in members.iter().enumerate() {
            let (code, [count, rank, device]) = nccl.place(member.comm);
            let (asked, state) = nccl.async_error(member.comm);
            outcome.code = outcome.code.and(|| code).and(|| asked).and(|| state);
            for (name, value) in [("count", count), ("rank", rank), ("device", device)] {
                outcome = outcome.with(format!("{name}{i}"), value);
            }
        }
        outcome
    }

    pub(crate) fn finalize(&mut self, nccl: &Nccl, set: &str) -> Code {
        grouped(nccl, self.members(set), |member| nccl.finalize(member.comm))
    }

    pub(crate) fn destroy(&mut self, nccl: &Nccl, set: &str) -> Code {
        let members = self.sets.remove(set).unwrap_or_default();
        members.iter().fold(Code::SUCCESS, |code, member| {
            // All are destroyed, also after a failure.
            let this = nccl.destroy(member.comm);
            code.and(|| this)
        })
    }

    pub(crate) fn abort(&mut self, nccl: &Nccl, set: &str) -> Code {
        let mut members = self.sets.remove(set).unwrap_or_default();
        grouped(nccl, &mut members, |member| nccl.abort(member.comm))
    }
}

/// The unique id: of this process if it has rank 0, which leaves it in the file for others.
fn unique_id(nccl: &Nccl, first: bool, file: Option<&Path>) -> Result<UniqueId, Code> {
    let Some(file) = file.filter(|_| !first) else {
        let (code, id) = nccl.unique_id();
        if code != Code::SUCCESS {
            return Err(code);
        }
        return file.map_or(Ok(()), |file| publish(file, &id)).map(|()| id).map_err(|_| FAILED);
    };
    wait_for(file, ID_TIMEOUT).ok_or(FAILED)?;
    let bytes = fs::read(file).map_err(|_| FAILED)?;
    bytes.try_into().map(UniqueId).map_err(|_| FAILED)
}

/// Whole or not at all.
fn publish(file: &Path, id: &UniqueId) -> std::io::Result<()> {
    let temporary = file.with_extension("part");
    fs::write(&temporary, id.0)?;
    fs::rename(temporary, file)
}
