//! [`Source`] and how it is read: the directory is opened once as a capability, everything is read through
//! that handle as one version, and what others can write is refused.

use super::{ConfigError, MANIFEST, MAX_MANIFEST_BYTES, MAX_POLICIES, Manifest, OBJECT_SUFFIX, POLICY_VAR};
use crate::ffi::sys;
use crate::schema::{MAX_SCHEMA_BYTES, Schema};
use cap_std::fs::{Dir, File, Metadata, MetadataExt, OpenOptions, OpenOptionsExt};
use ringfence_translator::limits::MAX_OBJECT_BYTES;
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The link that Kubernetes swaps when a ConfigMap or Secret changes.
pub(crate) const K8S_DATA: &str = "..data";
/// Tries to read a directory that changes under our hands, before giving up.
const TRIES: u32 = 5;

/// Where policies come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of policies.
    Dir(PathBuf),
    /// A lone object: its directory, and its name there.
    File(PathBuf, OsString),
}

/// A policy object as read.
#[derive(Clone, PartialEq, Eq)]
pub struct PolicyFile {
    /// Path below the directory.
    pub path: String,
    /// Contents.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for PolicyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.path, self.bytes.len())
    }
}

/// A source read as one version.
#[derive(Clone, Debug)]
pub struct SourceSet {
    /// What the manifest says, or stands for.
    pub manifest: Manifest,
    /// The objects, one for each of `manifest.policies`.
    pub files: Vec<PolicyFile>,
    /// The schemas, one for each of `manifest.schemas`.
    pub schemas: Vec<Schema>,
}

impl Source {
    /// The source at `path`. A path that does not exist yet counts as a directory, unless it ends in `.o`.
    pub fn at(path: impl AsRef<Path>) -> Source {
        let path = path.as_ref();
        let object = path.is_file() || (!path.is_dir() && path.extension().is_some_and(|e| e == "o"));
        match (object, path.file_name()) {
            (true, Some(name)) => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
                Source::File(parent.unwrap_or(Path::new(".")).to_owned(), name.to_owned())
            }
            _ => Source::Dir(path.to_owned()),
        }
    }

    /// What `RINGFENCE_POLICY` names; `None` if it is unset or empty. A relative path is taken from the working directory
    /// of this moment, whatever the job does with it later.
    pub fn from_env() -> Option<Source> {
        let path = std::env::var_os(POLICY_VAR).filter(|v| !v.is_empty())?;
        Some(Source::at(std::path::absolute(&path).unwrap_or(path.into())))
    }

    /// The directory to watch.
    pub fn dir(&self) -> &Path {
        match self {
            Source::Dir(dir) | Source::File(dir, _) => dir,
        }
    }

    /// The path as the user named it.
    pub fn path(&self) -> PathBuf {
        match self {
            Source::Dir(dir) => dir.clone(),
            Source::File(dir, name) => dir.join(name),
        }
    }

    /// Reads the whole source as one version.
    ///
    /// # Errors
    /// Missing or unreadable files, a directory or file that others can write or that somebody else owns,
    /// sizes beyond the limits, a bad manifest, contents that keep changing while they are read.
    pub fn read(&self) -> Result<SourceSet, ConfigError> {
        let shown = self.dir().display().to_string();
        let ambient = cap_std::ambient_authority();
        let dir = Dir::open_ambient_dir(self.dir(), ambient)
            .map_err(|e| ConfigError::new(&shown, format!("cannot open the policy directory: {e}")))?;
        let sticky_ok = matches!(self, Source::File(..));
        check_dir(&dir, &shown, sticky_ok)?;
        for _ in 0..TRIES {
            let (version, prefix) = version_of(&dir, &shown)?;
            let mut reader = Reader { dir: version, shown: prefix, seen: Vec::new() };
            let result = match self {
                Source::Dir(_) => reader.set(),
                Source::File(_, name) => reader.lone(name),
            };
            if reader.unchanged() {
                return result;
            }
        }
        Err(ConfigError::new(shown, "keeps changing while it is read; replace files by rename, all at once"))
    }
}

/// The directory that holds one version: the target of Kubernetes' `..data` link, which never changes once it
/// is there, or else the directory itself.
fn version_of(dir: &Dir, shown: &str) -> Result<(Dir, String), ConfigError> {
    let fail = |e| ConfigError::new(format!("{shown}/{K8S_DATA}"), format!("cannot open: {e}"));
    match dir.read_link(K8S_DATA) {
        Ok(target) => {
            let version = dir.open_dir(&target).map_err(fail)?;
            let shown = format!("{shown}/{}", target.display());
            check_dir(&version, &shown, false)?;
            Ok((version, shown))
        }
        Err(_) => Ok((dir.try_clone().map_err(fail)?, shown.to_owned())),
    }
}

