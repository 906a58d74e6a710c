//! [`sweep`]: what workers leave in `/dev/shm` when they die. NCCL makes files of 10 to 70 MB there and unlinks them once both ends have
//! them; a worker that a scenario lets crash does not come to that.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const DIR: &str = "/dev/shm";

/// Removes NCCL's files of this user that were made since `since` and that no process has open or mapped any more. What cannot be read or
/// removed is left alone: this is tidiness, not a result.
pub(crate) fn sweep(since: SystemTime) {
    // SAFETY of the order: a file that is listed here and then unused by all processes belongs to nobody; its maker has it open until it is
    // mapped.
    let left: Vec<PathBuf> = candidates(since);
    if left.is_empty() {
        return;
    }
    let used = used();
    for path in left.iter().filter(|path| !used.contains(*path)) {
        let _ = fs::remove_file(path);
    }
}

fn candidates(since: SystemTime) -> Vec<PathBuf> {
    let Ok(me) = fs::metadata("/proc/self").map(|m| m.uid()) else { return Vec::new() };
    let entries = fs::read_dir(DIR).into_iter().flatten().filter_map(Result::ok);
    let ours = entries.filter(|entry| {
        let made = entry
            .metadata()
            .is_ok_and(|m| m.is_file() && m.uid() == me && m.modified().is_ok_and(|made| made >= since));
        made && entry.file_name().to_string_lossy().starts_with("nccl-")
    });
    ours.map(|entry| entry.path()).collect()
}

/// The files in `/dev/shm` that some process has open or mapped.
fn used() -> HashSet<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok).map(|e| e.path());
    processes.flat_map(|process| opened(&process).into_iter().chain(mapped(&process))).collect()
}

fn opened(process: &Path) -> Vec<PathBuf> {
    let links = fs::read_dir(process.join("fd")).into_iter().flatten().filter_map(Result::ok);
    links.filter_map(|link| fs::read_link(link.path()).ok()).filter(|path| path.starts_with(DIR)).collect()
}

fn mapped(process: &Path) -> Vec<PathBuf> {
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    maps.lines().filter_map(|line| line.find(DIR).map(|at| line[at..].into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_nobody_uses_goes_and_what_somebody_uses_stays() {
        let path = |name: &str| Path::new(DIR).join(format!("nccl-test-{}-{name}", std::process::id()));
        let (left, open, other) = (path("left"), path("open"), path("x").with_file_name("other-nccl"));
        let before = SystemTime::now() - Duration::from_secs(1);
        fs::write(&left, b"1").unwrap();
        fs::write(&other, b"1").unwrap();
        let file = fs::File::create(&open).unwrap();
        sweep(SystemTime::now() + Duration::from_secs(3600));
        assert!(left.exists(), "it is older than what is swept");
        sweep(before);
        assert!(!left.exists() && open.exists() && other.exists());
        drop(file);
        sweep(before);
        assert!(!open.exists());
        fs::remove_file(other).unwrap();
    }
}
