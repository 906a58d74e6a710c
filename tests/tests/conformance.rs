//! Alan-Jowett/bpf_conformance through our plugin binary. `RINGFENCE_CONFORMANCE_DIR` names the folder with
//! `bpf_conformance.jsonl` and `bpf_conformance_negative.jsonl` (the upstream tests, assembled); without it the project's own
//! smaller corpus runs.

use ringfence_translator::isa::asm::assemble;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A program and what it must return.
struct Case {
    name: String,
    memory: String,
    code: String,
    result: u64,
}

fn run(args: &[&str], code: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringfence-conformance"))
        .args(args.iter().filter(|a| !a.is_empty()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the plugin starts");
    // A plugin that refuses its arguments reads no input: a broken pipe is then no failure of the test.
    let _ = writeln!(child.stdin.take().expect("piped"), "{code}");
    child.wait_with_output().expect("the plugin ends")
}

/// r0, or the message of a failure.
fn r0(output: &Output) -> Result<u64, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, text(&output.stderr)));
    }
    u64::from_str_radix(&text(&output.stdout), 16).map_err(|e| format!("{e} in {:?}", text(&output.stdout)))
}

fn upstream() -> Option<PathBuf> {
    let dir = std::env::var_os("RINGFENCE_CONFORMANCE_DIR").map(PathBuf::from);
    if dir.is_none() {
        eprintln!(
            "*** RINGFENCE_CONFORMANCE_DIR is not set: only the project's own corpus runs, not bpf_conformance ***"
        );
    }
    dir
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}")).to_owned()
}

fn upstream_cases(dir: &Path) -> Vec<Case> {
    let case = |v: &Value| Case {
        name: text(v, "name"),
        memory: text(v, "mem"),
        code: text(v, "code"),
        result: u64::from_str_radix(text(v, "result").trim_start_matches("0x"), 16).expect("hex"),
    };
    lines(&dir.join("bpf_conformance.jsonl")).iter().map(case).collect()
}

/// Failures of `cases`, one a line.
fn failures(cases: &[Case]) -> Vec<String> {
    let fails = |c: &Case| match r0(&run(&[&c.memory], &c.code)) {
        Ok(r0) if r0 == c.result => None,
        other => Some(format!("{}: want {:#x}, got {other:x?}", c.name, c.result)),
    };
    cases.iter().filter_map(fails).collect()
}

/// The project's own corpus: lines `instruction | ... => r0`, with `mem HEX: ` in front where there is memory. Lines
/// that need maps, callbacks or a helper of the interpreter's test are not for a plugin, which has none.
fn own_cases() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/isa");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&dir).expect("the corpus").map(|e| e.expect("entry").path()).collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "data")) {
        let text = std::fs::read_to_string(file).expect("readable");
        let name = file.file_name().expect("a name").to_string_lossy();
        for (n, line) in (1..).zip(text.lines()).filter(|(_, l)| l.contains(" => ") && !l.starts_with('#')) {
            if !["map[", "call 100", "callx", "= fn "].iter().any(|what| line.contains(what)) {
                cases.push(own_case(format!("{name}:{n}"), line));
            }
        }
    }
    cases
}

