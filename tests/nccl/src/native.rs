//! [`shared_library`] and [`policy`]: what tests build from C, once for each run's directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

/// The top of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Builds a shared library from one C file of `tests/` into `dir`, with further options of the compiler.
///
/// # Errors
/// There is no C compiler, or the source does not build.
pub fn shared_library(source: &str, dir: &Path, options: &[&str]) -> Result<PathBuf> {
    let source = repository().join("tests").join(source);
    let name = source.file_stem().context("a C file has a name")?.to_string_lossy().into_owned();
    compile(&[source], &dir.join(format!("{name}.so")), options)
}

fn compile(sources: &[PathBuf], out: &Path, options: &[&str]) -> Result<PathBuf> {
    build(out, |out| {
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args([
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fvisibility=hidden",
            "-shared",
            "-fPIC",
            "-pthread",
        ]);
        cc.args(options).arg("-o").arg(out).args(sources);
        cc
    })
}

/// The fake GPU, built under `target/nccl` once for all trials. Its soname is NVML's, so that NCCL's dlopen of NVML finds it.
///
/// # Errors
/// As for [`shared_library`].
pub fn fakegpu() -> Result<PathBuf> {
    let (sources, text) = fakegpu_sources()?;
    once("fakegpu", &sources, &text, &["-Wl,-soname,libnvidia-ml.so.1"])
}

/// What is preloaded into workers, so that NCCL's polling leaves the cores to those it waits for (tests/nccl/native/patience.c).
///
/// # Errors
/// As for [`shared_library`].
pub fn patience() -> Result<PathBuf> {
    let source = repository().join("tests/nccl/native/patience.c");
    let text = fs::read(&source).with_context(|| format!("{}", source.display()))?;
    once("patience", &[source], &text, &[])
}

/// Builds a shared library under `target/nccl`, or takes the one that was built from the same text.
fn once(name: &str, sources: &[PathBuf], text: &[u8], options: &[&str]) -> Result<PathBuf> {
    let dir = repository().join("target/nccl/build");
    fs::create_dir_all(&dir)?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock()?;
    let (library, built_from) = (dir.join(format!("{name}.so")), dir.join(format!("{name}.txt")));
    let is_current = library.exists() && fs::read(&built_from).is_ok_and(|of| of == text);
    if !is_current {
        compile(sources, &library, options)?;
        fs::write(&built_from, text)?;
    }
    Ok(library)
}

/// Its C files, and the text of all that it is made of.
fn fakegpu_sources() -> Result<(Vec<PathBuf>, Vec<u8>)> {
    let dir = repository().join("tests/fakegpu");
    let entries = fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|kind| kind == "c" || kind == "h"));
    files.sort_unstable();
    let text = files.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?.concat();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "c"));
    Ok((files, text))
}

/// Builds a policy of `tests/nccl/policies` for eBPF into `dir`, as `policies/Makefile` builds the others. `defines` are `NAME=value`.
///
/// # Errors
/// There is no clang with the BPF back end, or the source does not build.
pub fn policy(name: &str, dir: &Path, defines: &[&str]) -> Result<PathBuf> {
    let top = repository();
    let source = top.join("tests/nccl/policies").join(format!("{name}.bpf.c"));
    let clang = bpf_clang()?;
    build(&dir.join(format!("{name}.bpf.o")), |out| {
        let mut cc = Command::new(clang);
        cc.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c", "-I"]);
        cc.arg(top.join("policies/include")).args(defines.iter().map(|define| format!("-D{define}")));
        cc.arg("-o").arg(out).arg(&source);
        cc
    })
}

fn bpf_clang() -> Result<String> {
    let named = std::env::var("CLANG").ok();
    let versions = ["19", "22", "21", "20", "18", "17", "16", "15", "14"].map(|v| format!("clang-{v}"));
    let candidates = named.into_iter().chain(versions).chain(["clang".to_owned()]);
    let works = |clang: &String| {
        let output = Command::new(clang).arg("--print-targets").output();
        output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("bpfel"))
    };
    candidates.into_iter().find(works).context("no clang with the BPF back end: scripts/deps.sh installs it")
}

/// Builds under another name and renames, so that nobody opens half a file.
fn build(out: &Path, command: impl FnOnce(&Path) -> Command) -> Result<PathBuf> {
    let part = out.with_extension(format!("part{}", std::process::id()));
    let mut command = command(&part);
    let Output { status, stderr, .. } =
        command.output().with_context(|| format!("{}", command.get_program().display()))?;
    let stderr = String::from_utf8_lossy(&stderr);
    ensure!(status.success(), "{}\n{stderr}", out.display());
    if let Err(error) = fs::rename(&part, out) {
        bail!("{}: {error}", out.display());
    }
    Ok(out.to_owned())
}
