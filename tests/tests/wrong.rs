//! `ringfence check` on policies with typical mistakes, `corpus/wrong/NAME.bpf.c`: what a person reads is `NAME.txt` beside it
//! (`BLESS=1` rewrites), and where an example of a fix is given, the fixed policy is accepted.
//!
//! The objects are committed, so that instructions keep their numbers; `corpus/wrong/build.sh` makes them.

use ringfence_tests::built;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/wrong")
}

fn names() -> BTreeSet<String> {
    let files = fs::read_dir(corpus()).expect("the corpus").map(|e| e.unwrap().file_name());
    files.filter_map(|f| Some(f.to_str()?.strip_suffix(".bpf.c")?.to_owned())).collect()
}

/// Runs `ringfence check` in the corpus's folder: exit code and standard output.
fn check(args: &[&str]) -> (i32, String) {
    let ran = Command::new(built::dir().join("ringfence"))
        .arg("check")
        .args(args)
        .current_dir(corpus())
        .output()
        .expect("the binary runs");
    let text = String::from_utf8(ran.stdout).expect("output is UTF-8");
    assert!(ran.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    (ran.status.code().unwrap_or(-1), text)
}

fn json(name: &str) -> Value {
    let (code, text) = check(&[&format!("{name}.bpf.o"), "--json"]);
    assert_eq!(code, 1, "{name}: {text}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"))
}

/// Without what differs from run to run, and without the registers: how precisely they are known changes with every rule of the
/// verifier, and other tests look at them.
fn stable(text: &str) -> String {
    let mut registers = false;
    let mut out = String::new();
    for l in text.lines() {
        registers =
            if registers { !l.starts_with("  hint:") } else { l == "  registers and stack before it:" };
        match l.rsplit_once(" (") {
            _ if registers => {}
            Some((start, costs)) if l.starts_with("rejected") => {
                out += &format!("{start} ({})\n", costs.split(',').next().unwrap_or(""));
            }
            _ => out += &format!("{l}\n"),
        }
    }
    out
}

#[test]
fn each_wrong_policy_is_explained_as_the_text_beside_it_says() {
    let names = names();
    assert!(names.len() >= 20, "{} policies", names.len());
    let bless = std::env::var_os("BLESS").is_some();
    let mut different = Vec::new();
    for name in &names {
        let (code, text) = check(&[&format!("{name}.bpf.o"), "--explain"]);
        assert_eq!(code, 1, "{name} is accepted");
        let (text, golden) = (stable(&text), corpus().join(format!("{name}.txt")));
        if bless {
            fs::write(&golden, &text).expect("writable");
        } else if fs::read_to_string(&golden).ok().as_deref() != Some(&text) {
            different.push(format!("{}\n{text}", golden.display()));
        }
    }
    assert!(different.is_empty(), "differs (BLESS=1 rewrites):\n{}", different.join("\n"));
}

