//! The `ringfence` binary from outside: exit codes, JSON lines, and clear errors for bad input.

use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The workspace's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

/// Where binary and plugin lie.
fn built() -> &'static Path {
    ringfence_tests::built::dir()
}

fn plugin() -> PathBuf {
    built().join("libnccl_ringfence.so")
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn of(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        let ran = Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        };
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        assert!(matches!(ran.code, 0..=2), "exit code {}: {}", ran.code, ran.stderr);
        ran
    }

    fn json(&self) -> Vec<Value> {
        let line = |l: &str| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"));
        self.stdout.lines().map(line).collect()
    }

    fn event(&self, name: &str) -> Value {
        let found = self.json().into_iter().find(|v| v["event"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {}{}", self.stdout, self.stderr))
    }
}

fn command(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(built().join("ringfence"));
    command
        .args(args)
        .env_remove("RINGFENCE_POLICY")
        .env_remove("NCCL_TUNER_PLUGIN")
        .env_remove("RINGFENCE_LOG");
    command
}

fn ringfence(args: &[impl AsRef<OsStr>]) -> Ran {
    Ran::of(command(args).output().expect("the binary runs"))
}

/// Owned arguments from mixed strings and paths.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$(OsString::from($arg)),*] };
}

fn clang(source: &Path, object: &Path, extra: &[&str]) {
    let status = Command::new("clang-19")
        .args(extra)
        .args(["-O2", "-g", "-c", "-I"])
        .arg(root().join("policies/include"))
        .arg(source)
        .arg("-o")
        .arg(object)
        .status()
        .expect("clang-19 is installed");
    assert!(status.success(), "{} does not compile", source.display());
}

/// A directory with compiled policies.
struct Bench(TempDir);

