//! [`Watch`]: inotify on the policy directory. Files are replaced by rename and Kubernetes swaps a link, so watching
//! files themselves would miss both; the directory sees every way.

use super::plan::Event;
use crate::config::{K8S_DATA, MANIFEST, Source};
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// Bytes for one reading: some 60 events with short names; what is left is read next.
const BUFFER: usize = 4096;

/// A watch on the directory of a source.
pub(crate) struct Watch {
    source: Source,
    inotify: Inotify,
    current: Option<(WatchDescriptor, Identity)>,
}

/// Device and inode.
type Identity = (u64, u64);

impl Watch {
    /// Opens inotify; nothing is watched until [`Watch::renew`].
    ///
    /// # Errors
    /// The limits on inotify instances or files are reached.
    pub(crate) fn new(source: Source) -> io::Result<Watch> {
        Ok(Watch { source, inotify: Inotify::init()?, current: None })
    }

    /// Watches whatever directory the path leads to now.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        if let Some((old, _)) = self.current.take() {
            // Fails if the directory is gone, and with it the watch.
            let _ = self.inotify.watches().remove(old);
        }
        let mask = WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::CLOSE_WRITE
            | WatchMask::DELETE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let descriptor = self.inotify.watches().add(self.source.dir(), mask)?;
        self.current = Some((descriptor, self.identity()?));
        Ok(())
    }

    /// Does the path lead to another directory than the watched one (a link in it was swapped)? Inotify does
    /// not tell that.
    pub(crate) fn is_stale(&self) -> bool {
        self.current.as_ref().is_some_and(|(_, was)| self.identity().ok() != Some(*was))
    }

    /// Reads what happened, without waiting, and passes on what matters.
    pub(crate) fn drain(&mut self, mut event: impl FnMut(Event)) -> io::Result<()> {
        let mut buffer = [0; BUFFER];
        loop {
            let events = match self.inotify.read_events(&mut buffer) {
                Ok(events) => events,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            for seen in events {
                let ours = self.current.as_ref().is_some_and(|(wd, _)| *wd == seen.wd);
                if let Some(e) = classify(&self.source, seen.mask, seen.name, ours) {
                    event(e);
                }
            }
        }
    }

    fn identity(&self) -> io::Result<Identity> {
        let meta = std::fs::metadata(self.source.dir())?;
        Ok((meta.dev(), meta.ino()))
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// What an inotify event means. `ours` tells whether it is about the watch in force, not a removed one.
fn classify(source: &Source, mask: EventMask, name: Option<&OsStr>, ours: bool) -> Option<Event> {
    if mask.contains(EventMask::Q_OVERFLOW) {
        return Some(Event::Changed);
    }
    if !ours {
        return None;
    }
    if mask
        .intersects(EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT | EventMask::IGNORED)
    {
        return Some(Event::Gone);
    }
    match name {
        // The directory itself: its mode or owner, which decide whether it is trusted.
        None => Some(Event::Changed),
        Some(name) => matters(source, name).then_some(Event::Changed),
    }
}

/// Can a policy set be made of a file of that name? Editors' and Kubernetes' temporary files are not.
fn matters(source: &Source, name: &OsStr) -> bool {
    if name == K8S_DATA {
        return true;
    }
    match source {
        Source::File(_, file) => name == file,
        Source::Dir(_) => {
            let name = name.as_encoded_bytes();
            name == MANIFEST.as_bytes() || (name.ends_with(b".o") && !name.starts_with(b"."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use tempfile::TempDir;

    fn events(watch: &mut Watch) -> Vec<Event> {
        let mut seen = Vec::new();
        watch.drain(|e| seen.push(e)).unwrap();
        seen
    }

    fn watched(source: Source) -> Watch {
        let mut watch = Watch::new(source).unwrap();
        watch.renew().unwrap();
        watch
    }

    #[test]
    fn what_makes_a_set_matters_and_nothing_else() {
        let dir = Source::Dir("d".into());
        let file = Source::File("d".into(), "x.bpf.o".into());
        for (name, in_dir, for_file) in [
            ("x.bpf.o", true, true),
            ("y.bpf.o", true, false),
            ("ringfence.toml", true, false),
            ("..data", true, true),
            ("..data_tmp", false, false),
            ("..2026_11_30", false, false),
            (".x.bpf.o.swp", false, false),
            (".tmp.bpf.o", false, false),
            ("notes.txt", false, false),
        ] {
            assert_eq!(matters(&dir, OsStr::new(name)), in_dir, "{name}");
            assert_eq!(matters(&file, OsStr::new(name)), for_file, "{name}");
        }
    }

    #[test]
    fn every_way_to_replace_a_policy_is_seen() {
        let d = TempDir::new().unwrap();
        let at = |name: &str| d.path().join(name);
        let mut watch = watched(Source::Dir(d.path().into()));
        type Step<'a> = (&'a str, Box<dyn Fn() + 'a>);
        let steps: Vec<Step<'_>> = vec![
            ("write", Box::new(|| fs::write(at("a.bpf.o"), "1").unwrap())),
            ("rewrite", Box::new(|| fs::write(at("a.bpf.o"), "2").unwrap())),
            (
                "rename",
                Box::new(|| {
                    fs::write(at("tmp"), "3").unwrap();
                    fs::rename(at("tmp"), at("a.bpf.o")).unwrap();
                }),
            ),
            ("remove", Box::new(|| fs::remove_file(at("a.bpf.o")).unwrap())),
            (
                "kubernetes",
                Box::new(|| {
                    fs::create_dir(at("..v2")).unwrap();
                    std::os::unix::fs::symlink("..v2", at("..data_tmp")).unwrap();
                    fs::rename(at("..data_tmp"), at("..data")).unwrap();
                }),
            ),
            (
                "mode",
                Box::new(|| {
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                    fs::set_permissions(d.path(), mode).unwrap();
                }),
            ),
        ];
        for (what, step) in steps {
            step();
            assert!(events(&mut watch).contains(&Event::Changed), "{what}");
        }
        fs::write(at("notes.txt"), "x").unwrap();
        assert_eq!(events(&mut watch), []);
    }

    #[test]
    fn a_directory_that_is_replaced_is_noticed_and_watched_again() {
        let d = TempDir::new().unwrap();
        let (a, old) = (d.path().join("a"), d.path().join("old"));
        fs::create_dir(&a).unwrap();
        let mut watch = watched(Source::Dir(a.clone()));
        fs::rename(&a, &old).unwrap();
        assert!(events(&mut watch).contains(&Event::Gone));
        assert!(watch.is_stale());
        assert!(watch.renew().is_err(), "nothing is there");
        fs::create_dir(&a).unwrap();
        watch.renew().unwrap();
        assert!(!watch.is_stale());
        fs::write(old.join("x.bpf.o"), "1").unwrap();
        assert_eq!(events(&mut watch), [], "the old directory no longer counts");
        fs::write(a.join("x.bpf.o"), "1").unwrap();
        assert!(events(&mut watch).contains(&Event::Changed));
        fs::remove_dir_all(&a).unwrap();
        assert!(events(&mut watch).contains(&Event::Gone));
    }

    #[test]
    fn a_swapped_link_in_the_path_is_noticed() {
        let d = TempDir::new().unwrap();
        let at = |name: &str| d.path().join(name);
        fs::create_dir(at("v1")).unwrap();
        fs::create_dir(at("v2")).unwrap();
        std::os::unix::fs::symlink(Path::new("v1"), at("now")).unwrap();
        let watch = watched(Source::Dir(at("now")));
        assert!(!watch.is_stale());
        fs::remove_file(at("now")).unwrap();
        std::os::unix::fs::symlink(Path::new("v2"), at("now")).unwrap();
        assert!(watch.is_stale());
    }
}
