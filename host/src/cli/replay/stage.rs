//! [`Stage`]: a private copy of a policy, replaced in one step as a deployment would.
//!
//! An object is replaced by renaming a new file over it. A directory is laid out as Kubernetes lays out a
//! ConfigMap: names are links into `..data`, itself a link to the version's folder; one rename of `..data`
//! switches all files at once.

use anyhow::{Context, bail, ensure};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Largest file that is copied, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// Most entries of a policy directory.
const MAX_ENTRIES: usize = 1024;
/// Name of an object that is to be replaced.
const LIVE_NAME: &str = "live.bpf.o";
/// Link that names the current version.
const DATA: &str = "..data";

/// A staged policy.
#[derive(Debug)]
pub(super) struct Stage {
    /// What `RINGFENCE_POLICY` is set to.
    policy: PathBuf,
    /// The directory that holds it all.
    root: PathBuf,
    directory: bool,
}

impl Stage {
    /// Copies `source` into `root`, an empty directory of the owner alone. An object that is to be replaced gets a
    /// neutral name: the plugin names policies after their files, and the next one is another policy.
    pub(super) fn create(root: &Path, source: &Path, replaced: bool) -> anyhow::Result<Stage> {
        let directory = is_directory(source)?;
        let live = root.join("live");
        private_dir(&live)?;
        let policy = if directory {
            copy_tree(source, &live.join("..v1"), 0)?;
            symlink("..v1", live.join(DATA)).context("cannot link")?;
            link_names(&live, "..v1")?;
            live
        } else {
            let name = source.file_name().context("the policy has no file name")?;
            let target = live.join(if replaced { LIVE_NAME.as_ref() } else { name });
            copy_file(source, &target)?;
            target
        };
        Ok(Stage { policy, root: root.to_path_buf(), directory })
    }

    /// The stage that [`Stage::create`] made, as another process finds it.
    pub(super) fn reopen(root: &Path, policy: &Path) -> anyhow::Result<Stage> {
        Ok(Stage { policy: policy.to_path_buf(), root: root.to_path_buf(), directory: is_directory(policy)? })
    }

    /// Path for `RINGFENCE_POLICY`.
    pub(super) fn policy(&self) -> &Path {
        &self.policy
    }

    /// Can the policy be replaced by `source`?
    pub(super) fn check(&self, source: &Path) -> anyhow::Result<bool> {
        let directory = is_directory(source)?;
        ensure!(
            directory == self.directory,
            "--policy and --with must both be objects or both be directories"
        );
        Ok(directory)
    }

    /// Copies `source` beside the live policy, ready to be switched to.
    pub(super) fn prepare(&self, source: &Path) -> anyhow::Result<Prepared> {
        if self.check(source)? {
            copy_tree(source, &self.policy.join("..v2"), 0)?;
            let link = self.policy.join("..data_tmp");
            symlink("..v2", &link).context("cannot link")?;
            return Ok(Prepared {
                from: link,
                to: self.policy.join(DATA),
                directory: Some(self.policy.clone()),
            });
        }
        let from = self.root.join("next");
        copy_file(source, &from)?;
        Ok(Prepared { from, to: self.policy.clone(), directory: None })
    }
}

/// A new version, one rename away from being live.
#[derive(Debug)]
pub(super) struct Prepared {
    from: PathBuf,
    to: PathBuf,
    directory: Option<PathBuf>,
}

impl Prepared {
    /// Makes the new version live.
    pub(super) fn switch(self) -> anyhow::Result<()> {
        if let Some(live) = &self.directory {
            link_names(live, "..v2")?;
        }
        fs::rename(&self.from, &self.to).context("cannot switch the policy")
    }
}

/// Links every name of version `version` in `live` that is not there yet.
fn link_names(live: &Path, version: &str) -> anyhow::Result<()> {
    for entry in fs::read_dir(live.join(version))? {
        let name = entry?.file_name();
        let link = live.join(&name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(&name), &link).context("cannot link")?;
        }
    }
    Ok(())
}

fn is_directory(path: &Path) -> anyhow::Result<bool> {
    Ok(fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.is_dir())
}

fn private_dir(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new().mode(0o700).create(path).with_context(|| format!("cannot create {}", path.display()))
}

fn copy_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    let bytes = crate::cli::input::read_capped(from, MAX_FILE)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    file.write_all(&bytes)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {}", to.display()))
}

/// Copies files and folders; names that start with `..` (a ConfigMap's versions) are left out, links are followed.
fn copy_tree(from: &Path, to: &Path, depth: usize) -> anyhow::Result<()> {
    if depth > 4 {
        bail!("{}: more than four folders deep", from.display());
    }
    private_dir(to)?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for (i, entry) in entries.enumerate() {
        ensure!(i < MAX_ENTRIES, "{}: more than {MAX_ENTRIES} entries", from.display());
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("..") {
            continue;
        }
        if is_directory(&entry.path())? {
            copy_tree(&entry.path(), &to.join(&name), depth + 1)?;
        } else {
            copy_file(&entry.path(), &to.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    }

    #[test]
    fn an_object_is_replaced_by_rename() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (write(tmp.path(), "a.o", "old"), write(tmp.path(), "b.o", "new"));
        let root = tmp.path().join("root");
        private_dir(&root).unwrap();
        let stage = Stage::create(&root, &a, true).unwrap();
        let next = stage.prepare(&b).unwrap();
        assert_eq!(fs::read(stage.policy()).unwrap(), b"old");
        next.switch().unwrap();
        assert_eq!(fs::read(stage.policy()).unwrap(), b"new");
        assert_eq!(fs::metadata(stage.policy()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_directory_switches_all_files_at_once() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        write(&a, "x", "old");
        write(&a, "..data", "left out");
        write(&b, "x", "new");
        write(&b, "y", "also new");
        let root = tmp.path().join("root");
        private_dir(&root).unwrap();
        let made = Stage::create(&root, &a, true).unwrap();
        let stage = Stage::reopen(&root, made.policy()).unwrap();
        let next = stage.prepare(&b).unwrap();
        assert_eq!(fs::read(stage.policy().join("x")).unwrap(), b"old");
        next.switch().unwrap();
        assert_eq!(fs::read(stage.policy().join("x")).unwrap(), b"new");
        assert_eq!(fs::read(stage.policy().join("y")).unwrap(), b"also new");
    }

    #[test]
    fn an_object_cannot_be_replaced_by_a_directory() {
        let tmp = tempfile::tempdir().unwrap();
        let a = write(tmp.path(), "a.o", "old");
        let root = tmp.path().join("root");
        private_dir(&root).unwrap();
        let error = Stage::create(&root, &a, true).unwrap().prepare(tmp.path()).unwrap_err();
        assert!(error.to_string().contains("both"), "{error}");
    }
}