impl Bench {
    fn new() -> Bench {
        Bench(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles `policies/DIR/NAME.bpf.c`.
    fn policy(&self, dir: &str, name: &str) -> PathBuf {
        let object = self.path(&format!("{name}.bpf.o"));
        let source = root().join("policies").join(dir).join(format!("{name}.bpf.c"));
        clang(&source, &object, &["-target", "bpf", "-mcpu=v3"]);
        object
    }

    fn source(&self, name: &str, text: &str) -> PathBuf {
        let source = self.path(&format!("{name}.bpf.c"));
        fs::write(&source, text).expect("a source is written");
        let object = self.path(&format!("{name}.bpf.o"));
        clang(&source, &object, &["-target", "bpf", "-mcpu=v3"]);
        object
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("a file is written");
        path
    }
}

/// Line of `policies/DIR/NAME.bpf.c` that holds `needle`.
fn line_of(dir: &str, name: &str, needle: &str) -> u64 {
    let path = root().join("policies").join(dir).join(format!("{name}.bpf.c"));
    let text = fs::read_to_string(path).expect("the policy is there");
    1 + text.lines().position(|l| l.contains(needle)).expect("the line is there") as u64
}

#[test]
fn usage() {
    for (args, code) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["check", "--help"], 0),
        (&[], 2),
        (&["frobnicate"], 2),
        (&["check"], 2),
        (&["check", "x", "--hook", "nonsense"], 2),
        (&["translate", "x.o"], 2),
        (&["replay", "--plugin", "x"], 2),
    ] {
        let ran = ringfence(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.stderr);
        assert_eq!(code == 0, ran.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn check_accepts_and_says_what_it_cost() {
    let b = Bench::new();
    let object = b.policy("c", "size_aware");
    let ran = ringfence(&args!["check", &object, "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    let [v] = &ran.json()[..] else { panic!("{}", ran.stdout) };
    assert_eq!(
        (&v["verdict"], &v["program"], &v["section"]),
        (&"accepted".into(), &"size_aware".into(), &"tuner".into())
    );
    assert_eq!(v["file"], object.to_str().expect("UTF-8"));
    assert!(v["kind"].is_null() && v["pc"].is_null() && v["source"].is_null() && v["message"].is_null());
    assert!(v["insns"].as_u64() >= Some(10) && v["states"].is_u64() && v["micros"].is_u64());
    let most = (v["max_insns"].as_u64().unwrap(), v["max_fuel"].as_u64().unwrap());
    assert!(0 < most.0 && Some(most.0) <= v["insns"].as_u64() && most.0 < most.1, "{most:?}: no loop");
    let text = ringfence(&args!["check", &object]).stdout;
    assert!(text.starts_with("accepted  ") && text.contains("size_aware (tuner, "), "{text}");
    assert!(text.trim_end().ends_with(&format!("runs at most {} insns, {} fuel", most.0, most.1)), "{text}");
}

#[test]
fn check_refuses_with_place_and_source() {
    let b = Bench::new();
    let object = b.policy("reject", "oob_read");
    let ran = ringfence(&args!["check", &object, "--json"]);
    assert_eq!(ran.code, 1);
    let [v] = &ran.json()[..] else { panic!("{}", ran.stdout) };
    assert_eq!((&v["verdict"], &v["kind"], &v["pc"]), (&"rejected".into(), &"ctx-oob".into(), &0.into()));
    assert!(v["source"]["file"].as_str().is_some_and(|f| f.ends_with("oob_read.bpf.c")), "{v}");
    assert_eq!(v["source"]["line"], line_of("reject", "oob_read", "rf_channels(ctx, (__u32)words"));
    let text = ringfence(&args!["check", &object]).stdout;
    for part in ["rejected  ", "reject[ctx-oob] oob_read@0", " | rf_channels(ctx, (__u32)words", "^^^^"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn check_reports_every_file_and_the_worst_code() {
    let b = Bench::new();
    let (good, bad) = (b.policy("c", "noop"), b.policy("reject", "null_deref"));
    let text = b.file("text.o", b"no object at all\n");
    let ran = ringfence(&args!["check", "--json", &good, &text, &bad]);
    assert_eq!(ran.code, 2);
    let lines = ran.json();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["verdict"], &lines[2]["verdict"]), (&"accepted".into(), &"rejected".into()));
    assert!(lines[1]["error"].as_str().is_some_and(|e| e.contains("text.o")), "{}", lines[1]);
    assert_eq!(ringfence(&args!["check", &good, &bad]).code, 1);
}

#[test]
fn a_section_that_names_no_hook() {
    let b = Bench::new();
    let object = b.source("xdp", "__attribute__((section(\"xdp\"), used)) int prog(void *ctx) { return 7; }");
    let ran = ringfence(&args!["check", "--json", &object]);
    assert_eq!(ran.code, 1);
    let v = &ran.json()[0];
    assert_eq!((&v["verdict"], &v["kind"]), (&"rejected".into(), &"unknown-hook".into()));
    assert!(v["message"].as_str().is_some_and(|m| m.contains("--hook")));
    for hook in ["generic", "tuner", "uprobe"] {
        assert_eq!(ringfence(&args!["check", "--hook", hook, &object]).code, 0, "{hook}");
    }
    assert_eq!(ringfence(&args!["run", &object]).code, 2);
    assert_eq!(ringfence(&args!["translate", &object, "--wat"]).code, 2);
}

#[test]
fn input_that_is_no_object() {
    let b = Bench::new();
    fs::create_dir(b.path("dir.o")).expect("a directory is made");
    let cases = [
        (b.file("empty.o", b""), "empty"),
        (b.file("text.o", b"hello\n"), "no usable eBPF object"),
        (b.file("magic.o", b"\x7fELF"), "no usable eBPF object"),
        (b.path("dir.o"), "is a directory"),
        (b.path("missing.o"), "cannot open"),
        (PathBuf::from("/dev/null"), "empty"),
        (built().join("ringfence"), ""),
        (PathBuf::from(OsString::from_vec(b"/nowhere/\xff\xfe.o".to_vec())), "cannot open"),
    ];
    for (path, part) in cases {
        for command in ["check", "disasm", "run"] {
            let ran = ringfence(&args![command, &path]);
            assert_eq!(ran.code, 2, "{command} {}: {}{}", path.display(), ran.stdout, ran.stderr);
            assert!(ran.stderr.starts_with("ringfence: ") && ran.stderr.contains(part), "{}", ran.stderr);
            assert!(ran.stdout.is_empty(), "{}", ran.stdout);
        }
        let ran = ringfence(&args!["check", "--json", &path]);
        assert_eq!(ran.code, 2);
        assert!(ran.json()[0]["error"].as_str().is_some_and(|e| e.contains(part)));
    }
}

#[test]
fn a_path_need_not_be_utf8() {
    let b = Bench::new();
    let object = b.policy("c", "noop");
    let odd = b.0.path().join(OsString::from_vec(b"\xff\xfe.bpf.o".to_vec()));
    fs::copy(object, &odd).expect("a copy is made");
    let ran = ringfence(&args!["check", "--json", &odd]);
    assert_eq!((ran.code, &ran.json()[0]["verdict"]), (0, &"accepted".into()));
}

#[test]
fn truncated_and_flipped_objects_are_judged_without_a_panic() {
    let b = Bench::new();
    let bytes = fs::read(b.policy("c", "lookup_only")).expect("the object is there");
    let cut = (0..bytes.len()).step_by(97).map(|n| b.file(&format!("cut{n}.o"), &bytes[..n]));
    let mut files: Vec<PathBuf> = cut.collect();
    let cuts = files.len();
    for i in (0..bytes.len()).step_by(61) {
        let mut flipped = bytes.clone();
        flipped[i] ^= 0x41;
        files.push(b.file(&format!("flip{i}.o"), &flipped));
    }
    let mut all = args!["check", "--json"].to_vec();
    all.extend(files.iter().map(OsString::from));
    let ran = ringfence(&all);
    assert_eq!(ran.code, 2);
    let lines = ran.json();
    assert!(lines.len() >= files.len());
    assert!(lines[..cuts].iter().all(|l| l["error"].is_string() || l["verdict"].is_string()));
    assert!(
        lines[..cuts].iter().filter(|l| l["error"].is_string()).count() * 2 > cuts,
        "most cuts are no object"
    );
}

#[test]
fn disasm_shows_source_between_instructions() {
    let b = Bench::new();
    let object = b.policy("c", "size_aware");
    let ran = ringfence(&args!["disasm", &object]);
    assert_eq!(ran.code, 0);
    for part in ["; program size_aware (section tuner)", "size_aware.bpf.c:", "bytes < 4096", "exit"] {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
    assert_eq!(ringfence(&args!["disasm", &object, "--program", "size_aware"]).code, 0);
    let ran = ringfence(&args!["disasm", &object, "--program", "other"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("size_aware"), "{}", ran.stderr);
}

#[test]
fn translate_writes_a_valid_module_or_nothing() {
    let b = Bench::new();
    let (good, bad) = (b.policy("c", "size_aware"), b.policy("reject", "oob_read"));
    let wasm = b.path("out.wasm");
    assert_eq!(ringfence(&args!["translate", &good, "-o", &wasm]).code, 0);
    let bytes = fs::read(&wasm).expect("the module is written");
    wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all())
        .validate_all(&bytes)
        .expect("it is valid");
    let wat = ringfence(&args!["translate", &good, "--wat"]);
    assert!(
        wat.code == 0 && wat.stdout.starts_with("(module") && wat.stdout.contains("(export \"entry\""),
        "{}",
        wat.stdout
    );
    let none = b.path("none.wasm");
    let ran = ringfence(&args!["translate", &bad, "-o", &none]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("reject[ctx-oob]") && !none.exists());
    assert_eq!(ringfence(&args!["translate", &good, "-o", "/nowhere/x.wasm"]).code, 2);
}

#[test]
fn run_takes_one_decision() {
    let b = Bench::new();
    let object = b.policy("c", "size_aware");
    for (bytes, algo, proto, channels) in [
        ("100", "Tree", "Simple", 2),
        ("64K", "Ring", "LL", 4),
        ("4194304", "Ring", "Simple", 8),
        ("0x400000", "Ring", "Simple", 8),
    ] {
        let set = format!("n_bytes={bytes}");
        let ran = ringfence(&args![
            "run",
            &object,
            "--hook",
            "tuner",
            "--set",
            set,
            "--set",
            "n_ranks=8",
            "--json"
        ]);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        let v = &ran.json()[0];
        assert_eq!(
            (&v["algo"], &v["proto"], &v["channels"]),
            (&algo.into(), &proto.into(), &channels.into()),
            "{v}"
        );
        assert!(v["fuel"].as_u64().is_some_and(|f| f > 0 && f < 1000), "{v}");
    }
    let text = ringfence(&args!["run", &object, "--set", "func=allreduce", "--set", "n_bytes=4M"]).stdout;
    assert!(text.contains("Ring") && text.contains("Simple") && text.contains('8'), "{text}");
}

#[test]
fn run_refuses_what_it_does_not_know() {
    let b = Bench::new();
    let object = b.policy("c", "size_aware");
    for (set, part) in [
        ("n_bites=1", "n_bytes"),
        ("n_bytes", "NAME=VALUE"),
        ("n_bytes=many", "no number"),
        ("func=sendrecv", "AllReduce"),
        ("n_ranks=5000000000", "n_ranks"),
        ("available=1", "available"),
    ] {
        let ran = ringfence(&args!["run", &object, "--set", set]);
        assert_eq!(ran.code, 2, "{set}: {}", ran.stdout);
        assert!(ran.stderr.contains(part), "{set}: {}", ran.stderr);
    }
    let ran = ringfence(&args!["run", b.policy("reject", "oob_read")]);
    assert_eq!(ran.code, 1, "a refused policy does not run");
    assert_eq!(ringfence(&args!["run", &object, "--mem", "00"]).code, 2, "memory is for the generic hook");
}

#[test]
fn run_reports_a_decision_that_fails() {
    let b = Bench::new();
    let object = b.source(
        "long",
        "#include \"ringfence.h\"\nSEC(\"tuner\") int longer(struct CollContext *ctx) {\n  volatile __u64 s = 0;\n\
         for (int i = 0; i < 1000; i++) s += i;\n  return s == 1; }\nRF_LICENSE(\"Dual MIT/GPL\");",
    );
    assert_eq!(ringfence(&args!["run", &object]).code, 0);
    let ran = ringfence(&args!["run", &object, "--fuel", "50", "--json"]);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert_eq!(ran.json()[0]["fault"], "out-of-fuel");
}

#[test]
fn run_generic_shows_r0_and_memory() {
    let b = Bench::new();
    let object = b.source(
        "sum",
        "typedef unsigned char u8; typedef unsigned long long u64;\n\
         __attribute__((section(\"generic\"), used)) u64 sum(u8 *mem, u64 size) {\n\
         u64 s = 0; if (size < 4) return 0; for (int i = 0; i < 4; i++) s += mem[i]; mem[0] = 0xaa; return s; }",
    );
    let ran = ringfence(&args!["run", &object, "--hook", "generic", "--mem", "01 02 03 fa", "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let v = &ran.json()[0];
    assert_eq!((&v["r0"], &v["mem"]), (&"0x100".into(), &"aa0203fa".into()), "{v}");
    for mem in ["0", "zz", "1g"] {
        assert_eq!(ringfence(&args!["run", &object, "--hook", "generic", "--mem", mem]).code, 2, "{mem}");
    }
}

#[test]
fn output_to_a_closed_pipe_ends_quietly() {
    let b = Bench::new();
    let object = b.policy("c", "size_aware");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output =
        command(&args!["translate", &object, "--wat"]).stdout(writer).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(141));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn trace() -> PathBuf {
    root().join("tests/traces/demo.csv")
}

/// Decisions of a phase: collective, bytes, algorithm, channels.
fn decisions(ran: &Ran, phase: &str) -> Vec<(String, u64, String, i64)> {
    let text = |v: &Value| v.as_str().unwrap_or("-").to_owned();
    ran.json()
        .iter()
        .filter(|v| v["event"] == "decision" && v["phase"] == phase)
        .map(|v| {
            let algo = format!("{}/{}", text(&v["policy"]["algo"]), text(&v["policy"]["proto"]));
            (
                text(&v["collective"]),
                v["bytes"].as_u64().unwrap_or(0),
                algo,
                v["channels"].as_i64().unwrap_or(-1),
            )
        })
        .collect()
}

#[test]
fn replay_reloads_a_live_communicator_without_losing_a_call() {
    let b = Bench::new();
    let (old, new) = (b.policy("c", "size_aware"), b.policy("c", "bad_channels"));
    let ran = ringfence(&args![
        "replay",
        "--plugin",
        plugin(),
        "--policy",
        &old,
        "--trace",
        trace(),
        "--comms",
        "4",
        "--threads",
        "4",
        "--calls",
        "2000",
        "--reload-at",
        "500",
        "--with",
        &new,
        "--json",
    ]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let big = |phase| decisions(&ran, phase).into_iter().find(|d| d.0 == "AllReduce" && d.1 == 256 << 20);
    assert_eq!(big("before"), Some(("AllReduce".into(), 256 << 20, "Ring/Simple".into(), 8)));
    assert_eq!(big("after").map(|d| d.3), Some(1));
    let reload = ran.event("reload");
    assert_eq!(
        (&reload["lost_calls"], &reload["refused"], &reload["renewed_comms"]),
        (&0.into(), &false.into(), &false.into())
    );
    assert!(reload["first_new_ns"].is_u64(), "{reload}");
    let summary = ran.event("summary");
    assert_eq!(summary["violations"], 0, "{summary}");
    assert!(summary["collectives"].as_u64() >= Some(2500) && summary["p50_ns"].as_u64() > Some(0));
}

#[test]
fn replay_renews_communicators_of_several_ranks() {
    let b = Bench::new();
    let (old, new) = (b.policy("c", "size_aware"), b.policy("c", "bad_channels"));
    let ran = ringfence(&args![
        "replay",
        "--plugin",
        plugin(),
        "--policy",
        &old,
        "--trace",
        trace(),
        "--ranks",
        "4",
        "--nodes",
        "2",
        "--calls",
        "1000",
        "--reload-at",
        "300",
        "--with",
        &new,
        "--json",
    ]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let reload = ran.event("reload");
    assert_eq!((&reload["lost_calls"], &reload["renewed_comms"]), (&0.into(), &true.into()));
    assert!(decisions(&ran, "before").iter().all(|d| d.3 != 1), "{}", ran.stdout);
    assert!(decisions(&ran, "after").iter().any(|d| d.3 == 1), "{}", ran.stdout);
}

#[test]
fn replay_switches_a_directory_with_its_manifest_at_once() {
    let b = Bench::new();
    let (old, new) = (b.path("old"), b.path("new"));
    for (dir, name, manifest) in [
        (&old, "size_aware", "[[policy]]\nfile = \"size_aware.bpf.o\"\n[limits]\nmax_channels = 6\n"),
        (&new, "bad_channels", "[[policy]]\nfile = \"bad_channels.bpf.o\"\n"),
    ] {
        fs::create_dir(dir).expect("a directory is made");
        fs::rename(b.policy("c", name), dir.join(format!("{name}.bpf.o"))).expect("the object moves");
        fs::write(dir.join("ringfence.toml"), manifest).expect("the manifest is written");
    }
    let ran = ringfence(&args![
        "replay",
        "--plugin",
        plugin(),
        "--policy",
        &old,
        "--trace",
        trace(),
        "--calls",
        "1000",
        "--reload-at",
        "300",
        "--with",
        &new,
        "--json",
    ]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let big = |phase| decisions(&ran, phase).into_iter().find(|d| d.0 == "AllReduce" && d.1 == 256 << 20);
    assert_eq!(big("before").map(|d| (d.2, d.3)), Some(("Ring/Simple".into(), 6)), "the manifest bounds it");
    assert_eq!(big("after").map(|d| d.3), Some(1));
    assert_eq!(ran.event("reload")["lost_calls"], 0);
}

#[test]
fn replay_finds_a_policy_whose_ranks_disagree() {
    let b = Bench::new();
    // A counter in a map that all ranks of the process share: each rank sees another value.
    let policy = b.source(
        "count",
        "#include \"ringfence.h\"\n\
         struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } \
         calls SEC(\".maps\");\n\
         static void *(*lookup)(void *, const void *) = (void *)1;\n\
         SEC(\"tuner\") int count(struct CollContext *ctx) { __u32 k = 0; __u64 *n = lookup(&calls, &k);\n\
         if (n) { rf_channels(ctx, 1 + (*n & 1)); *n += 1; } return RF_SUBMIT; }\nRF_LICENSE(\"Dual MIT/GPL\");",
    );
    let replay = |ranks: &str| {
        let plugin = plugin();
        ringfence(&args![
            "replay",
            "--plugin",
            plugin,
            "--policy",
            &policy,
            "--trace",
            trace(),
            "--ranks",
            ranks,
            "--calls",
            "50",
            "--json",
        ])
    };
    let ran = replay("2");
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.event("summary")["breaches"]["ranks-disagree"].as_u64() >= Some(50), "{}", ran.stdout);
    assert_eq!(replay("1").code, 0, "one rank has nobody to disagree with");
}

#[test]
fn replay_keeps_the_old_policy_when_the_new_one_is_refused() {
    let b = Bench::new();
    let (old, new) = (b.policy("c", "size_aware"), b.policy("reject", "oob_read"));
    let ran = ringfence(&args![
        "replay",
        "--plugin",
        plugin(),
        "--policy",
        &old,
        "--trace",
        trace(),
        "--calls",
        "500",
        "--reload-at",
        "200",
        "--with",
        &new,
        "--json",
    ]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let reload = ran.event("reload");
    assert_eq!((&reload["refused"], &reload["lost_calls"]), (&true.into(), &0.into()), "{reload}");
    assert!(reload["log"].to_string().contains("ctx-oob"), "{reload}");
    assert_eq!(decisions(&ran, "before"), decisions(&ran, "after"));
}

#[test]
fn replay_speaks_every_tuner_version() {
    let b = Bench::new();
    let policy = b.policy("c", "size_aware");
    let mut all = Vec::new();
    for version in ["2", "3", "4", "5", "6"] {
        let ran = ringfence(&args![
            "replay",
            "--plugin",
            plugin(),
            "--policy",
            &policy,
            "--trace",
            trace(),
            "--ranks",
            "2",
            "--calls",
            "200",
            "--tuner-version",
            version,
            "--json",
        ]);
        assert_eq!(ran.code, 0, "v{version}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.event("start")["tuner"].to_string(), version);
        all.push(decisions(&ran, "before"));
    }
    assert!(all.windows(2).all(|w| w[0] == w[1]), "{all:?}");
}

#[test]
fn replay_of_wrong_input() {
    let b = Bench::new();
    let policy = b.policy("c", "noop");
    let bad_trace = b.file("bad.csv", b"allreduce,1\nallreduce\n");
    fs::create_dir(b.path("dir")).expect("a directory is made");
    for (args, part) in [
        (args!["--plugin", "/nowhere.so", "--policy", &policy, "--trace", trace()].to_vec(), "/nowhere.so"),
        (
            args!["--plugin", &policy, "--policy", &policy, "--trace", trace()].to_vec(),
            "cannot open the plugin",
        ),
        (args!["--plugin", plugin(), "--policy", "/nowhere", "--trace", trace()].to_vec(), "/nowhere"),
        (args!["--plugin", plugin(), "--policy", &policy, "--trace", &bad_trace].to_vec(), "line 2"),
        (
            args![
                "--plugin",
                plugin(),
                "--policy",
                &policy,
                "--trace",
                trace(),
                "--threads",
                "2",
                "--comms",
                "1"
            ]
            .to_vec(),
            "communicators",
        ),
        (
            args!["--plugin", plugin(), "--policy", &policy, "--trace", trace(), "--ranks", "0"].to_vec(),
            "--ranks",
        ),
        (
            args![
                "--plugin",
                plugin(),
                "--policy",
                &policy,
                "--trace",
                trace(),
                "--reload-at",
                "5",
                "--with",
                b.path("dir")
            ]
            .to_vec(),
            "both",
        ),
    ] {
        let mut all = args!["replay"].to_vec();
        all.extend(args);
        let ran = ringfence(&all);
        assert_eq!(ran.code, 2, "{all:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}

/// A plugin for NCCL in C whose `getCollInfo` has the given body.
fn native_plugin(b: &Bench, name: &str, body: &str) -> PathBuf {
    let text = format!(
        "#include <stddef.h>\n#include <stdint.h>\n\
         static int init(void **c, uint64_t id, size_t r, size_t n, void *log, void *nvl, void *k) {{ *c = c; return 0; }}\n\
         static int get(void *c, int f, size_t bytes, int ops, float **t, int na, int np, int reg, int *ch) {{\n\
         float *v = (float *)t; static volatile int calls; calls++; {body} return 0; }}\n\
         static int fin(void *c) {{ return 0; }}\n\
         const struct {{ const char *name; void *init, *get, *fin; }} ncclTunerPlugin_v5 = {{ \"bad\", init, get, fin }};\n"
    );
    let source = b.file(&format!("{name}.c"), text.as_bytes());
    let library = b.path(&format!("{name}.so"));
    let status = Command::new("clang-19")
        .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    assert!(status.expect("clang-19 is installed").success());
    library
}

#[test]
fn replay_catches_a_plugin_that_breaks_the_rules() {
    let b = Bench::new();
    let policy = b.policy("c", "noop");
    for (name, body, breach) in [
        ("error", "if (bytes == 32768) return 3;", "error-returned"),
        ("revive", "v[4 * np + 2] = 0;", "entry-revived"),
        ("negative", "v[1 * np + 2] = -1;", "negative-cost"),
        ("ambiguous", "v[1 * np] = v[1 * np + 1] = 0;", "ambiguous-choice"),
        ("nothing", "for (int i = 0; i < na * np; i++) v[i] = -1;", "nothing-left"),
        ("channels", "*ch = 65;", "channels-out-of-bounds"),
        ("disagree", "*ch = 1 + calls % 2;", "ranks-disagree"),
    ] {
        let library = native_plugin(&b, name, body);
        let ran = ringfence(&args![
            "replay",
            "--plugin",
            library,
            "--policy",
            &policy,
            "--trace",
            trace(),
            "--ranks",
            "2",
            "--calls",
            "50",
            "--json",
        ]);
        assert_eq!(ran.code, 1, "{name}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.event("summary")["breaches"][breach].as_u64() > Some(0), "{name}: {}", ran.stdout);
    }
}

#[test]
fn replay_survives_a_plugin_that_crashes() {
    let b = Bench::new();
    let (policy, library) =
        (b.policy("c", "noop"), native_plugin(&b, "crash", "if (calls > 20) *(volatile int *)0 = 1;"));
    let ran =
        ringfence(&args!["replay", "--plugin", library, "--policy", &policy, "--trace", trace(), "--json"]);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.event("crash")["signal"], 11);
}

fn doctor(b: &Bench, env: &[(&str, &OsStr)], args: &[OsString]) -> (i32, Vec<Value>) {
    let mut all = args!["doctor", "--json"].to_vec();
    all.extend(args.iter().cloned());
    let mut command = command(&all);
    command.env("HOME", b.0.path()).env_remove("LD_LIBRARY_PATH").envs(env.iter().copied());
    let ran = Ran::of(command.output().expect("the binary runs"));
    (ran.code, ran.json())
}

fn level<'a>(lines: &'a [Value], topic: &str) -> Vec<&'a str> {
    lines.iter().filter(|v| v["topic"] == topic).filter_map(|v| v["level"].as_str()).collect()
}

#[test]
fn doctor_finds_the_plugin_as_nccl_does() {
    let b = Bench::new();
    let policy = b.policy("c", "size_aware");
    fs::copy(plugin(), b.path("libnccl-tuner-ringfence.so")).expect("a copy is made");
    let dir = b.0.path().as_os_str();
    let env = [("NCCL_TUNER_PLUGIN", OsStr::new("ringfence")), ("LD_LIBRARY_PATH", dir)];
    let (code, lines) = doctor(&b, &env, &args!["--policy", &policy]);
    assert_eq!(code, 0, "{lines:?}");
    assert_eq!(level(&lines, "plugin"), ["ok"]);
    assert_eq!(level(&lines, "nodelete"), ["ok"]);
    let exports = lines.iter().filter(|v| v["topic"] == "exports").map(Value::to_string).collect::<String>();
    assert!(exports.contains("v2, v3, v4, v5, v6") && exports.contains("2.30.3"), "{exports}");
    assert!(level(&lines, "policy").iter().all(|l| *l == "ok"));
}

#[test]
fn doctor_says_why_nothing_is_loaded() {
    let b = Bench::new();
    let long = OsString::from("/".to_string() + &"x".repeat(300));
    for (value, topic) in [
        ("none", "plugin-name"),
        ("static", "plugin-name"),
        ("no-such-plugin-anywhere", "plugin"),
        ("", "plugin"),
        (long.to_str().expect("UTF-8"), "plugin-name"),
    ] {
        let (code, lines) = doctor(&b, &[("NCCL_TUNER_PLUGIN", OsStr::new(value))], &[]);
        assert_eq!(code, 1, "{value}: {lines:?}");
        assert!(level(&lines, topic).contains(&"fail"), "{value}: {lines:?}");
        assert!(lines.iter().filter(|v| v["level"] != "ok").all(|v| v["advice"].is_string()), "{lines:?}");
    }
}

#[test]
fn doctor_judges_foreign_libraries_and_open_directories() {
    let b = Bench::new();
    let library = native_plugin(&b, "plain", "");
    let (_, lines) = doctor(&b, &[], &args!["--plugin", &library]);
    assert_eq!((level(&lines, "nodelete"), level(&lines, "plugin")), (vec!["warn"], vec!["ok"]));
    let (code, lines) = doctor(&b, &[], &args!["--plugin", b.policy("c", "noop")]);
    assert_eq!((code, level(&lines, "plugin")), (1, vec!["ok", "fail"]));

    let dir = b.path("policies");
    fs::create_dir(&dir).expect("a directory is made");
    fs::copy(b.policy("reject", "oob_read"), dir.join("a.bpf.o")).expect("a copy is made");
    let (code, lines) = doctor(&b, &[], &args!["--plugin", &library, "--policy", &dir]);
    assert_eq!((code, level(&lines, "policy"), level(&lines, "permissions")), (1, vec!["fail"], vec!["ok"]));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("the mode is set");
    let (_, lines) = doctor(&b, &[], &args!["--plugin", &library, "--policy", &dir]);
    assert!(level(&lines, "permissions").contains(&"fail"), "{lines:?}");
}

#[test]
fn a_stranger_s_hook_is_shown_checked_and_run() {
    let b = Bench::new();
    let hooks = root().join("policies/hooks");
    let schema = hooks.join("ep_mode.toml");
    let (source, object) = (hooks.join("ep_mode.bpf.c"), b.path("ep_mode.bpf.o"));
    clang(&source, &object, &["-target", "bpf", "-mcpu=v3"]);
    let shown = ringfence(&args!["schema", "show", &schema, "--json"]);
    assert_eq!((shown.code, &shown.json()[0]["decided"][0]), (0, &"mode".into()));
    let listed = ringfence(&args!["schema", "list", "--schema", &schema, "--json"]);
    let names: Vec<_> = listed.json().iter().map(|v| v["name"].as_str().unwrap_or("").to_owned()).collect();
    assert!(names.contains(&"tuner".into()) && names.contains(&"ep/mode".into()), "{names:?}");
    assert_eq!(ringfence(&args!["schema", "show", "no-such-thing"]).code, 2);
    // Without its schema the section means nothing; with it, the policy is accepted.
    let bare = ringfence(&args!["check", "--json", &object]);
    assert_eq!((bare.code, &bare.json()[0]["kind"]), (1, &"unknown-hook".into()));
    assert_eq!(ringfence(&args!["check", "--schema", &schema, &object]).code, 0);
    let run = |tokens: &str| {
        let set = format!("max_tokens={tokens}");
        let more = args!["--set", "n_nodes=2", "--ctx", "top_k=8", "--ctx", "token_bytes=14336", "--json"];
        let mut all = args!["run", &object, "--schema", &schema, "--ctx", set].to_vec();
        all.extend(more);
        let ran = ringfence(&all);
        assert_eq!(ran.code, 0, "{tokens}");
        (ran.json()[0]["submitted"].clone(), ran.json()[0]["decided"]["mode"].clone())
    };
    assert_eq!(run("112"), (true.into(), 0.into()));
    assert_eq!(run("113"), (true.into(), 1.into()));
    // A field that the schema does not have is refused by the verifier like any padding.
    let bad = b.source(
        "past",
        "#include \"ringfence.h\"\nSEC(\"ep/mode/past\") int past(char *ctx) { return *(volatile int *)(ctx + 24); }",
    );
    let ran = ringfence(&args!["check", "--schema", &schema, "--json", &bad]);
    assert_eq!((ran.code, &ran.json()[0]["verdict"]), (1, &"rejected".into()));
    assert_ne!(ran.json()[0]["kind"], "unknown-hook");
    // Nobody may take one of NCCL's names.
    let taken = b.file("x.toml", b"name = 'tuner/x'\nsize = 8\n");
    assert_eq!(ringfence(&args!["check", "--schema", &taken, &object]).code, 2);
}
