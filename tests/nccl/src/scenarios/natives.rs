//! The native plugins of tests/nccl/native and tests/netplug, and the steps of two ranks in one process that they are tried with.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::common::{WORLD, call, init_all};
use crate::job::Job;
use crate::native;
use crate::scenario::{Lab, install};
use crate::script::{Collective, Func, Step};

/// Counts of floats whose AllReduce is small, in between, and large for NCCL's model.
pub(super) const COUNTS: [u64; 3] = [256, 16_384, 1 << 20];

/// Two ranks of one process are made and do `body`. The process ends without destroying them, which takes NCCL half a second.
pub(super) fn two_ranks(body: impl IntoIterator<Item = Step>) -> Vec<Step> {
    [init_all(2)].into_iter().chain(body).collect()
}

/// The same, with their end: our metrics are written then.
pub(super) fn two_ranks_to_the_end(body: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let mut steps = two_ranks(body);
    steps.push(Step::Destroy { set: WORLD.into() });
    steps
}

/// An AllReduce of each of [`COUNTS`].
pub(super) fn all_reduces() -> Vec<Step> {
    COUNTS.iter().map(|count| call(Func::AllReduce, *count)).collect()
}

/// Two Broadcasts with different roots in one group: what NCCL 2.29 plans as one AllGatherV.
pub(super) fn two_roots(count: u64) -> Step {
    let from = |root| Collective { root, ..Collective::new(WORLD, Func::Broadcast, count) };
    Step::Group { body: vec![from(0), from(1)] }
}

/// The native tuner of tests/nccl/native, and the file that it writes its calls to.
pub(super) struct NativeTuner {
    /// The library.
    pub(super) so: PathBuf,
    lab_scratch: PathBuf,
}

impl NativeTuner {
    pub(super) fn build(lab: &Lab) -> Result<Self> {
        let so = native::shared_library("nccl/native/tuner.c", &lab.scratch, &[])?;
        Ok(Self { so, lab_scratch: lab.scratch.clone() })
    }

    /// A job with NCCL below this tuner alone.
    pub(super) fn alone<'a>(&self, lab: &'a Lab, name: &str) -> Result<Job<'a>> {
        Ok(self.logged(Job::new(lab, name)?, name).env("NCCL_TUNER_PLUGIN", &self.so))
    }

    /// A job with this tuner behind ours (`RINGFENCE_CHAIN_TUNER`), and no policy.
    pub(super) fn chained<'a>(&self, lab: &'a Lab, name: &str) -> Result<Job<'a>> {
        let job = Job::new(lab, name)?.env("NCCL_TUNER_PLUGIN", &lab.so);
        Ok(self.logged(job, name).env("RINGFENCE_CHAIN_TUNER", &self.so))
    }

    fn logged<'a>(&self, job: Job<'a>, name: &str) -> Job<'a> {
        job.env("NATIVE_TUNER_LOG", self.log_path(name))
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.lab_scratch.join(format!("{name}.tuner"))
    }

    /// The calls of the job `name`.
    pub(super) fn calls(&self, name: &str) -> Result<Vec<String>> {
        lines(&self.log_path(name))
    }
}

/// The lines of a file that a native plugin wrote; none if it was not called.
pub(super) fn lines(path: &Path) -> Result<Vec<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("{}", path.display())),
    }
}

/// The word behind `name` in a line of a native plugin.
pub(super) fn word<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().skip_while(|word| *word != name).nth(1)
}

/// Puts a manifest into a policy directory, in one step.
pub(super) fn manifest(lab: &Lab, dir: &Path, text: &str) -> Result<()> {
    let draft = lab.scratch.join("ringfence.toml.draft");
    std::fs::write(&draft, text)?;
    install(&draft, dir, "ringfence.toml").map(drop)
}

/// The net plugin over TCP of tests/netplug, in all versions that NCCL 2.27 to 2.32 look for.
pub(super) fn netplug(lab: &Lab) -> Result<PathBuf> {
    let versions = ["-DV6", "-DV7", "-DV8", "-DV9", "-DV10", "-DV11", "-DV12"];
    native::shared_library(
        "netplug/netplug.c",
        &lab.scratch,
        &[&versions[..], &["-fvisibility=default"]].concat(),
    )
}

/// The native profiler of tests/nccl/native, and the file that it writes its calls to.
pub(super) struct NativeProfiler {
    so: PathBuf,
    lab_scratch: PathBuf,
}

impl NativeProfiler {
    pub(super) fn build(lab: &Lab) -> Result<Self> {
        let so = native::shared_library("nccl/native/profiler.c", &lab.scratch, &[])?;
        Ok(Self { so, lab_scratch: lab.scratch.clone() })
    }

    /// A job in which it is NCCL's profiler and asks for the events of `mask`.
    pub(super) fn alone<'a>(&self, lab: &'a Lab, name: &str, mask: u64) -> Result<Job<'a>> {
        Ok(self.asking(Job::new(lab, name)?, name, mask).env("NCCL_PROFILER_PLUGIN", &self.so))
    }

    /// A job in which it stands behind ours, which the caller has to set up.
    pub(super) fn chained<'a>(&self, lab: &'a Lab, name: &str, mask: u64) -> Result<Job<'a>> {
        Ok(self.asking(Job::new(lab, name)?, name, mask).env("RINGFENCE_CHAIN_PROFILER", &self.so))
    }

    fn asking<'a>(&self, job: Job<'a>, name: &str, mask: u64) -> Job<'a> {
        job.env("NATIVE_PROFILER_LOG", self.log_path(name)).env("NATIVE_PROFILER_MASK", format!("{mask:#x}"))
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.lab_scratch.join(format!("{name}.profiler"))
    }

    /// The calls of the job `name`.
    pub(super) fn calls(&self, name: &str) -> Result<Vec<String>> {
        lines(&self.log_path(name))
    }
}
