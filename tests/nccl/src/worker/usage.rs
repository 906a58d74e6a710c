//! [`measure`]: what this process uses of the machine.

use std::fs;

use super::{FAILED, Outcome};
use crate::nccl::Code;

/// Resident memory, threads and open file descriptors, as the kernel counts them.
pub(crate) fn measure() -> Outcome {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    };
    // The directory that is read is open itself.
    let fds = fs::read_dir("/proc/self/fd").map(|dir| dir.count().saturating_sub(1) as u32);
    match (field("VmRSS:"), field("Threads:"), fds) {
        (Some(rss), Some(threads), Ok(fds)) => {
            Outcome::from(Code::SUCCESS).with("rss_kib", rss).with("threads", threads).with("fds", fds)
        }
        _ => FAILED.into(),
    }
}
