//! The worked examples, as a user builds them: the policies with clang for eBPF, the callers in C against libringfence.so. Each
//! simulates what a decision costs; the policy has to beat every fixed choice over the sweep.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

fn repo() -> &'static Path {
    static REPO: OnceLock<PathBuf> = OnceLock::new();
    REPO.get_or_init(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap())
}

/// The folder of libringfence.so: `RINGFENCE_BIN` (`make test` sets it), else that of this build, where it is built once, so that no
/// stale one is tested. (Cargo does not build a cdylib for the tests of its own package.)
fn library() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| match std::env::var_os("RINGFENCE_BIN") {
        Some(dir) => repo().join(dir),
        None => build(),
    })
}

fn build() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let dir = exe.parent().and_then(Path::parent).unwrap().to_owned();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The workspace, so that its features, and what is compiled with them, stay the same.
    command.args(["build", "--quiet", "--workspace", "--lib", "--target-dir"]).arg(dir.parent().unwrap());
    if dir.ends_with("release") {
        command.arg("--release");
    }
    run(command.current_dir(repo()));
    dir
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}:\n{out}{err}");
    out.into_owned()
}

/// A compiler that treats every warning as an error.
fn clang() -> Command {
    let mut command = Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang-19".into()));
    command.args(["-Wall", "-Wextra", "-Werror", "-O2", "-g", "-I"]).arg(repo().join("policies/hooks"));
    command
}

fn dir_of(example: &Example) -> String {
    example.dir.path().to_str().unwrap().to_owned()
}

struct Example {
    name: &'static str,
    dir: TempDir,
}

impl Example {
    fn build(name: &'static str) -> Example {
        let dir = tempfile::tempdir().unwrap();
        let example = Example { name, dir };
        let mut make = Command::new("make");
        make.arg("-C").arg(repo().join("policies")).arg("hooks");
        make.arg(format!("HOOKS={}", dir_of(&example))).arg("OUT=/nonexistent");
        // Of the cargo that runs this test; the inner one has its own.
        run(make.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("MAKEFLAGS"));
        // The name that the library calls itself by, as `make install` links it.
        std::os::unix::fs::symlink(
            library().join("libringfence.so"),
            example.dir.path().join("libringfence.so.0"),
        )
        .unwrap();
        let capi = Path::new(env!("CARGO_MANIFEST_DIR"));
        run(clang()
            .arg("-I")
            .arg(capi.join("include"))
            .arg(capi.join(format!("examples/{name}.c")))
            .arg(example.dir.path().join("libringfence.so.0"))
            .args(["-lm", "-o"])
            .arg(example.path("exe")));
        example
    }

    /// Runs the caller with the example's own policy.
    fn run(&self, settings: &[&str]) -> BTreeMap<String, f64> {
        self.run_with(self.name, settings)
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.dir.path().join(format!("{}.{ending}", self.name))
    }

    /// Runs the caller; its output is lines of a name and a number.
    fn run_with(&self, policy: &str, settings: &[&str]) -> BTreeMap<String, f64> {
        let schema = repo().join(format!("policies/hooks/{}.toml", self.name));
        let text = run(Command::new(self.path("exe"))
            .env("LD_LIBRARY_PATH", self.dir.path())
            .env_remove("RINGFENCE_POLICY")
            .arg(self.dir.path().join(format!("{policy}.bpf.o")))
            .arg(schema)
            .args(settings));
        let pair = |line: &str| line.split_once(' ').map(|(k, v)| (k.to_owned(), v.parse().unwrap()));
        text.lines().filter_map(pair).collect()
    }
}

#[test]
fn ep_mode_beats_either_mode() {
    let example = Example::build("ep_mode");
    let got = example.run(&[]);
    assert_eq!(got["submitted"], got["steps"], "{got:?}");
    // Not one of the fixed choices in disguise.
    assert!(got["low_latency_steps"] > 1000.0 && got["high_throughput_steps"] > 1000.0, "{got:?}");
    for fixed in ["low_latency", "high_throughput"] {
        assert!(got["total_us_policy"] < 0.95 * got[&format!("total_us_{fixed}")], "{fixed}: {got:?}");
        assert!(got["slowdown_policy"] < 0.75 * got[&format!("slowdown_{fixed}")], "{fixed}: {got:?}");
    }
    // Nobody who knows the scatter in advance does much better.
    assert!(got["total_us_policy"] < 1.01 * got["total_us_best"], "{got:?}");
}

/// In Rust it decides as in C, step by step.
#[test]
fn ep_mode_is_the_same_in_rust() {
    let example = Example::build("ep_mode");
    assert_eq!(example.run_with("ep_mode_rs", &[]), example.run(&[]));
    let turn = ["ep_turn:1=1000", "ep_turn:3=50"];
    assert_eq!(example.run_with("ep_mode_rs", &turn), example.run(&turn));
}

/// The map is the operator's: turning points at 1 token make it the high-throughput mode for all, out of reach the other.
#[test]
fn ep_mode_follows_the_operator_s_turning_points() {
    let example = Example::build("ep_mode");
    let all = |turn: u32| (0..5).map(|i| format!("ep_turn:{i}={turn}")).collect::<Vec<_>>();
    let run = |settings: &[String]| example.run(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    let never = run(&all(1 << 20));
    assert_eq!(never["low_latency_steps"], never["steps"]);
    assert_eq!(never["total_us_policy"], never["total_us_low_latency"]);
    let always = run(&all(1));
    assert!(always["high_throughput_steps"] > 0.9 * always["steps"], "{always:?}");
    assert!(always["slowdown_policy"] > 1.5, "a bad policy shows: {always:?}");
}

#[test]
fn sdr_beats_selective_repeat_and_every_fixed_code() {
    let got = Example::build("sdr").run(&[]);
    assert_eq!((got["submitted"], got["cells"]), (300.0, 300.0));
    assert!(got["selective_repeat_cells"] > 50.0 && got["erasure_coding_cells"] > 50.0, "{got:?}");
    let fixed = ["selective_repeat", "parity_1", "parity_2", "parity_4", "parity_8", "parity_16"];
    for fixed in fixed {
        assert!(got["slowdown_policy"] < got[&format!("slowdown_{fixed}")] - 0.02, "{fixed}: {got:?}");
    }
    assert!(got["slowdown_policy"] < 1.02, "{got:?}");
}

/// Parity of 16 for every drop rate is worse than what the policy knows, and the schema allows no more than that.
#[test]
fn sdr_follows_the_operator_s_parities() {
    let example = Example::build("sdr");
    let all = |parity: u32| (0..5).map(|i| format!("sdr_parity:{i}={parity}")).collect::<Vec<_>>();
    let run = |settings: &[String]| example.run(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(run(&all(16))["slowdown_policy"] > 1.02);
    // 17 is put back to the default of 8, decision by decision: the caller never sees it.
    let beyond = run(&all(17));
    assert_eq!(beyond["submitted"], 300.0);
    assert!(beyond["slowdown_policy"] < run(&all(16))["slowdown_policy"], "{beyond:?}");
}
