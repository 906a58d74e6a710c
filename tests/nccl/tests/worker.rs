//! The worker with input that is no good: it says what is wrong and ends with code 1.

use std::io::Write;
use std::process::{Command, Stdio};

use ringfence_nccl::native;

fn worker(input: &str) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringfence-nccl"))
        .arg("worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_script_that_is_none_is_an_error() {
    for input in ["", "{}", r#"{"library": "/x", "fakegpu": "/x", "steps": [{"step": "fly"}]}"#] {
        let (code, stderr) = worker(input);
        assert_eq!(code, Some(1), "{input}: {stderr}");
        assert!(stderr.contains("the script on standard input"), "{input}: {stderr}");
    }
}

#[test]
fn a_library_that_is_no_nccl_is_an_error() {
    let fakegpu = native::fakegpu().unwrap();
    let script = |library: &str| {
        serde_json::json!({"library": library, "fakegpu": fakegpu, "steps": [{"step": "version"}]})
            .to_string()
    };
    let (code, stderr) = worker(&script("/nowhere/libnccl.so.2"));
    assert!(code == Some(1) && stderr.contains("/nowhere/libnccl.so.2"), "{code:?} {stderr}");
    // It opens, and has no CUDA runtime inside.
    let (code, stderr) = worker(&script("libc.so.6"));
    assert!(code == Some(1) && stderr.contains("no CUDA runtime to take over"), "{code:?} {stderr}");
}