/// The commonest mistakes: the kind, and what the hint must name for an author to know where to look and what to write.
const HINTS: [(&str, &str, &[&str]); 19] = [
    (
        "record_not_submitted",
        "reference",
        &["e, reserved at line 19", "bpf_ringbuf_discard(e, 0)", "line 26"],
    ),
    ("record_used_after_submit", "uninit-register", &["e was submitted at line 25"]),
    ("lock_not_released", "spin-lock", &["the lock taken at line 27", "line 28"]),
    ("call_under_lock", "spin-lock", &["before the lock is taken at line 26"]),
    (
        "null_check_inverted",
        "not-pointer",
        &["seen, looked up in line 11", "the test in line 13", "the wrong way round"],
    ),
    ("null_check_missing", "null-deref", &["telemetry_map", "`if (!seen) return 0;`", "line 11"]),
    ("member_before_check", "pointer-arith", &["telemetry_map", "`if (!seen) return 0;`"]),
    ("index_unbounded", "map-oob", &["`nodes`", "128-byte", "by_nodes", "if (nodes >= 32) return 0;"]),
    ("index_off_by_one", "map-oob", &["`nodes` be 8", "last entry is 7", "seen_bytes"]),
    ("loop_runs_over", "map-oob", &["round 13", "index is 12", "steps", "`< 12`"]),
    ("key_padding", "uninit-stack", &["byte 4 of the 16-byte key", "by_size", "where key is declared"]),
    ("ctx_too_wide", "ctx-field", &["func (4 bytes at 16)", "n_ranks (4 bytes at 20)"]),
    ("ctx_write_input", "ctx-write", &["max_channels is an input", "decision_channels"]),
    ("loop_never_ends", "unbounded-loop", &["`while (n != wanted)`", "line 10"]),
    ("pointer_in_map", "pointer-leak", &["store what the pointer points to"]),
    ("key_by_value", "helper-arg", &["bpf_map_lookup_elem(&per_func, &key)"]),
    ("recursion", "call-depth", &["halvings", "loop with a bound"]),
    ("pointer_in_32_bits", "pointer-arith", &["32 bits cannot hold an address"]),
    ("key_too_small", "stack-oob", &["telemetry_map has 8 bytes", "`func` has 4"]),
];

#[test]
fn hints_name_the_map_the_bound_and_the_line() {
    for (name, kind, words) in HINTS {
        let v = json(name);
        assert_eq!(v["kind"], kind, "{name}: {v}");
        let hint = v["hint"].as_str().unwrap_or_default();
        for word in words {
            assert!(hint.contains(word), "{name}: no \"{word}\" in \"{hint}\"");
        }
    }
}

#[test]
fn json_carries_the_explanation_as_data() {
    let v = json("bound_in_another_variable");
    let path = v["path"].as_array().expect("a path");
    let kinds: Vec<&str> = path.iter().map(|s| s["kind"].as_str().unwrap_or("?")).collect();
    assert_eq!(kinds, ["branch", "call", "branch"]);
    assert_eq!((&path[0]["condition"], &path[0]["taken"]), (&"n_nodes <= 15".into(), &false.into()));
    assert_eq!((&path[0]["source"]["line"], &path[0]["next_line"]), (&30.into(), &32.into()));
    assert_eq!(path[1]["callee"], "entry");
    assert_eq!((&v["register"], &v["path_left_out"]), (&"r1".into(), &0.into()));
    assert_eq!(v["registers"]["R0"], "0");
    assert!(
        v["registers"]["R1"].as_str().unwrap().starts_with("map_value(id=1,map=by_level,ks=4,vs=64,"),
        "{v}"
    );
    let origins = v["origins"].as_array().expect("origins");
    assert!(origins.iter().all(|o| o["pc"].is_u64() && o["source"]["line"].is_u64()), "{v}");
    assert!(origins.iter().any(|o| o["text"] == "w2 += 4: a number in [4, 19]"), "{v}");
    let marks: Vec<&str> = v["fix"].as_array().unwrap().iter().map(|l| l["mark"].as_str().unwrap()).collect();
    assert_eq!(marks, ["+", "+", " "]);
    let turn = &json("loop_runs_over")["path"][1];
    assert_eq!((&turn["kind"], &turn["round"]), (&"loop".into(), &13.into()));
}

/// The source with an example applied: new lines go before the line that follows them, or after the one that is before them.
fn fixed(source: &str, fix: &[Value]) -> String {
    let mut lines: Vec<String> = source.lines().map(str::to_owned).collect();
    let line = |l: &Value| l["line"].as_u64().map(|n| n as usize - 1);
    let mut news = String::new();
    let mut after = None;
    for l in fix {
        match (l["mark"].as_str(), line(l)) {
            (Some("+"), _) => news += &format!("{}\n", l["text"].as_str().unwrap()),
            (Some("-"), Some(n)) => {
                lines[n].clear();
                after = Some(n);
            }
            (_, Some(n)) if !news.is_empty() && after.is_none() => {
                lines[n] = std::mem::take(&mut news) + &lines[n];
            }
            (_, n) => after = after.or(n),
        }
    }
    if let Some(n) = after {
        lines[n] = format!("{}\n{news}", lines[n]);
    }
    lines.join("\n")
}