/// A file that was read, to be compared afterwards: path, device, inode, size, change time.
type Stamp = (String, Option<(u64, u64, u64, i64, i64)>);

struct Reader {
    dir: Dir,
    shown: String,
    seen: Vec<Stamp>,
}

impl Reader {
    fn set(&mut self) -> Result<SourceSet, ConfigError> {
        let manifest = match self.read(MANIFEST, MAX_MANIFEST_BYTES) {
            Ok(bytes) => {
                let text = String::from_utf8(bytes)
                    .map_err(|_| ConfigError::new(self.path(MANIFEST), "is not UTF-8"))?;
                Manifest::parse(&text).map_err(|e| ConfigError::new(self.path(MANIFEST), e.message()))?
            }
            Err(ReadError::Missing) => Manifest::of_files(self.objects()?),
            Err(ReadError::Other(e)) => return Err(e),
        };
        self.files(manifest)
    }

    fn lone(&mut self, name: &OsString) -> Result<SourceSet, ConfigError> {
        let name = name
            .to_str()
            .ok_or_else(|| ConfigError::new(self.shown.clone(), format!("{name:?} is not UTF-8")))?;
        self.files(Manifest::of_files([name.to_owned()]))
    }

    fn files(&mut self, manifest: Manifest) -> Result<SourceSet, ConfigError> {
        let mut files = Vec::with_capacity(manifest.policies.len());
        for entry in &manifest.policies {
            let bytes = self.read(&entry.file, MAX_OBJECT_BYTES as u64).map_err(|e| match e {
                ReadError::Missing => ConfigError::new(self.path(&entry.file), "no such file"),
                ReadError::Other(e) => e,
            })?;
            files.push(PolicyFile { path: entry.file.clone(), bytes });
        }
        let schemas = manifest.schemas.iter().map(|f| self.schema(f)).collect::<Result<_, _>>()?;
        Ok(SourceSet { manifest, files, schemas })
    }

    fn schema(&mut self, file: &str) -> Result<Schema, ConfigError> {
        let shown = self.path(file);
        let bytes = self.read(file, MAX_SCHEMA_BYTES as u64).map_err(|e| match e {
            ReadError::Missing => ConfigError::new(&shown, "no such file"),
            ReadError::Other(e) => e,
        })?;
        let text = String::from_utf8(bytes).map_err(|_| ConfigError::new(&shown, "is not UTF-8"))?;
        Schema::parse(&text, &shown).map_err(|e| ConfigError::new(&shown, e.message()))
    }

    /// All objects of a directory without manifest, in the order of names.
    fn objects(&self) -> Result<Vec<String>, ConfigError> {
        let fail = |e| ConfigError::new(self.shown.clone(), format!("cannot list: {e}"));
        let mut names = Vec::new();
        for entry in self.dir.entries().map_err(fail)? {
            if let Ok(name) = entry.map_err(fail)?.file_name().into_string()
                && name.ends_with(OBJECT_SUFFIX)
                && !name.starts_with('.')
            {
                names.push(name);
            }
        }
        names.sort();
        if names.is_empty() {
            let message = format!("holds neither {MANIFEST} nor any *{OBJECT_SUFFIX}; put a policy there");
            return Err(ConfigError::new(self.shown.clone(), message));
        }
        if names.len() > MAX_POLICIES {
            let message = format!("{} objects, at most {MAX_POLICIES}; choose with {MANIFEST}", names.len());
            return Err(ConfigError::new(self.shown.clone(), message));
        }
        Ok(names)
    }

