//! `scripts/nccl-wheels.sh`, with wheels of our own making in a folder instead of an index: what it keeps, refuses and says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ringfence_nccl::native::repository;

/// A directory of this test's own, for wheels and for the cache.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheels").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("index")).unwrap();
    dir
}

/// Whether there is a python with pip here. Where there is none, the script skips too, and one line says so.
fn has_pip() -> bool {
    let has =
        Command::new("python3").args(["-m", "pip", "--version"]).output().is_ok_and(|o| o.status.success());
    if !has {
        eprintln!("SKIPPED: python3 with pip is not here");
    }
    has
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(repository().join("scripts/nccl-wheels.sh"))
        .args(arguments)
        .env("RINGFENCE_NCCL_CACHE", dir.join("cache"))
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", dir.join("index"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// A wheel with the library `content`, whose list of files has the checksum of `listed`.
fn wheel(dir: &Path, version: &str, content: &str, listed: &str) {
    const MAKE: &str = r#"
import base64, hashlib, sys, zipfile
out, version, content, listed = sys.argv[1:]
digest = lambda text: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
info = f"nvidia_nccl_cu13-{version}.dist-info"
with zipfile.ZipFile(f"{out}/nvidia_nccl_cu13-{version}-py3-none-any.whl", "w") as z:
    z.writestr("nvidia/nccl/lib/libnccl.so.2", content)
    z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: {version}\n")
    z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr(f"{info}/RECORD", f"nvidia/nccl/lib/libnccl.so.2,{digest(listed)},{len(content)}\n")
"#;
    let index = dir.join("index");
    let made =
        Command::new("python3").args(["-c", MAKE]).arg(index).args([version, content, listed]).status();
    assert!(made.unwrap().success());
}

#[test]
fn keeps_the_library_of_a_good_wheel_and_nothing_else() {
    let dir = scratch("good");
    if !has_pip() {
        return;
    }
    wheel(&dir, "9.9.9", "a library", "a library");
    let library = dir.join("cache/9.9.9/libnccl.so.2");
    // The second time from the cache.
    for _ in 0..2 {
        let output = run(&dir, &["9.9.9"]);
        assert!(output.status.success());
        assert_eq!(text(&output.stdout), format!("9.9.9={}", library.display()), "{}", text(&output.stderr));
        fs::remove_dir_all(dir.join("index")).ok();
    }
    assert_eq!(fs::read_to_string(&library).unwrap(), "a library");
    let mut left: Vec<_> = fs::read_dir(dir.join("cache")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".lock", "9.9.9"]);
}

#[test]
fn refuses_a_library_that_its_wheel_does_not_list() {
    let dir = scratch("listed");
    if !has_pip() {
        return;
    }
    wheel(&dir, "9.9.9", "another library", "a library");
    let output = run(&dir, &["9.9.9"]);
    assert!(output.status.success() && output.stdout.trim_ascii().is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("but the wheel lists sha256="), "{}", text(&output.stderr));
    assert!(!dir.join("cache/9.9.9/libnccl.so.2").exists());
}

#[test]
fn refuses_a_known_version_with_another_checksum_than_the_committed_one() {
    let dir = scratch("pinned");
    if !has_pip() {
        return;
    }
    wheel(&dir, "2.30.7", "a library", "a library");
    let output = run(&dir, &["2.30.7"]);
    assert!(output.status.success() && output.stdout.trim_ascii().is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("wheels.sha256"), "{}", text(&output.stderr));
}

#[test]
fn without_a_network_it_says_so_and_the_other_versions_are_there() {
    let dir = scratch("offline");
    fs::create_dir_all(dir.join("cache/9.9.8")).unwrap();
    fs::write(dir.join("cache/9.9.8/libnccl.so.2"), "a library").unwrap();
    let output = run(&dir, &["9.9.9", "9.9.8"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), format!("9.9.8={}/cache/9.9.8/libnccl.so.2", dir.display()));
    assert!(text(&output.stderr).contains("SKIPPED NCCL 9.9.9"), "{}", text(&output.stderr));
    // A look into the cache downloads nothing and complains of nothing.
    let output = run(&dir, &["--cached", "9.9.9", "9.9.8"]);
    assert_eq!(text(&output.stdout), format!("9.9.8={}/cache/9.9.8/libnccl.so.2", dir.display()));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn a_cache_that_cannot_be_written_is_no_error() {
    let dir = scratch("unwritable");
    fs::write(dir.join("cache"), "a file").unwrap();
    let output = run(&dir, &["9.9.9"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("RINGFENCE_NCCL_CACHE"), "{}", text(&output.stderr));
}

#[test]
fn refuses_what_is_no_version() {
    for bad in ["2.30", "2.30.7 ", "../../etc", "2.30.7==1", ""] {
        let output = run(&scratch("versions"), &[bad]);
        assert_eq!(output.status.code(), Some(2), "{bad:?}: {output:?}");
    }
}

/// Only what the five releases have been when somebody looked: each version once, with a whole checksum.
#[test]
fn the_committed_checksums_are_whole() {
    let text = fs::read_to_string(repository().join("tests/nccl/wheels.sha256")).unwrap();
    let mut versions = Vec::new();
    for line in text.lines() {
        let (checksum, version) = line.split_once("  ").unwrap();
        assert!(checksum.len() == 64 && checksum.bytes().all(|b| b.is_ascii_hexdigit()), "{line}");
        version.parse::<ringfence_nccl::versions::Version>().unwrap();
        assert!(!versions.contains(&version), "{version}");
        versions.push(version);
    }
    assert_eq!(versions.len(), 5);
}
