//! [`RunDir`]: the directory where the processes of one user leave word of themselves, and [`Identity`]: which process wrote a file.
//!
//! Whoever can write in it could feed a job's maps, so it belongs to the user and nobody else may write there; it is refused
//! otherwise, and so is a link in its place. All files are named relative to the opened directory and never through a link.

use crate::ffi::sys;
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Environment variable that names the directory; `off` for none.
pub const RUN_DIR_VAR: &str = "RINGFENCE_RUN_DIR";
/// Ending of status files.
pub(crate) const STATUS: &str = ".status.json";
/// Ending of control files.
pub(crate) const CONTROL: &str = ".ctl";
/// Most bytes of a status file that anybody reads.
pub(crate) const MAX_STATUS: u64 = 8 << 20;
/// Most files that are looked at.
const MAX_FILES: usize = 4096;

/// Where the directory may be. A process takes the first; tools look in all, for a job's environment often differs from a shell's.
///
/// 1. `RINGFENCE_RUN_DIR`, and nothing else then; empty if it says `off`.
/// 2. `$XDG_RUNTIME_DIR/ringfence`, where that variable names a directory.
/// 3. `/dev/shm/ringfence-<uid>`.
pub fn locations() -> Vec<PathBuf> {
    if let Some(given) = std::env::var_os(RUN_DIR_VAR).filter(|v| !v.is_empty()) {
        return if given == "off" { Vec::new() } else { vec![absolute(given)] };
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|v| !v.is_empty()).map(PathBuf::from);
    let runtime =
        runtime.filter(|dir| dir.is_dir()).map(|dir| absolute(dir.into_os_string()).join("ringfence"));
    let shm = PathBuf::from(format!("/dev/shm/ringfence-{}", sys::effective_uid()));
    runtime.into_iter().chain([shm]).collect()
}

fn absolute(path: OsString) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path.into())
}

/// The opened directory.
#[derive(Debug)]
pub struct RunDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl RunDir {
    /// Opens the directory, after making it (mode 0700) if it is not there.
    ///
    /// # Errors
    /// It cannot be made or opened; it is a link, belongs to somebody else, or others can write in it.
    pub fn create(path: &Path) -> io::Result<RunDir> {
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(at(path, "cannot make the directory", e.into())),
        }
        RunDir::open(path)
    }

    /// Opens the directory.
    ///
    /// # Errors
    /// As [`RunDir::create`]; [`io::ErrorKind::NotFound`] if it is not there.
    pub fn open(path: &Path) -> io::Result<RunDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => refused(path, "it is a link, or no directory"),
            e => at(path, "cannot open", e.into()),
        })?;
        let stat = fs::fstat(&fd)?;
        if stat.st_uid != sys::effective_uid() {
            return Err(refused(path, &format!("it belongs to user {}", stat.st_uid)));
        }
        if stat.st_mode & 0o022 != 0 {
            return Err(refused(path, "others can write in it (chmod go-w)"));
        }
        Ok(RunDir { fd, path: path.to_owned() })
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the files, without hidden ones; some thousand at most.
    ///
    /// # Errors
    /// Of the system.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = self.all_names()?;
        names.retain(|name| !name.starts_with('.'));
        Ok(names)
    }

    fn all_names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
            if names.len() == MAX_FILES {
                break;
            }
        }
        names.sort();
        Ok(names)
    }

    /// Puts a file there in one step: written under another name, then renamed. Mode 0600.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn put(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let temporary = format!(".{name}.tmp");
        // A left-over of a process that died while it wrote.
        let _ = self.remove(&temporary);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(fs::openat(&self.fd, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
        let done =
            file.write_all(contents).and_then(|()| Ok(fs::renameat(&self.fd, &temporary, &self.fd, name)?));
        if done.is_err() {
            let _ = self.remove(&temporary);
        }
        done
    }

    /// Reads a file of at most `max` bytes.
    ///
    /// # Errors
    /// Of the system; [`io::ErrorKind::FileTooLarge`]; it is no plain file of this user.
    pub fn read(&self, name: &str, max: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file(name, OFlags::RDONLY)?;
        let mut bytes = Vec::new();
        file.take(max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        Ok(bytes)
    }

    /// Makes a file that must not be there, for reading and writing, mode 0600.
    ///
    /// # Errors
    /// Of the system; [`io::ErrorKind::AlreadyExists`].
    pub(crate) fn create_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Opens a plain file of this user for reading and writing.
    ///
    /// # Errors
    /// As [`RunDir::read`].
    pub(crate) fn open_rw(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR)
    }

    fn open_file(&self, name: &str, access: OFlags) -> io::Result<File> {
        // Not blocking, in case it is a FIFO.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(fs::openat(&self.fd, name, flags, Mode::empty())?);
        let meta = file.metadata()?;
        if !meta.is_file() || meta.uid() != sys::effective_uid() || meta.mode() & 0o077 != 0 {
            let why = "it is no plain file that its owner alone can open (mode 0600)";
            return Err(refused(&self.path.join(name), why));
        }
        Ok(file)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Removes what processes left that are no more: the number of files. Files of another process namespace (two containers with
    /// one `/dev/shm`) are left alone, for their processes cannot be seen from here.
    pub fn clean(&self) -> usize {
        let Ok(names) = self.all_names() else { return 0 };
        let stale = names.iter().filter(|name| self.is_stale(name));
        stale.filter(|name| self.remove(name).is_ok()).count()
    }

    fn is_stale(&self, name: &str) -> bool {
        let Some((pid, _)) = split_name(name) else { return false };
        let now = Identity::of(pid);
        match self.writer(name) {
            Some(wrote) => wrote.namespace == Identity::own_namespace() && now != Some(wrote),
            // Nobody knows whose it is: only a process of that number can want it.
            None => now.is_none() && Path::new("/proc/self").exists(),
        }
    }

    /// The process that wrote a file.
    pub(crate) fn writer(&self, name: &str) -> Option<Identity> {
        let (_, kind) = split_name(name)?;
        match kind {
            STATUS => super::status::identity_in(&self.read(name, MAX_STATUS).ok()?),
            CONTROL => super::control::identity_in(&self.open_rw(name).ok()?),
            _ => None,
        }
    }
}

impl AsFd for RunDir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A host's name: the process number, and for further hosts of one process (a library's source, another copy of Ringfence) a
/// number behind it: `4242`, `4242.1`.
pub(crate) fn host_name(pid: u32, part: u32) -> String {
    if part == 0 { pid.to_string() } else { format!("{pid}.{part}") }
}

/// The process number in the name of a file of ours, and the kind of file.
pub(crate) fn split_name(name: &str) -> Option<(u32, &str)> {
    let plain = name.strip_prefix('.').unwrap_or(name);
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).filter(|n| *n > 0);
    let (pid, kind) = plain.split_at_checked(digits(plain)?)?;
    let part = kind.strip_prefix('.').and_then(digits);
    let kind = part.map_or(kind, |n| &kind[1 + n..]);
    let ours = matches!(kind.strip_suffix(".tmp").unwrap_or(kind), STATUS | CONTROL);
    Some((pid.parse().ok()?, kind)).filter(|_| ours)
}