    fn read(&mut self, path: &str, most: u64) -> Result<Vec<u8>, ReadError> {
        self.check_parents(path).map_err(ReadError::Other)?;
        // O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files.
        let options = OpenOptions::new().read(true).custom_flags(sys::O_NONBLOCK).clone();
        let file = match self.dir.open_with(path, &options) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.seen.push((path.to_owned(), None));
                return Err(ReadError::Missing);
            }
            Err(e) => return Err(self.fail(path, format!("cannot open: {e}"))),
        };
        let meta = file.metadata().map_err(|e| self.fail(path, format!("cannot stat: {e}")))?;
        if !meta.is_file() {
            return Err(self.fail(path, "is not a regular file"));
        }
        check_owner(&meta, &file, &self.path(path), false).map_err(ReadError::Other)?;
        if meta.len() > most {
            return Err(self.fail(path, format!("{} bytes, at most {most}", meta.len())));
        }
        self.seen.push((path.to_owned(), Some(stamp(&meta))));
        self.contents(file, path, most)
    }

    /// The directories between ours and a file must be as safe as ours. One that is missing is left to the
    /// opening of the file to report.
    fn check_parents(&self, path: &str) -> Result<(), ConfigError> {
        let parents = Path::new(path).ancestors().skip(1).filter(|p| !p.as_os_str().is_empty());
        for parent in parents {
            if let Ok(dir) = self.dir.open_dir(parent) {
                check_dir(&dir, &format!("{}/{}", self.shown, parent.display()), false)?;
            }
        }
        Ok(())
    }

    fn contents(&self, file: File, path: &str, most: u64) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        file.take(most + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| self.fail(path, format!("cannot read: {e}")))?;
        if bytes.len() as u64 > most {
            return Err(self.fail(path, format!("grew beyond {most} bytes while it was read")));
        }
        Ok(bytes)
    }

    /// True if every path that was looked up still leads to the same, unmodified file.
    fn unchanged(&self) -> bool {
        self.seen.iter().all(|(path, old)| self.dir.metadata(path).ok().map(|m| stamp(&m)) == *old)
    }

    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.shown)
    }

    fn fail(&self, path: &str, message: impl Into<String>) -> ReadError {
        ReadError::Other(ConfigError::new(self.path(path), message))
    }
}

enum ReadError {
    Missing,
    Other(ConfigError),
}

fn stamp(meta: &Metadata) -> (u64, u64, u64, i64, i64) {
    (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec())
}

fn check_dir(dir: &Dir, shown: &str, sticky_ok: bool) -> Result<(), ConfigError> {
    let meta = dir.dir_metadata().map_err(|e| ConfigError::new(shown, format!("cannot stat: {e}")))?;
    check_owner(&meta, dir, shown, sticky_ok)
}

