//! [`inspect`]: limits of this machine that a plugin in a training process can run into.

use super::Report;
use std::fs;

/// File descriptors that a job with a plugin should be able to open; NCCL itself takes several per peer.
const WANT_FILES: u64 = 4096;

/// Reports on file, inotify and shared-memory limits.
pub(super) fn inspect(report: &mut Report) {
    files(report);
    inotify(report);
    shared_memory(report);
}

fn files(report: &mut Report) {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    match soft_limit(&text, "Max open files") {
        Some(n) if n < WANT_FILES => {
            report.warn(
                "nofile",
                format!("at most {n} open files"),
                "raise `ulimit -n`: NCCL opens several per peer",
            );
        }
        Some(u64::MAX) => report.ok("nofile", "open files are not limited"),
        Some(n) => report.ok("nofile", format!("{n} open files")),
        None => report.warn("nofile", "the limit cannot be read", "check `ulimit -n`"),
    }
}

/// The soft limit in a line of `/proc/self/limits`.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?;
    if value == "unlimited" { Some(u64::MAX) } else { value.parse().ok() }
}

fn inotify(report: &mut Report) {
    for (topic, file) in [("inotify", "max_user_instances"), ("inotify", "max_user_watches")] {
        let path = format!("/proc/sys/fs/inotify/{file}");
        match fs::read_to_string(&path).ok().and_then(|t| t.trim().parse::<u64>().ok()) {
            Some(0) => report.fail(
                topic,
                format!("{file} is 0: no hot reload"),
                format!("sysctl fs.inotify.{file}=128"),
            ),
            Some(n) if n < 64 => {
                report.warn(topic, format!("{file} is only {n}"), format!("sysctl fs.inotify.{file}=8192"));
            }
            Some(n) => report.ok(topic, format!("{file} is {n}")),
            None => report.warn(topic, format!("{path} cannot be read"), "hot reload needs inotify"),
        }
    }
}

fn shared_memory(report: &mut Report) {
    let Ok(stat) = rustix::fs::statvfs("/dev/shm") else {
        return report.warn("shm", "/dev/shm is not there", "NCCL moves data between local ranks through it");
    };
    let mib = |blocks: u64| blocks.saturating_mul(stat.f_frsize) >> 20;
    let text = format!("/dev/shm: {} MiB, {} MiB free", mib(stat.f_blocks), mib(stat.f_bavail));
    if mib(stat.f_blocks) < 256 {
        report.warn(
            "shm",
            text,
            "containers default to 64 MiB, too little for NCCL: run with --shm-size=1g or more",
        );
    } else {
        report.ok("shm", text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_proc() {
        let text = "Limit     Soft Limit   Hard Limit   Units\nMax open files            1024                 4096                 files\n\
                    Max cpu time              unlimited            unlimited            seconds\n";
        assert_eq!(soft_limit(text, "Max open files"), Some(1024));
        assert_eq!(soft_limit(text, "Max cpu time"), Some(u64::MAX));
        assert_eq!(soft_limit(text, "Max nothing"), None);
    }
}
