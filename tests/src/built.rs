//! [`dir`]: the binaries of this build, for tests that run them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory of this build, `target/<profile>`.
fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    exe.parent().and_then(Path::parent).expect("tests run from target/<profile>/deps").to_path_buf()
}

/// Where `ringfence` and the plugin lie: `RINGFENCE_BIN` (`make test` sets it to what `make build` made), else the directory of
/// this build, where they are built once, so that no stale one is tested.
///
/// # Panics
/// If they do not build.
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| match std::env::var_os("RINGFENCE_BIN") {
        Some(dir) => dir.into(),
        None => build(target()),
    })
}

fn build(dir: PathBuf) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The whole workspace, as the tests themselves are built: with fewer packages, dependencies would have other features and
    // wasmtime be compiled again, for minutes.
    command.args(["build", "--quiet", "--workspace", "--lib", "--bins"]);
    if dir.ends_with("release") {
        command.arg("--release");
    }
    let target = dir.parent().expect("a profile lies in a target directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace");
    let status = command.current_dir(root).arg("--target-dir").arg(target).status().expect("cargo runs");
    assert!(status.success(), "the binary does not build");
    dir
}
