//! What the tests of the built plugin share: the library, compiled policies, policy directories, and processes of
//! their own (the plugin has one state per process, and reads its environment).
#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for a reload. It takes some 50 ms; the machines are shared.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The plugin: `RINGFENCE_SO`, or what cargo built beside this test (a cdylib that is also a dependency).
pub(crate) fn so() -> PathBuf {
    static SO: OnceLock<PathBuf> = OnceLock::new();
    SO.get_or_init(|| match std::env::var_os("RINGFENCE_SO") {
        Some(path) => path.into(),
        None => {
            let exe = std::env::current_exe().unwrap();
            let so = exe.with_file_name("libnccl_ringfence.so");
            assert!(
                so.exists(),
                "{} is missing: cargo build -p nccl-ringfence, or set RINGFENCE_SO",
                so.display()
            );
            so
        }
    })
    .clone()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles `policies/c/NAME.bpf.c`, a policy that ships, to an object.
pub(crate) fn shipped(name: &str) -> Vec<u8> {
    compile(&root().join("../policies/c").join(format!("{name}.bpf.c")), &[])
}

/// Compiles `tests/c/policies/NAME.bpf.c` to an object.
pub(crate) fn policy(name: &str, defines: &[&str]) -> Vec<u8> {
    compile(&root().join("c/policies").join(format!("{name}.bpf.c")), defines)
}

fn compile(source: &Path, defines: &[&str]) -> Vec<u8> {
    let out = TempDir::new().unwrap();
    let object = out.path().join("policy.bpf.o");
    let include = root().join("../policies/include");
    let status = Command::new(clang())
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I"])
        .arg(include)
        .args(defines.iter().map(|d| format!("-D{d}")))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status()
        .unwrap();
    assert!(status.success(), "clang refuses {}", source.display());
    fs::read(object).unwrap()
}

fn clang() -> &'static str {
    static CLANG: OnceLock<&str> = OnceLock::new();
    CLANG.get_or_init(|| {
        let works =
            |name: &&&str| Command::new(**name).arg("--version").output().is_ok_and(|o| o.status.success());
        ["clang-19", "clang", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14"]
            .iter()
            .find(works)
            .expect("these tests compile policies: install clang (14 or later, with the bpf target)")
    })
}

/// A directory that the plugin accepts.
pub(crate) struct PolicyDir {
    path: PathBuf,
    _owned: Option<TempDir>,
}

impl PolicyDir {
    pub(crate) fn new() -> PolicyDir {
        let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        PolicyDir { path: dir.path().to_owned(), _owned: Some(dir) }
    }

    /// One that another process made.
    pub(crate) fn at(path: impl Into<PathBuf>) -> PolicyDir {
        PolicyDir { path: path.into(), _owned: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a file there as deployments do: written under another name, then renamed.
    pub(crate) fn put(&self, name: &str, contents: impl AsRef<[u8]>) -> &PolicyDir {
        let temporary = self.path.join(".new");
        fs::write(&temporary, contents).unwrap();
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(temporary, self.path.join(name)).unwrap();
        self
    }
}

/// Runs `body` in a process of its own, with the plugin's environment set to a fresh directory: the test `name` starts
/// itself again and only there runs `body`.
pub(crate) fn isolated(name: &str, body: impl FnOnce(&PolicyDir)) {
    isolated_with(name, &[], body);
}

/// As [`isolated`], with more in the environment; `%d` in a value stands for a directory of the test's own, `RINGFENCE_RUN_DIR` being
/// `run` in it.
pub(crate) fn isolated_with(name: &str, env: &[(&str, &str)], body: impl FnOnce(&PolicyDir)) {
    const DIR: &str = "RINGFENCE_TEST_DIR";
    if let Some(path) = std::env::var_os(DIR) {
        return body(&PolicyDir { path: path.into(), _owned: None });
    }
    let dir = PolicyDir::new();
    let own = TempDir::new().unwrap();
    let value = |text: &str| text.replace("%d", own.path().to_str().unwrap());
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(DIR, dir.path())
        .env("RINGFENCE_POLICY", dir.path())
        .env("RINGFENCE_RUN_DIR", value("%d/run"))
        .envs(env.iter().map(|(name, text)| (name, value(text))))
        .env_remove("RINGFENCE_LOG")
        .env("NCCL_DEBUG", "INFO")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "{name} did not run: {out}");
    print!("{out}");
}

/// Waits until `done`, at most [`PATIENCE`].
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Threads of this process with that name, or all.
pub(crate) fn threads(name: Option<&str>) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let named = |path: PathBuf| fs::read_to_string(path.join("comm")).unwrap_or_default();
    tasks.filter(|t| name.is_none_or(|n| named(t.path()).trim() == n)).count()
}

/// A program compiled from C with the system's compiler.
pub(crate) fn c_program(source: &str, out: &Path) {
    let cc = std::env::var_os("CC").unwrap_or_else(|| OsStr::new("cc").to_owned());
    let status = Command::new(cc)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(out)
        .arg(root().join("c").join(source))
        .args(["-ldl", "-lpthread"])
        .status()
        .expect("a C compiler (cc, or $CC)");
    assert!(status.success());
}
