//! [`Version`] of NCCL, and [`libraries`]: which of them this run tests.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// The environment variable that lists them: `2.30.7=/path/libnccl.so.2:2.32.3=/path/libnccl.so.2`.
pub const LIBRARIES: &str = "RINGFENCE_NCCL_LIBS";

/// A release of NCCL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2.
    pub major: u32,
    /// 30 of 2.30.7.
    pub minor: u32,
    /// 7 of 2.30.7.
    pub patch: u32,
}

impl Version {
    /// A release by its numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// What `ncclGetVersion` returns for it (`NCCL_VERSION` in nccl.h, since 2.9).
    #[must_use]
    pub fn code(self) -> i32 {
        (self.major * 10_000 + self.minor * 100 + self.patch).cast_signed()
    }

    /// `v2_30_7`, as trials are named.
    #[must_use]
    pub fn module(self) -> String {
        format!("v{}_{}_{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Vec<u32> = text
            .split('.')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{text:?} is not a version such as 2.30.7"))?;
        ensure!(numbers.len() == 3 && numbers[0] >= 2, "{text:?} is not a version such as 2.30.7");
        Ok(Self::new(numbers[0], numbers[1], numbers[2]))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The libraries that a value of [`LIBRARIES`] names.
///
/// # Errors
/// An entry that is not `VERSION=PATH`, or whose file is not there.
pub fn libraries(value: &str) -> Result<Vec<(Version, PathBuf)>> {
    value.split(':').filter(|entry| !entry.is_empty()).map(library).collect()
}

fn library(entry: &str) -> Result<(Version, PathBuf)> {
    let (version, path) =
        entry.split_once('=').with_context(|| format!("{LIBRARIES}: {entry:?} is not VERSION=PATH"))?;
    let path = PathBuf::from(path);
    ensure!(path.is_file(), "{LIBRARIES}: {} is not a file", path.display());
    Ok((version.parse()?, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_by_number_and_have_nccl_s_code() {
        let version: Version = "2.30.7".parse().unwrap();
        assert_eq!(version.code(), 23007);
        assert_eq!(version.module(), "v2_30_7");
        assert!(version < "2.100.0".parse().unwrap());
        assert_eq!(version.to_string(), "2.30.7");
        for bad in ["", "2.30", "2.30.7.1", "2.x.7", "1.0.0"] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error() {
        assert!(libraries("").unwrap().is_empty());
        assert!(libraries("2.30.7=/nowhere/libnccl.so.2").is_err());
        assert!(libraries("/bin/sh").is_err());
        assert_eq!(libraries("2.30.7=/bin/sh:").unwrap(), [(Version::new(2, 30, 7), "/bin/sh".into())]);
    }
}