fn compile(name: &str, source: &str, dir: &Path) -> PathBuf {
    let (c, o) = (dir.join(format!("{name}.bpf.c")), dir.join(format!("{name}.bpf.o")));
    fs::write(&c, source).expect("writable");
    let status = Command::new("clang-19")
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-I"])
        .arg(corpus().join("../../../policies/include"))
        .arg("-c")
        .arg(&c)
        .arg("-o")
        .arg(&o)
        .status()
        .expect("clang-19 is installed");
    assert!(status.success(), "{name} does not compile:\n{source}");
    o
}

/// An example is only worth its lines if it works: applied to the source, it makes the verifier accept.
#[test]
fn what_is_advised_is_accepted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in [
        "null_check_missing",
        "null_check_of_another",
        "member_before_check",
        "index_unbounded",
        "index_off_by_one",
        "bound_in_another_variable",
        "cost_index",
        "stack_index",
        "key_padding",
        "half_initialised",
        "key_by_value",
        "loop_never_ends",
        "loop_without_bound",
    ] {
        let v = json(name);
        let fix = v["fix"].as_array().filter(|f| !f.is_empty());
        let source = fs::read_to_string(corpus().join(format!("{name}.bpf.c"))).expect("readable");
        let source = fixed(&source, fix.unwrap_or_else(|| panic!("{name} has no example: {v}")));
        let object = compile(name, &source, dir.path());
        let (code, text) = check(&[object.to_str().expect("UTF-8")]);
        assert_eq!(code, 0, "{text}\n{source}");
    }
}

#[test]
fn the_log_is_the_kernels_and_bounded() {
    let (code, text) = check(&["index_unbounded.bpf.o", "--log"]);
    assert_eq!(code, 1);
    for line in [
        "log of index_unbounded (tuner)",
        "0: R1=ctx() R10=fp0",
        "; if (!t) @ ./index_unbounded.bpf.c:22",
        "processed 13 insns (limit 1000000) total_states",
    ] {
        assert!(text.lines().any(|l| l.starts_with(line)), "no \"{line}\" in\n{text}");
    }
    assert!(text.contains("; R0=map_value_or_null(id=1,map=by_nodes,ks=4,vs=128)"), "{text}");
    assert!(text.lines().any(|l| l.starts_with("rejected  ")), "the verdict follows: {text}");
    let (_, short) = check(&["index_unbounded.bpf.o", "--log", "--log-limit", "4"]);
    assert!(
        short.contains("more lines are not shown: the limit is 4") && short.len() < text.len(),
        "{short}"
    );

    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("log");
    let (_, verdict) = check(&["index_unbounded.bpf.o", &format!("--log={}", file.display())]);
    assert!(!verdict.contains("processed"), "{verdict}");
    assert!(text.starts_with(&fs::read_to_string(file).expect("the log was written")));
}

/// A reader that goes away ends the command as it ends others.
#[test]
fn nobody_reads_the_log() {
    let mut child = Command::new(built::dir().join("ringfence"))
        .args(["check", "loop_runs_over.bpf.o", "--log"])
        .current_dir(corpus())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let ran = child.wait_with_output().expect("it ends");
    assert_eq!(ran.status.code(), Some(141), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Every policy says at its top what is wrong with it.
#[test]
fn each_wrong_policy_has_object_and_reason() {
    for name in names() {
        let source = fs::read_to_string(corpus().join(format!("{name}.bpf.c"))).expect("readable");
        let second = source.lines().nth(1).unwrap_or_default();
        assert!(second.starts_with("/* ") && second.ends_with(". */"), "{name}: {second}");
        assert!(corpus().join(format!("{name}.bpf.o")).is_file(), "{name} has no object: run build.sh");
    }
}