/// Refuses what somebody else could have written: owned by neither root nor us, or writable by group or
/// others. A read-only mount is as good as missing write bits (Kubernetes mounts a ConfigMap read-only and
/// leaves its top directory at 0777). `sticky_ok`: the directory of a lone object may be sticky like /tmp, where
/// nobody can replace our files.
fn check_owner(meta: &Metadata, fd: &impl AsFd, shown: &str, sticky_ok: bool) -> Result<(), ConfigError> {
    const STICKY: u32 = 0o1000;
    let uid = sys::effective_uid();
    if meta.uid() != 0 && meta.uid() != uid {
        let message = format!("owned by user {}, must be owned by root or user {uid} (us)", meta.uid());
        return Err(ConfigError::new(shown, message));
    }
    let sticky = sticky_ok && meta.mode() & STICKY != 0;
    if meta.mode() & 0o022 == 0 || sticky || sys::on_read_only_mount(fd.as_fd()) {
        return Ok(());
    }
    let mode = meta.mode() & 0o7777;
    Err(ConfigError::new(shown, format!("mode {mode:04o} lets others write; remove that: chmod go-w")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    fn dir() -> TempDir {
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap()
    }

    fn put(dir: &TempDir, name: &str, text: &str) {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn refused(source: &Source, want: &str) {
        let e = source.read().expect_err(want);
        assert!(e.to_string().contains(want), "{e}, wanted {want}");
    }

    #[test]
    fn a_directory_without_manifest_is_read_in_the_order_of_names() {
        let d = dir();
        for name in ["b.bpf.o", "a.bpf.o", "notes.txt", ".hidden.bpf.o"] {
            put(&d, name, name);
        }
        let set = Source::at(d.path()).read().unwrap();
        let files: Vec<_> = set.files.iter().map(|f| (f.path.as_str(), f.bytes.as_slice())).collect();
        assert_eq!(files, [("a.bpf.o", &b"a.bpf.o"[..]), ("b.bpf.o", b"b.bpf.o")]);
    }

    #[test]
    fn a_manifest_gives_the_order() {
        let d = dir();
        put(&d, "a.bpf.o", "A");
        put(&d, "b.bpf.o", "B");
        put(&d, MANIFEST, "[[policy]]\nfile='b.bpf.o'\n[[policy]]\nfile='a.bpf.o'\n");
        let set = Source::at(d.path()).read().unwrap();
        assert_eq!(set.files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["b.bpf.o", "a.bpf.o"]);
    }

    #[test]
    fn schemas_are_read_with_the_set_and_named_in_errors() {
        let dir = dir();
        put(&dir, "ringfence.toml", "schemas = ['h.toml']\npolicy = []\n");
        refused(&Source::at(dir.path()), "h.toml: no such file");
        put(&dir, "h.toml", "name = 'source-test'\nsize = 7\n");
        refused(&Source::at(dir.path()), "h.toml: line 2, column 8: size: 7 must be");
        put(&dir, "h.toml", "name = 'source-test'\nsize = 8\n");
        let first = Source::at(dir.path()).read().unwrap();
        assert_eq!(first.schemas[0].name(), "source-test");
        // A comment is no change; another layout is.
        put(&dir, "h.toml", "# a comment\nname = 'source-test'\nsize = 8\n");
        assert_eq!(Source::at(dir.path()).read().unwrap().hash(), first.hash());
        put(&dir, "h.toml", "name = 'source-test'\nsize = 16\n");
        assert_ne!(Source::at(dir.path()).read().unwrap().hash(), first.hash());
    }

    #[test]
    fn a_kubernetes_volume_is_read_through_its_data_link() {
        let d = dir();
        fs::create_dir(d.path().join("..2026_1")).unwrap();
        fs::set_permissions(d.path().join("..2026_1"), fs::Permissions::from_mode(0o755)).unwrap();
        put(&d, "..2026_1/x.bpf.o", "X1");
        symlink("..2026_1", d.path().join("..data")).unwrap();
        symlink("..data/x.bpf.o", d.path().join("x.bpf.o")).unwrap();
        let set = Source::at(d.path()).read().unwrap();
        assert_eq!(set.files[0].bytes, b"X1");
        let lone = Source::at(d.path().join("x.bpf.o")).read().unwrap();
        assert_eq!(lone.files[0].bytes, b"X1");
    }

    #[test]
    fn nothing_outside_the_directory_is_read() {
        let (d, outside) = (dir(), dir());
        put(&outside, "x.bpf.o", "secret");
        symlink(outside.path().join("x.bpf.o"), d.path().join("x.bpf.o")).unwrap();
        refused(&Source::at(d.path()), "x.bpf.o: cannot open");
        let up = Path::new("..").join(outside.path().file_name().unwrap()).join("x.bpf.o");
        fs::remove_file(d.path().join("x.bpf.o")).unwrap();
        symlink(up, d.path().join("x.bpf.o")).unwrap();
        refused(&Source::at(d.path()), "x.bpf.o: cannot open");
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let d = dir();
        put(&d, "x.bpf.o", "X");
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for bits in [0o664, 0o646] {
            mode(&d.path().join("x.bpf.o"), bits);
            refused(&Source::at(d.path()), &format!("x.bpf.o: mode {bits:04o} lets others write"));
        }
        mode(&d.path().join("x.bpf.o"), 0o644);
        mode(d.path(), 0o777);
        refused(&Source::at(d.path()), "mode 0777 lets others write");
        mode(d.path(), 0o1777);
        refused(&Source::at(d.path()), "mode 1777 lets others write");
        assert!(Source::at(d.path().join("x.bpf.o")).read().is_ok(), "a lone object in a sticky directory");
        mode(d.path(), 0o755);
        assert!(Source::at(d.path()).read().is_ok());
        fs::create_dir(d.path().join("sub")).unwrap();
        put(&d, "sub/y.bpf.o", "Y");
        put(&d, MANIFEST, "[[policy]]\nfile='sub/y.bpf.o'\n");
        mode(&d.path().join("sub"), 0o775);
        refused(&Source::at(d.path()), "sub: mode 0775 lets others write");
        fs::remove_file(d.path().join(MANIFEST)).unwrap();
        if sys::effective_uid() == 0 {
            std::os::unix::fs::chown(d.path().join("x.bpf.o"), Some(12345), None).unwrap();
            refused(&Source::at(d.path()), "owned by user 12345");
        }
    }

    #[test]
    fn missing_large_and_odd_files_are_named() {
        let d = dir();
        refused(&Source::at(d.path()), "holds neither ringfence.toml nor any *.bpf.o");
        refused(&Source::at(d.path().join("gone")), "cannot open the policy directory");
        refused(&Source::at(d.path().join("gone.bpf.o")), "gone.bpf.o: no such file");
        put(&d, MANIFEST, "[[policy]]\nfile='gone.bpf.o'\n");
        refused(&Source::at(d.path()), "gone.bpf.o: no such file");
        put(&d, MANIFEST, "[[policy]]\nfile='sub'\n");
        fs::create_dir(d.path().join("sub")).unwrap();
        refused(&Source::at(d.path()), "sub: is not a regular file");
        put(&d, MANIFEST, "[[policy]]\nfile='big.bpf.o'\n");
        put(&d, "big.bpf.o", "");
        let big = fs::OpenOptions::new().write(true).open(d.path().join("big.bpf.o")).unwrap();
        big.set_len(MAX_OBJECT_BYTES as u64 + 1).unwrap();
        refused(&Source::at(d.path()), "16777217 bytes, at most 16777216");
        fs::write(d.path().join(MANIFEST), b"\xff").unwrap();
        refused(&Source::at(d.path()), "ringfence.toml: is not UTF-8");
    }
}
