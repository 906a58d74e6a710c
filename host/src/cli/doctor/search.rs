//! [`locate`]: finds the file that NCCL would open, by NCCL's own rules for `NCCL_TUNER_PLUGIN`.

use super::Report;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// NCCL cuts plugin names at this many bytes (a 255-byte buffer with its terminator).
const NAME_MAX: usize = 254;
/// A value that is a prefix of this word, in any case, means "symbols linked into the executable".
const STATIC: &str = "STATIC_PLUGIN";
/// What NCCL opens when nothing is set.
const DEFAULT: &str = "libnccl-tuner.so";
/// Directories that the loader searches last.
const SYSTEM_DIRS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// What a value of `NCCL_TUNER_PLUGIN` means.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// No tuner.
    Disabled,
    /// Symbols of the executable.
    Static,
    /// These names, in order.
    Names(Vec<String>),
}

/// NCCL's reading of the variable; an unset one and an empty one mean the default name.
fn interpret(value: &str) -> Request {
    if value.eq_ignore_ascii_case("none") {
        return Request::Disabled;
    }
    if value.is_empty() {
        return Request::Names(vec![DEFAULT.into()]);
    }
    if STATIC.get(..value.len()).is_some_and(|s| s.eq_ignore_ascii_case(value)) {
        return Request::Static;
    }
    let mut names = vec![value.to_string()];
    let library = value.starts_with("lib") && value.ends_with(".so");
    if !value.contains('/') && !library {
        names.push(format!("libnccl-tuner-{value}.so"));
    }
    Request::Names(names)
}

/// Finds the plugin and reports how; `None` if there is nothing to inspect.
pub(super) fn locate(given: Option<&Path>, report: &mut Report) -> Option<PathBuf> {
    let (value, origin) = match given {
        Some(path) => (path.to_string_lossy().into_owned(), "--plugin".to_string()),
        None => setting("NCCL_TUNER_PLUGIN"),
    };
    if value.len() > NAME_MAX {
        let text = format!("{origin} has {} bytes; NCCL cuts names after {NAME_MAX}", value.len());
        report.fail("plugin-name", text, "install the plugin under a shorter path");
    }
    match interpret(&value) {
        Request::Disabled => {
            let text = format!("{origin} says \"none\": NCCL loads no tuner");
            report.fail("plugin-name", text, "unset it, or set NCCL_TUNER_PLUGIN=ringfence");
            None
        }
        Request::Static => {
            let text = format!(
                "\"{value}\" is a prefix of {STATIC}: NCCL looks for symbols in the executable, not for a file"
            );
            report.fail("plugin-name", text, "use NCCL_TUNER_PLUGIN=ringfence or an absolute path");
            None
        }
        Request::Names(names) => find(&names, &origin, report),
    }
}

fn find(names: &[String], origin: &str, report: &mut Report) -> Option<PathBuf> {
    for name in names {
        if let Some(path) = open_name(name) {
            report.ok("plugin", format!("{origin}: NCCL opens {}", path.display()));
            return Some(path);
        }
    }
    let text = format!("{origin}: nothing found for {}", names.join(" or "));
    report.fail(
        "plugin",
        text,
        "install libnccl-tuner-ringfence.so into a directory of LD_LIBRARY_PATH and set NCCL_TUNER_PLUGIN=ringfence, \
         or give the absolute path",
    );
    None
}

/// The file that `dlopen` takes for a name: a path if it holds a slash, else the first hit on the search path.
fn open_name(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|p| p.is_file());
    }
    search_dirs().into_iter().map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// `LD_LIBRARY_PATH`, then what `ld.so.conf` lists, then the system's directories. The loader's cache is not read:
/// it holds the same directories at the time of the last `ldconfig`.
fn search_dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        env::var_os("LD_LIBRARY_PATH").map(|v| env::split_paths(&v).collect()).unwrap_or_default();
    let mut files = vec![PathBuf::from("/etc/ld.so.conf")];
    if let Ok(entries) = fs::read_dir("/etc/ld.so.conf.d") {
        files.extend(entries.flatten().map(|e| e.path()));
    }
    for text in files.iter().filter_map(|f| fs::read_to_string(f).ok()) {
        dirs.extend(text.lines().map(str::trim).filter(|l| l.starts_with('/')).map(PathBuf::from));
    }
    dirs.extend(SYSTEM_DIRS.map(PathBuf::from));
    dirs
}

/// A setting as NCCL resolves it: the environment, then `NCCL_CONF_FILE` or `~/.nccl.conf`, then `/etc/nccl.conf`.
fn setting(name: &str) -> (String, String) {
    if let Some(value) = env::var_os(name) {
        let value = value.to_string_lossy().into_owned();
        let origin =
            if value.is_empty() { format!("{name} is empty, which means {DEFAULT}") } else { name.into() };
        return (value, origin);
    }
    let user = env::var_os("NCCL_CONF_FILE")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|h| PathBuf::from(h).join(".nccl.conf")));
    for file in user.into_iter().chain([PathBuf::from("/etc/nccl.conf")]) {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if let Some(value) = conf_value(&text, name) {
            return (value, format!("{name} in {}", file.display()));
        }
    }
    (String::new(), format!("{name} is not set, which means {DEFAULT}"))
}

/// `NAME=value` lines; the first wins, `#` starts a comment line.
fn conf_value(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once('='))
        .find(|(k, _)| k.trim() == name)
        .map(|(_, v)| v.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_nccl_reads_them() {
        let names = |list: &[&str]| Request::Names(list.iter().map(ToString::to_string).collect());
        let cases = [
            ("none", Request::Disabled),
            ("NONE", Request::Disabled),
            ("", names(&["libnccl-tuner.so"])),
            ("ringfence", names(&["ringfence", "libnccl-tuner-ringfence.so"])),
            ("libfoo.so", names(&["libfoo.so"])),
            ("/a/b.so", names(&["/a/b.so"])),
            ("./x", names(&["./x"])),
            ("s", Request::Static),
            ("Static", Request::Static),
            ("static_plugin", Request::Static),
            ("static_plugins", names(&["static_plugins", "libnccl-tuner-static_plugins.so"])),
        ];
        for (value, want) in cases {
            assert_eq!(interpret(value), want, "{value}");
        }
    }

    #[test]
    fn conf_files_are_key_value_lines() {
        let text = "# NCCL_TUNER_PLUGIN=a\nNCCL_DEBUG=INFO\nNCCL_TUNER_PLUGIN = ringfence\n";
        assert_eq!(conf_value(text, "NCCL_TUNER_PLUGIN").as_deref(), Some("ringfence"));
        assert_eq!(conf_value(text, "NCCL_NET_PLUGIN"), None);
    }
}
