//! [`read_capped`] and [`load_object`]: files from the command line, with limits and clear errors.

use anyhow::{Context, bail, ensure};
use ringfence_translator::limits::MAX_OBJECT_BYTES;
use ringfence_translator::{Object, Program};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads at most `max` bytes; a directory, an unreadable file and a larger one are errors that name the file.
pub(crate) fn read_capped(path: &Path, max: u64) -> anyhow::Result<Vec<u8>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    ensure!(!file.metadata()?.is_dir(), "{} is a directory", path.display());
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(bytes.len() as u64 <= max, "{} is larger than {} MiB", path.display(), max >> 20);
    Ok(bytes)
}

/// Reads an eBPF object that holds at least one program.
pub(crate) fn load_object(path: &Path) -> anyhow::Result<Object> {
    let bytes = read_capped(path, MAX_OBJECT_BYTES as u64)?;
    ensure!(!bytes.is_empty(), "{} is empty, no eBPF object", path.display());
    let object = Object::parse(&bytes)
        .map_err(|e| anyhow::anyhow!("{} is no usable eBPF object: {e}", path.display()))?;
    ensure!(object.programs().len() > 0, "{} holds no program", path.display());
    Ok(object)
}

/// The program of that name, or the only one.
pub(crate) fn choose_program(object: &Object, name: Option<&str>) -> anyhow::Result<Program> {
    let names: Vec<&str> = object.programs().map(|p| p.name()).collect();
    let name = match (name, &names[..]) {
        (Some(name), names) if names.contains(&name) => name,
        (Some(name), names) => bail!("no program \"{name}\"; the object holds {}", names.join(", ")),
        (None, [only]) => only,
        (None, names) => {
            bail!("the object holds several programs, choose one with --program: {}", names.join(", "))
        }
    };
    object.program(name).map_err(|e| anyhow::anyhow!("{name}: {e}"))
}