fn own_case(name: String, line: &str) -> Case {
    let (code, result) = line.rsplit_once(" => ").expect("filtered");
    let (memory, code) = match code.strip_prefix("mem ").and_then(|rest| rest.split_once(": ")) {
        Some((memory, code)) => (memory.to_owned(), code),
        None => (String::new(), code),
    };
    let program = assemble(&code.replace(" | ", "\n"), &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
    let code = program.encode().iter().map(|b| format!("{b:02x}")).collect();
    let digits = result.split(' ').next().unwrap_or_default().trim_start_matches("0x");
    Case { name, memory, code, result: u64::from_str_radix(digits, 16).expect("hex") }
}

#[test]
fn every_program_of_our_own_corpus_returns_what_it_must() {
    let cases = own_cases();
    let failures = failures(&cases);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(cases.len() >= 150, "{} programs", cases.len());
}

#[test]
fn every_upstream_program_returns_what_it_must() {
    let Some(dir) = upstream() else { return };
    let cases = upstream_cases(&dir);
    let failures = failures(&cases);
    println!("bpf_conformance: {} of {} pass", cases.len() - failures.len(), cases.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(cases.len(), 313, "the whole suite");
}

#[test]
fn every_encoding_with_an_unused_field_set_is_refused() {
    let Some(dir) = upstream() else { return };
    let cases = lines(&dir.join("bpf_conformance_negative.jsonl"));
    for case in &cases {
        let output = run(&[], &text(case, "code"));
        assert_eq!(output.status.code(), Some(1), "{} must be refused", text(case, "name"));
        assert!(!output.stderr.is_empty(), "{}: no reason given", text(case, "name"));
    }
    assert_eq!(cases.len(), 45, "all of them");
}

/// What the verifier accepts must still give the expected result; what it refuses, it must give a reason for.
#[test]
fn verified_upstream_programs_return_the_same() {
    let Some(dir) = upstream() else { return };
    let cases = upstream_cases(&dir);
    let (mut accepted, mut refused) = (0, BTreeMap::<String, Vec<String>>::new());
    for case in &cases {
        match r0(&run(&[&case.memory, "--verify"], &case.code)) {
            Ok(r0) => {
                assert_eq!(r0, case.result, "{}", case.name);
                accepted += 1;
            }
            Err(message) => {
                let kind = message.split(['[', ']']).nth(1).unwrap_or(&message).to_owned();
                refused.entry(kind).or_default().push(case.name.clone());
            }
        }
    }
    println!("bpf_conformance --verify: {accepted} of {} accepted; refused: {refused:#?}", cases.len());
    assert!(accepted >= 312, "{accepted} of {} accepted; refused: {refused:#?}", cases.len());
}

#[test]
fn options_and_bad_input_are_told_apart() {
    let exit = "9500000000000000";
    let status = |args: &[&str], code: &str| run(args, code).status.code();
    assert_eq!(status(&["--debug", "--cpu_version", "v4"], exit), Some(0));
    assert_eq!(status(&["--program", exit], ""), Some(0));
    assert_eq!(status(&["--no-such-option"], exit), Some(2));
    assert_eq!(status(&["0g"], exit), Some(2));
    assert_eq!(status(&["00", "11"], exit), Some(2));
    assert_eq!(status(&[], "zz"), Some(1));
    assert_eq!(status(&[], ""), Some(1));
    // r0 is never written: fine in the sandbox, refused by the verifier.
    assert_eq!(r0(&run(&[], exit)), Ok(0));
    let refused = r0(&run(&["--verify"], exit)).expect_err("r0 is not initialised");
    assert!(refused.contains("uninit-register"), "{refused}");
    // The runner separates bytes by two spaces.
    assert_eq!(
        r0(&run(&["aa  bb  "], "71  10  00  00  00  00  00  00  95  00  00  00  00  00  00  00 ")),
        Ok(0xaa)
    );
}

/// clang's output for each CPU version: a map, a table, a call. `weights[ctx[2] & 3]`, if `ctx[1] > 100`.
#[test]
fn objects_of_every_cpu_version_run_verified_and_not() {
    for version in 1..=4 {
        let path = format!("{}/elf/cpu_v{version}.bpf.o", env!("CARGO_MANIFEST_DIR"));
        let object: String =
            std::fs::read(&path).expect("an object").iter().map(|byte| format!("{byte:02x}")).collect();
        for (memory, result) in [("0000000065000000 02000000", 30), ("0300000064000000 02000000", 0)] {
            assert_eq!(r0(&run(&[memory, "--elf"], &object)), Ok(result), "{path}");
            assert_eq!(r0(&run(&[memory, "--elf", "--verify"], &object)), Ok(result), "{path}");
        }
    }
}

#[test]
fn a_loop_that_never_ends_runs_out_of_fuel() {
    let message = r0(&run(&[], "0500ffff000000009500000000000000")).expect_err("no end");
    assert!(message.to_lowercase().contains("fuel"), "{message}");
}
