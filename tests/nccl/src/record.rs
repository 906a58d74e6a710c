//! [`Record`]: `tests/nccl/behaviour.toml`, what each NCCL did when somebody last looked at it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::scenario::Findings;
use crate::versions::Version;

/// The facts of one scenario with one NCCL.
pub type Facts = BTreeMap<String, String>;

/// All facts: by version as text, then by scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(pub BTreeMap<String, BTreeMap<String, Facts>>);

/// Where it is committed.
#[must_use]
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("behaviour.toml")
}

const HEAD: &str = "\
# What each NCCL does, as the scenarios of tests/nccl found it. A trial whose findings differ from this fails.
# `BLESS=1 make test-nccl` writes it; look at the difference, then `make nccl-table` renews docs/nccl-behaviour.md.
";

impl Record {
    /// Reads it; an absent file is an empty record.
    ///
    /// # Errors
    /// It is not as it was written.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Ok(Self(toml::from_str(&text).with_context(|| format!("{}", path.display()))?))
    }

    fn to_text(&self) -> Result<String> {
        Ok(format!("{HEAD}\n{}", toml::to_string(&self.0)?))
    }

    /// Fails with the difference if a scenario found something else than is recorded.
    ///
    /// # Errors
    /// So it is.
    pub fn check(&self, version: Version, scenario: &str, findings: &Findings) -> Result<()> {
        let empty = Facts::new();
        let known = self.0.get(&version.to_string()).and_then(|of| of.get(scenario)).unwrap_or(&empty);
        let found = facts(findings);
        let mut text = String::new();
        for key in known.keys().chain(found.keys().filter(|key| !known.contains_key(*key))) {
            let (was, is) = (known.get(key), found.get(key));
            if was != is {
                let show = |value: Option<&String>| value.map_or("nothing".to_owned(), |v| format!("{v:?}"));
                let _ = writeln!(text, "  {key}: recorded {}, found {}", show(was), show(is));
            }
        }
        if !text.is_empty() {
            bail!(
                "NCCL {version} does not do what tests/nccl/behaviour.toml records (BLESS=1 rewrites it):\n{text}"
            );
        }
        Ok(())
    }
}

/// Records what a scenario found. Trials of several processes do this at once, so the file is locked.
///
/// # Errors
/// It cannot be read or written.
pub fn bless(version: Version, scenario: &str, findings: &Findings) -> Result<()> {
    let path = path();
    let lock = File::create(crate::native::repository().join("target/nccl/behaviour.lock"))?;
    lock.lock()?;
    let mut record = Record::read(&path)?;
    record.0.entry(version.to_string()).or_default().insert(scenario.to_owned(), facts(findings));
    let part = path.with_extension("toml.part");
    fs::write(&part, record.to_text()?)?;
    Ok(fs::rename(part, path)?)
}

fn facts(findings: &Findings) -> Facts {
    findings.0.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_written_and_tells_differences() {
        let mut findings = Findings::new();
        findings.note("a key: with signs", "1");
        let version = Version::new(2, 30, 7);
        let mut record = Record::default();
        record.0.entry(version.to_string()).or_default().insert("ranks::one".into(), facts(&findings));
        assert_eq!(toml::from_str::<BTreeMap<_, _>>(&record.to_text().unwrap()).unwrap(), record.0);
        record.check(version, "ranks::one", &findings).unwrap();
        findings.note("more", "2");
        let error = record.check(version, "ranks::one", &findings).unwrap_err().to_string();
        assert!(error.contains("more: recorded nothing, found \"2\""), "{error}");
        // What is missing is a difference too, and so is a version that nobody looked at.
        assert!(record.check(version, "ranks::one", &Findings::new()).is_err());
        assert!(record.check(Version::new(2, 31, 0), "ranks::one", &findings).is_err());
    }
}