/// A process, told from an earlier one of the same number, and from those of other containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// Inode of its process namespace; 0 where that cannot be told.
    pub namespace: u64,
}

impl Identity {
    /// A process that is alive, as seen from here.
    pub fn of(pid: u32) -> Option<Identity> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything; the start time is the 20th field after it.
        let fields = stat.get(stat.rfind(')')? + 1..)?;
        let started = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
        let own = Identity::own_namespace();
        // Unreadable for a process that may not be traced; then it is taken to be where we see it.
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid")).map_or(own, |m| m.ino());
        Some(Identity { pid, started, namespace })
    }

    /// This process.
    pub fn own() -> Identity {
        let pid = std::process::id();
        Identity::of(pid).unwrap_or(Identity { pid, started: 0, namespace: 0 })
    }

    fn own_namespace() -> u64 {
        std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
    }

    /// Is the process still running? `None` if it lives where we cannot see it.
    pub fn is_alive(&self) -> Option<bool> {
        (self.namespace == Identity::own_namespace()).then(|| Identity::of(self.pid) == Some(*self))
    }
}

fn at(path: &Path, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {what}: {error}", path.display()))
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {why}; it is not used", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn temp() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run");
        (temp, path)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn it_is_made_for_its_owner_alone() {
        let (_temp, path) = temp();
        let dir = RunDir::create(&path).unwrap();
        dir.put("1.status.json", b"{}").unwrap();
        assert_eq!((mode(&path), mode(&path.join("1.status.json"))), (0o700, 0o600));
        assert_eq!(dir.read("1.status.json", 2).unwrap(), b"{}");
        assert_eq!(dir.read("1.status.json", 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(dir.names().unwrap(), ["1.status.json"]);
        RunDir::create(&path).unwrap();
    }

    #[test]
    fn a_link_or_what_others_can_write_is_refused() {
        let (temp, path) = temp();
        assert_eq!(RunDir::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let other = temp.path().join("other");
        std::fs::create_dir(&other).unwrap();
        symlink(&other, &path).unwrap();
        assert!(RunDir::create(&path).unwrap_err().to_string().contains("it is a link"));
        for bits in [0o770, 0o702, 0o722] {
            std::fs::set_permissions(&other, std::fs::Permissions::from_mode(bits)).unwrap();
            assert!(RunDir::create(&other).unwrap_err().to_string().contains("others can write"), "{bits:o}");
        }
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
        RunDir::create(&other).unwrap();
    }

    #[test]
    fn files_are_not_reached_through_links_nor_if_others_can_read_them() {
        let (temp, path) = temp();
        let dir = RunDir::create(&path).unwrap();
        let secret = temp.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        symlink(&secret, path.join("7.ctl")).unwrap();
        assert!(dir.open_rw("7.ctl").is_err() && dir.read("7.ctl", 9).is_err());
        assert_eq!(dir.create_new("7.ctl").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        dir.put("7.ctl", b"mine").unwrap();
        assert_eq!(std::fs::read(&secret).unwrap(), b"x", "the link was replaced, not followed");
        std::fs::set_permissions(path.join("7.ctl"), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(dir.open_rw("7.ctl").unwrap_err().to_string().contains("mode 0600"));
    }

    #[test]
    fn names_tell_the_process() {
        assert_eq!(split_name("12.status.json"), Some((12, STATUS)));
        assert_eq!(split_name("12.ctl"), Some((12, CONTROL)));
        assert_eq!(split_name(".12.status.json.tmp"), Some((12, ".status.json.tmp")));
        assert_eq!(split_name("12.3.status.json"), Some((12, STATUS)));
        assert_eq!((host_name(12, 0), host_name(12, 3)), ("12".into(), "12.3".into()));
        for other in
            ["", "12", "x.ctl", "12.txt", "99999999999.ctl", ".ctl", "12.x.ctl", "12..ctl", "12.3.4.ctl"]
        {
            assert_eq!(split_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_is_told_from_its_successor() {
        let own = Identity::own();
        assert!(own.started > 0 && own.namespace > 0);
        assert_eq!(own.is_alive(), Some(true));
        assert_eq!(Identity { started: own.started + 1, ..own }.is_alive(), Some(false));
        assert_eq!(Identity { namespace: 1, ..own }.is_alive(), None);
        assert_eq!(Identity::of(u32::MAX), None);
    }
}
