//! [`inspect`]: reads a shared library as NCCL's loader would use it, without opening it with the loader.

use super::Report;
use super::nccl::{KINDS, tuner_coverage};
use crate::cli::input;
use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectKind, ObjectSymbol};
use std::fs;
use std::path::Path;

/// Largest library that is read, in bytes.
const MAX_BYTES: u64 = 512 << 20;
/// Libraries that every glibc system has.
const USUAL: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// A glibc version, `2.17` as (2, 17).
type Glibc = (u32, u32);

/// What the dynamic section says.
#[derive(Debug, Default)]
struct Dynamic {
    needed: Vec<String>,
    nodelete: bool,
    glibc: Option<Glibc>,
}

/// Reports on the library at `path`.
pub(super) fn inspect(path: &Path, report: &mut Report) {
    let bytes = match input::read_capped(path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(e) => return report.fail("plugin", format!("{e:#}"), "check path and permissions"),
    };
    let file = match ElfFile64::<Endianness>::parse(&*bytes) {
        Ok(file) if file.kind() == ObjectKind::Dynamic => file,
        Ok(_) => {
            return report.fail("plugin", "is no shared library", "give the .so that `make build` makes");
        }
        Err(e) => {
            return report.fail(
                "plugin",
                format!("is no ELF library: {e}"),
                "give the .so that `make build` makes",
            );
        }
    };
    machine(&file, report);
    exports(&file, report);
    match dynamic(&file, &bytes) {
        Ok(found) => judge(&found, report),
        Err(e) => report.fail("plugin", format!("its dynamic section cannot be read: {e}"), "build it again"),
    }
}

fn machine(file: &ElfFile64<'_, Endianness>, report: &mut Report) {
    let machine = file.elf_header().e_machine(file.endian());
    let ours = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    if machine != ours {
        report.fail("plugin-machine", "is built for another CPU", "build it on this kind of machine");
    }
}

/// Which interfaces are exported; NCCL wants data symbols.
fn exports(file: &ElfFile64<'_, Endianness>, report: &mut Report) {
    let symbols: Vec<&str> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition() && s.is_global())
        .filter_map(|s| s.name().ok())
        .collect();
    for kind in KINDS {
        let exported: Vec<u32> = kind
            .versions
            .iter()
            .map(|(v, _)| *v)
            .filter(|v| symbols.contains(&&*format!("{}{v}", kind.symbol)))
            .collect();
        if kind.name == "tuner" {
            tuner(&exported, report);
        } else if let Some(newest) = exported.last() {
            let since = kind.versions.iter().find(|(v, _)| v == newest).map_or("", |(_, s)| *s);
            report.ok("exports", format!("{} {} (newest: NCCL {since})", kind.name, list(&exported)));
        }
    }
}

fn tuner(exported: &[u32], report: &mut Report) {
    if exported.is_empty() {
        let advice =
            "this is no tuner plugin: NCCL goes on with its own tuner and tells so only at NCCL_DEBUG=INFO";
        return report.fail("exports", "no symbol ncclTunerPlugin_v1 to v6", advice);
    }
    report.ok("exports", format!("tuner {}", list(exported)));
    for (version, releases) in tuner_coverage(exported) {
        report.ok("exports", format!("tuner v{version} is what {releases} use"));
    }
}

fn list(versions: &[u32]) -> String {
    versions.iter().map(|v| format!("v{v}")).collect::<Vec<_>>().join(", ")
}

fn dynamic(file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> object::Result<Dynamic> {
    let endian = file.endian();
    let header = file.elf_header();
    let sections = header.sections(endian, bytes)?;
    let mut found = Dynamic::default();
    if let Some((entries, link)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        for entry in entries {
            let tag = entry.d_tag(endian);
            let value = entry.d_val(endian);
            if tag == elf::DT_NEEDED {
                let name = strings.get(value as u32).unwrap_or_default();
                found.needed.push(String::from_utf8_lossy(name).into_owned());
            }
            found.nodelete |= tag == elf::DT_FLAGS_1 && value & u64::from(elf::DF_1_NODELETE) != 0;
        }
    }
    if let Some((mut needs, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                found.glibc = found.glibc.max(glibc_version(version.name(endian, strings)?));
            }
        }
    }
    Ok(found)
}

fn judge(found: &Dynamic, report: &mut Report) {
    let (usual, other): (Vec<&String>, Vec<&String>) =
        found.needed.iter().partition(|n| USUAL.contains(&n.as_str()));
    if other.is_empty() {
        let names: Vec<&str> = usual.iter().map(|s| s.as_str()).collect();
        report.ok("needs", format!("only the system's libraries ({})", names.join(", ")));
    } else {
        let names: Vec<&str> = other.iter().map(|s| s.as_str()).collect();
        report.warn(
            "needs",
            format!("also needs {}", names.join(", ")),
            "see that the job's containers have them, or build without them",
        );
    }
    if found.nodelete {
        report.ok("nodelete", "stays mapped after dlclose (NODELETE)");
    } else {
        report.warn(
            "nodelete",
            "is not linked with -z nodelete; NCCL closes plugins while the process lives",
            "link it with -Wl,-z,nodelete",
        );
    }
    glibc(found.glibc, report);
}

fn glibc(needed: Option<Glibc>, report: &mut Report) {
    let Some((major, minor)) = needed else { return };
    match running_glibc() {
        Some(have) if have < (major, minor) => report.fail(
            "glibc",
            format!("needs glibc {major}.{minor}, this system has {}.{}", have.0, have.1),
            "build the plugin on an older system",
        ),
        Some(have) => {
            report.ok("glibc", format!("needs {major}.{minor}, this system has {}.{}", have.0, have.1))
        }
        None => report.warn(
            "glibc",
            format!("needs glibc {major}.{minor}; this system's could not be found"),
            "compare with `ldd --version`",
        ),
    }
}

fn glibc_version(name: &[u8]) -> Option<Glibc> {
    let text = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
    let mut parts = text.split('.').map(|p| p.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// The newest version that the C library of this process defines.
fn running_glibc() -> Option<Glibc> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path =
        maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.ends_with("/libc.so.6"))?;
    let bytes = fs::read(path).ok()?;
    let header = elf::FileHeader64::<Endianness>::parse(&*bytes).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &*bytes).ok()?;
    let (mut defs, link) = sections.gnu_verdef(endian, &*bytes).ok()??;
    let strings = sections.strings(endian, &*bytes, link).ok()?;
    let mut newest = None;
    while let Ok(Some((_, mut names))) = defs.next() {
        while let Ok(Some(name)) = names.next() {
            newest = newest.max(name.name(endian, strings).ok().and_then(glibc_version));
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_versions_compare_as_numbers() {
        assert_eq!(glibc_version(b"GLIBC_2.17"), Some((2, 17)));
        assert_eq!(glibc_version(b"GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc_version(b"GLIBC_PRIVATE"), None);
        assert!(glibc_version(b"GLIBC_2.4") < glibc_version(b"GLIBC_2.36"));
    }

    #[test]
    fn the_running_glibc_is_found() {
        assert!(running_glibc().is_some_and(|v| v >= (2, 17)));
    }
}
