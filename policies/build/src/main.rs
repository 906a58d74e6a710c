//! `ringfence-bpf-build`: a Rust policy crate becomes an eBPF object, with a plain stable toolchain.
//!
//! cargo compiles the crate for the **host** to LLVM bitcode, and the LLVM that ships inside rustc, which has the BPF
//! back end, makes the object. The object is written beside its place and renamed, and an older one is removed first:
//! what stands there after a failure is nothing.

mod cargo;
mod fallback;
mod llvm;
mod retarget;
mod symbol;

use anyhow::{Context as _, Result};
use clap::Parser;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compile a Rust policy crate to an eBPF object.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Cargo.toml of the crate or of its workspace.
    #[arg(long, value_name = "FILE", default_value = "Cargo.toml")]
    manifest_path: PathBuf,
    /// The package.
    #[arg(short, long, value_name = "NAME")]
    package: String,
    /// Where the object goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// BPF instruction set: v1 to v4. v4 has signed division.
    #[arg(long, value_name = "VERSION", default_value = "v3")]
    cpu: String,
    /// Cargo's target folder [default: target/, beside the manifest].
    #[arg(long, value_name = "DIR")]
    target_dir: Option<PathBuf>,
    /// Folder that source paths in the object are relative to [default: the manifest's].
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// libLLVM of the rustc in use, if it is not where rustc keeps it.
    #[arg(long, value_name = "FILE")]
    llvm: Option<PathBuf>,
    /// Also write the optimised module in LLVM's text form here.
    #[arg(long, value_name = "FILE")]
    emit_ll: Option<PathBuf>,
}

fn main() -> ExitCode {
    match build(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in format!("{error:#}").lines() {
                eprintln!("error: {line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build(args: &Args) -> Result<()> {
    let output = std::path::absolute(&args.output)?;
    remove_old(&output).with_context(|| output.display().to_string())?;
    let manifest = std::path::absolute(&args.manifest_path)?;
    let folder = manifest.parent().context("the manifest has no folder")?;
    let target_dir =
        args.target_dir.as_deref().map_or_else(|| Ok(folder.join("target")), std::path::absolute)?;
    let root = args.root.as_deref().unwrap_or(folder);
    let root = root.canonicalize().with_context(|| root.display().to_string())?;
    let krate =
        cargo::Crate { manifest: &manifest, package: &args.package, target_dir: &target_dir, root: &root };
    let bitcode = krate.bitcode()?;

    let library =
        args.llvm.as_deref().map_or_else(|| cargo::find_llvm(folder), |p| Ok(std::path::absolute(p)?))?;
    let text = args.emit_ll.as_deref().map(std::path::absolute).transpose()?;
    let llvm = llvm::Llvm::open(&library, &args.cpu)?;
    // LLVM reads the source lines that it puts into BTF by the recorded, relative paths.
    std::env::set_current_dir(&root).with_context(|| root.display().to_string())?;
    let folder = folder.canonicalize()?;
    let own = |file: &Path| file.canonicalize().is_ok_and(|file| file.starts_with(&folder));
    let made = retarget::retarget(&llvm, &bitcode, &retarget::Options { own: &own, text: text.is_some() })?;
    if let (Some(path), Some(text)) = (&text, &made.text) {
        std::fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    write_object(&output, &made.object).with_context(|| output.display().to_string())?;
    println!("  RUST  {} ({})", args.output.display(), made.entries.join(", "));
    Ok(())
}

fn remove_old(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Writes under another name in the same folder, then renames: nobody sees half an object.
fn write_object(path: &Path, object: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder)?;
    file.write_all(object)?;
    // A temporary file is for its owner alone; an object is an ordinary file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    file.persist(path)?;
    Ok(())
}
