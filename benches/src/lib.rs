//! Shared parts of the benchmarks: [`cpu_per_call`], which measures CPU time rather than wall time since machines
//! are shared, and [`header`], which says where and what was measured.

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::process::Command;

/// CPU time of this thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Something to measure: a name, and a closure that makes `n` calls.
pub struct Subject<'a> {
    /// Name in the report.
    pub name: String,
    /// Makes that many calls.
    pub calls: Box<dyn FnMut(u64) + 'a>,
}

/// CPU nanoseconds per call of each subject: the median over `rounds` of `batch` calls, the subjects taking turns
/// in each round so that all see the same neighbours.
pub fn cpu_per_call(subjects: &mut [Subject<'_>], rounds: usize, batch: u64) -> Vec<f64> {
    let mut samples = vec![Vec::with_capacity(rounds); subjects.len()];
    for round in 0..=rounds {
        for (subject, sample) in subjects.iter_mut().zip(&mut samples) {
            let start = thread_cpu_ns();
            (subject.calls)(batch);
            let ns = (thread_cpu_ns() - start) as f64 / batch as f64;
            if round > 0 {
                sample.push(ns);
            }
        }
    }
    samples.into_iter().map(median).collect()
}

/// The median; 0 for no samples.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// A file that `make build` leaves in the target folder.
pub fn built(path: &str) -> Result<PathBuf> {
    let file = root().join("target").join(path);
    if !file.exists() {
        bail!("{} is missing: run `make build` first", file.display());
    }
    Ok(file)
}

/// Compiles the native baseline plugin into the target folder.
pub fn native_plugin() -> Result<PathBuf> {
    let out = root().join("target/native_plugin.so");
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-o"])
        .arg(&out)
        .arg(root().join("benches/native_plugin.c"))
        .status()
        .context("cc is needed to build the native baseline")?;
    if !status.success() {
        bail!("cc failed on benches/native_plugin.c");
    }
    Ok(out)
}

/// One line: processor, cores, commit.
pub fn header(what: &str) {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map_or("?", |m| m.1.trim());
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    let commit = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root()).output();
    let commit = commit.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    println!("# {what}: {model}, {cores} cores, commit {commit}");
}
