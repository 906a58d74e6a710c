//! [`inspect`]: would the plugin take this policy?

use super::Report;
use crate::cli::check;
use crate::config::{PolicyEntry, Source};
use crate::hooks::Hook;
use ringfence_translator::Object;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Reports on the policy at `path`: who can write it, whether it can be read, whether its programs verify.
pub(super) fn inspect(path: Option<&Path>, report: &mut Report) {
    let Some(path) = path else {
        return report.warn(
            "policy",
            "RINGFENCE_POLICY is not set: the plugin leaves every decision to NCCL",
            "set it to an object or a policy directory",
        );
    };
    if !path.exists() {
        let text = format!("{} does not exist", path.display());
        return report.fail("policy", text, "correct RINGFENCE_POLICY or --policy");
    }
    permissions(path, report);
    let set = match Source::at(path).read() {
        Ok(set) => set,
        Err(e) => {
            return report.fail("policy", e.to_string(), "correct it; until then the plugin decides nothing");
        }
    };
    if let Err(e) = set.intern_schemas() {
        report.fail("policy", e.to_string(), "one name has one layout; correct it");
    }
    if set.files.is_empty() {
        report.warn(
            "policy",
            "holds no policy: NCCL decides alone",
            "put *.bpf.o files there, or list them in ringfence.toml",
        );
    }
    for (entry, file) in set.manifest.policies.iter().zip(&set.files) {
        verify(entry, &file.bytes, report);
    }
}

fn permissions(path: &Path, report: &mut Report) {
    let dir = if path.is_dir() {
        path
    } else {
        path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new("."))
    };
    for place in [dir, path] {
        let Ok(meta) = fs::metadata(place) else { continue };
        let mode = meta.permissions().mode() & 0o7777;
        // A sticky directory (/tmp) lets others add files but not replace ours.
        let others = mode & 0o022 != 0 && !(meta.is_dir() && mode & 0o1000 != 0);
        let text = format!("{} has mode {mode:o} and owner {}", place.display(), meta.uid());
        if others {
            report.fail(
                "permissions",
                format!("{text}: others can change it"),
                format!("chmod go-w {}", place.display()),
            );
        } else {
            report.ok("permissions", text);
        }
        if path == dir {
            break;
        }
    }
}

/// Verifies one policy of the chain.
fn verify(entry: &PolicyEntry, bytes: &[u8], report: &mut Report) {
    let object = match Object::parse(bytes) {
        Ok(object) => object,
        Err(e) => return report.fail("policy", format!("{}: {e}", entry.file), "build it again"),
    };
    let hook = entry.hook.as_deref().and_then(Hook::parse);
    let mut wanted = 0;
    for verdict in check::judge_all(&object, hook) {
        if entry.program.as_ref().is_some_and(|p| *p != verdict.program) {
            continue;
        }
        wanted += 1;
        match &verdict.refusal {
            None => report.ok("policy", format!("{}: {} is accepted", entry.file, verdict.program)),
            Some(r) => {
                let advice = r.hint.clone().unwrap_or_else(|| "see `ringfence check`".into());
                report.fail("policy", format!("{}: {}", entry.file, r.line), advice);
            }
        }
    }
    if wanted == 0 {
        report.fail("policy", format!("{}: holds no such program", entry.file), "see `ringfence disasm`");
    }
}
