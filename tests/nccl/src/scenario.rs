//! [`Lab`]: one NCCL and what is tested with it; [`Scenario`]; [`Findings`]: what a scenario learnt about that NCCL.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::native;
use crate::versions::Version;

/// The bench that a scenario works at.
#[derive(Clone, Debug)]
pub struct Lab {
    /// The NCCL.
    pub version: Version,
    /// Its `libnccl.so.2`.
    pub library: PathBuf,
    /// Our plugin.
    pub so: PathBuf,
    /// Our command line.
    pub cli: PathBuf,
    /// Objects of the policies that ship.
    pub policies: PathBuf,
    /// The fake GPU, built.
    pub fakegpu: PathBuf,
    /// What is preloaded into workers.
    pub patience: PathBuf,
    /// The binary that has the command `worker`.
    pub worker: PathBuf,
    /// A directory of this scenario's own, empty at first; kept for those who look for the reason of a failure.
    pub scratch: PathBuf,
}

impl Lab {
    /// What does not depend on NCCL or scenario, from `make test`'s environment: `RINGFENCE_SO`, `RINGFENCE_BIN` (the directory of the
    /// command line) and `RINGFENCE_POLICIES`.
    ///
    /// # Errors
    /// One of them is not set or not there, or the version's library is none.
    pub fn new(version: Version, library: PathBuf, worker: PathBuf, scratch: PathBuf) -> Result<Self> {
        let so = from_env("RINGFENCE_SO")?;
        let cli = from_env("RINGFENCE_BIN")?.join("ringfence");
        let policies = from_env("RINGFENCE_POLICIES")?;
        ensure!(cli.is_file(), "RINGFENCE_BIN: there is no {}", cli.display());
        fresh(&scratch)?;
        let (fakegpu, patience) = (native::fakegpu()?, native::patience()?);
        Ok(Self { version, library, so, cli, policies, fakegpu, patience, worker, scratch })
    }

    /// The object of a policy that ships.
    #[must_use]
    pub fn policy(&self, name: &str) -> PathBuf {
        self.policies.join(format!("{name}.bpf.o"))
    }

    /// A new directory for policies and a manifest, as our plugin accepts it: nobody else may write into it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn policy_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.scratch.join(name);
        fs::DirBuilder::new().mode(0o700).create(&dir).with_context(|| format!("{}", dir.display()))?;
        Ok(dir)
    }

    /// Whether this NCCL is `major.minor.patch` or newer.
    #[must_use]
    pub fn since(&self, major: u32, minor: u32, patch: u32) -> bool {
        self.version >= Version::new(major, minor, patch)
    }
}

fn from_env(name: &str) -> Result<PathBuf> {
    let value = std::env::var_os(name).with_context(|| format!("{name} is not set: use `make test-nccl`"))?;
    fs::canonicalize(&value).with_context(|| format!("{name}={}", value.display()))
}

/// Puts a file into a policy directory in one step, with rights that our plugin accepts.
///
/// # Errors
/// It cannot be read or written.
pub fn install(from: &Path, dir: &Path, name: &str) -> Result<PathBuf> {
    let (part, to) = (dir.join(format!(".{name}.part")), dir.join(name));
    fs::copy(from, &part).with_context(|| format!("{} to {}", from.display(), part.display()))?;
    fs::set_permissions(&part, fs::Permissions::from_mode(0o600))?;
    fs::rename(&part, &to)?;
    Ok(to)
}

/// An empty directory, whatever an earlier run left there.
fn fresh(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("{}", dir.display()))
}

/// Facts in the order of their discovery, as the table shows them. The same run must give the same ones: no times, no addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(pub Vec<(String, String)>);

impl Findings {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more.
    ///
    /// # Panics
    /// The key was used before, which would hide a fact.
    pub fn note(&mut self, key: impl Into<String>, value: impl Display) {
        let key = key.into();
        assert!(self.0.iter().all(|(known, _)| *known != key), "{key:?} was noted before");
        self.0.push((key, value.to_string()));
    }
}

/// Something that every NCCL must go through with our plugin.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// `module::name`.
    pub name: &'static str,
    /// One sentence: what it shows. It heads the scenario's table.
    pub about: &'static str,
    /// Fails if what must hold for every NCCL did not.
    pub run: fn(&Lab) -> Result<Findings>,
}
