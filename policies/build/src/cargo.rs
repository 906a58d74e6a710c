//! [`Crate::bitcode`]: a policy crate compiled to LLVM bitcode by the author's cargo; [`find_llvm`]: the LLVM that
//! its rustc carries.

use anyhow::{Context as _, Result, bail};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Flags of rustc, beside `--emit`.
///
/// - `no-prepopulate-passes`: no optimisation yet; it would vectorise for the host's processor.
/// - `relocation-model=static`: no relative look-up tables, which BPF cannot relocate.
/// - `codegen-units=1`, an rlib: one bitcode file; no panic handler is needed, and errors name the author's line.
/// - `debuginfo=2`: BTF, hence map definitions and source lines, comes from it.
const RUSTC_FLAGS: [&str; 8] = [
    "no-prepopulate-passes",
    "relocation-model=static",
    "force-unwind-tables=no",
    "codegen-units=1",
    "opt-level=3",
    "panic=abort",
    "overflow-checks=off",
    "debuginfo=2",
];
/// Tells the SDK that this build ends as eBPF, where helpers exist.
const CFG: &str = "--cfg=ringfence_bpf";
/// A libLLVM is larger than this; a linker script of that name is not.
const MIN_LIBRARY_BYTES: u64 = 1 << 20;

/// A policy crate.
pub(crate) struct Crate<'a> {
    /// Cargo.toml of the crate or of its workspace.
    pub(crate) manifest: &'a Path,
    /// Its package.
    pub(crate) package: &'a str,
    /// Cargo's target folder.
    pub(crate) target_dir: &'a Path,
    /// Source paths under this folder are recorded relative to it, so that the object does not depend on where it lies.
    pub(crate) root: &'a Path,
}

impl Crate<'_> {
    /// Compiles the crate and returns its bitcode.
    ///
    /// # Errors
    /// Cargo cannot be run, or fails; it has then told why on stderr.
    pub(crate) fn bitcode(&self) -> Result<Vec<u8>> {
        let path = self.target_dir.join("bitcode").join(format!("{}.bc", self.package));
        let folder = path.parent().unwrap_or(self.target_dir);
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        if !path.exists() {
            // Cargo does not know of the file, and would find nothing to do.
            self.run("clean", &[])?;
        }
        let emit = format!("--emit=llvm-bc={}", path.display());
        let mut flags = vec!["--lib", "--crate-type", "rlib", "--", &emit];
        flags.extend(RUSTC_FLAGS.iter().flat_map(|flag| ["-C", flag]));
        self.run("rustc", &flags)?;
        std::fs::read(&path).with_context(|| path.display().to_string())
    }

    fn run(&self, command: &str, args: &[&str]) -> Result<()> {
        let mut cargo = Command::new(tool("CARGO", "cargo"));
        cargo.args([command, "--quiet", "--release", "-p", self.package]);
        cargo.arg("--manifest-path").arg(self.manifest).arg("--target-dir").arg(self.target_dir);
        let remap = format!("--remap-path-prefix={}=", self.root.join("").display());
        cargo.args(args).env("CARGO_ENCODED_RUSTFLAGS", [CFG, &remap].join("\u{1f}")).stdin(Stdio::null());
        let status = cargo.status().context("cannot run cargo")?;
        if !status.success() {
            bail!("cargo {command} failed for package {}", self.package);
        }
        Ok(())
    }
}

/// The program that an environment variable names, or the one of that name on the path.
fn tool(variable: &str, name: &str) -> PathBuf {
    env::var_os(variable).filter(|v| !v.is_empty()).map_or_else(|| name.into(), PathBuf::from)
}

/// The LLVM of the rustc that cargo uses in `folder` (a toolchain file there may choose it).
///
/// # Errors
/// rustc cannot be run, or has no LLVM as a library of its own (distributions link it in).
pub(crate) fn find_llvm(folder: &Path) -> Result<PathBuf> {
    let mut rustc = Command::new(tool("RUSTC", "rustc"));
    let output =
        rustc.args(["--print", "sysroot"]).current_dir(folder).output().context("cannot run rustc")?;
    let lib = Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("lib");
    let entries = std::fs::read_dir(&lib).with_context(|| lib.display().to_string())?;
    let is_llvm = |path: &PathBuf| {
        let named = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libLLVM"));
        named && path.metadata().is_ok_and(|m| m.len() >= MIN_LIBRARY_BYTES)
    };
    let found = entries.flatten().map(|e| e.path()).filter(is_llvm).min();
    found.with_context(|| format!("no libLLVM in {}; name one with --llvm", lib.display()))
}
