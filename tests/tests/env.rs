//! The env half of the built plugin, asked through its exported symbols by a C program with NCCL's layouts (tests/c/envdrive.c), in
//! both versions.

mod plugin;

use plugin::{PATIENCE, PolicyDir, c_program, policy, so};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

fn driver() -> &'static PathBuf {
    static DRIVE: OnceLock<PathBuf> = OnceLock::new();
    DRIVE.get_or_init(|| {
        let out = std::env::current_exe().unwrap().with_file_name(format!("envdrive-{}", std::process::id()));
        c_program("envdrive.c", &out);
        out
    })
}

/// A running driver.
struct Side {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    log: Vec<String>,
}

impl Side {
    fn start(dir: Option<&PolicyDir>, env: &[(&str, &str)]) -> Side {
        let mut command = Command::new(driver());
        for name in
            ["RINGFENCE_POLICY", "RINGFENCE_LOG", "NCCL_DEBUG", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET_PLUGIN"]
        {
            command.env_remove(name);
        }
        if let Some(dir) = dir {
            command.env("RINGFENCE_POLICY", dir.path());
        }
        command.arg(so()).envs(env.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Side { child, to, from, log: Vec::new() }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.to.as_mut().unwrap(), "{command}").unwrap();
        loop {
            let mut line = String::new();
            assert!(
                self.from.read_line(&mut line).unwrap() > 0,
                "died at {command:?}: {:?}",
                self.child.wait()
            );
            match line.trim_end() {
                log if log.starts_with("LOG ") => self.log.push(log.to_owned()),
                result => return result.to_owned(),
            }
        }
    }

    fn get(&mut self, name: &str) -> String {
        self.ask(&format!("get {name}")).split_once('=').unwrap().1.to_owned()
    }

    fn end(mut self) -> Vec<String> {
        self.to = None;
        for line in self.from.lines() {
            self.log.push(line.unwrap());
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {:?}", self.log);
        self.log
    }
}

/// A driver that has opened version `v` and initialised it.
fn started(v: u32, dir: Option<&PolicyDir>, env: &[(&str, &str)]) -> Side {
    let mut side = Side::start(dir, env);
    assert_eq!(side.ask(&format!("open {v}")), "open Ringfence");
    assert_eq!(side.ask("init 2 30 7"), "init 0");
    side
}

fn dir_with(manifest: &str, objects: &[(&str, Vec<u8>)]) -> PolicyDir {
    let dir = PolicyDir::new();
    objects.iter().for_each(|(name, bytes)| {
        dir.put(name, bytes);
    });
    dir.put("ringfence.toml", manifest);
    dir
}

fn fixed(action: &str, len: u32, text: &[u8; 8]) -> Vec<u8> {
    let word = u64::from_le_bytes(*text);
    policy("env_fixed", &[&format!("ACTION={action}"), &format!("LEN={len}"), &format!("WORD={word}ull")])
}

#[test]
fn without_rules_everything_comes_from_the_process() {
    let empty = dir_with("policy = []\n", &[]);
    let lone = dir_with(
        "[[policy]]\nfile = 'p.bpf.o'\n",
        &[("p.bpf.o", fixed("RF_ENV_ANSWER", 4, b"Ring\0\0\0\0"))],
    );
    let bad = dir_with("[[policy]]\nfle = 'p'\n", &[]);
    for dir in [None, Some(&empty), Some(&lone), Some(&bad)] {
        for v in [1, 2] {
            let mut side = started(v, dir, &[("NCCL_ALGO", "Tree"), ("NCCL_EMPTY", "")]);
            assert_eq!(side.get("NCCL_ALGO"), "Tree");
            assert_eq!(
                (side.get("NCCL_EMPTY"), side.get("NCCL_PROTO"), side.get("NOT_NCCL")),
                (String::new(), "(null)".into(), "(null)".into())
            );
            assert_ne!(side.get("PATH"), "(null)", "HOME, PATH and the like are looked up here too");
            side.ask("set NCCL_PROTO LL");
            assert_eq!(side.get("NCCL_PROTO"), "LL", "nothing is kept");
            side.ask("unset NCCL_PROTO");
            assert_eq!(side.get("NCCL_PROTO"), "(null)");
            assert_eq!(side.ask("null"), "null (null)");
            assert_eq!(side.ask("fini"), "fini 0");
            assert_eq!(side.get("NCCL_ALGO"), "Tree", "also after the end");
            assert_eq!(side.ask("threads"), "threads 1");
            side.end();
        }
    }
}

#[test]
fn before_init_everything_comes_from_the_process() {
    let dir = dir_with("policy = []\n[env]\nset = { NCCL_ALGO = 'Ring' }\n", &[]);
    let mut side = Side::start(Some(&dir), &[]);
    side.ask("open 2");
    assert_eq!(side.get("NCCL_ALGO"), "(null)");
    side.ask("init 2 30 7");
    assert_eq!(side.get("NCCL_ALGO"), "Ring");
    assert_eq!(side.ask("init 2 30 7"), "init 0", "twice is harmless");
    assert_eq!(side.get("NCCL_ALGO"), "Ring");
    side.ask("fini");
    assert_eq!(side.ask("fini"), "fini 0");
    assert_eq!(side.ask("threads"), "threads 1");
    side.end();
}

#[test]
fn the_manifest_fills_in_what_the_process_has_not_set() {
    let manifest = "policy = []\n[env]\noverride = ['NCCL_PROTO']\n[env.set]\nNCCL_ALGO = 'Ring'\nNCCL_PROTO = 'Simple'\nNCCL_NTHREADS = ''\n\
                    NCCL_TUNER_PLUGIN = '/opt/lib/libnccl_ringfence.so'\n";
    let dir = dir_with(manifest, &[]);
    for v in [1, 2] {
        let mut side = started(v, Some(&dir), &[]);
        assert_eq!(
            (side.get("NCCL_ALGO"), side.get("NCCL_PROTO"), side.get("NCCL_NTHREADS")),
            ("Ring".into(), "Simple".into(), String::new())
        );
        assert_eq!(side.get("NCCL_TUNER_PLUGIN"), "/opt/lib/libnccl_ringfence.so");
        assert_eq!(side.get("NCCL_BUFFSIZE"), "(null)");
        side.ask("set NCCL_ALGO Tree");
        side.ask("set NCCL_PROTO LL");
        assert_eq!(side.get("NCCL_ALGO"), "Tree", "what the process has set wins");
        assert_eq!(side.get("NCCL_PROTO"), "Simple", "unless the operator says otherwise");
        let log = side.end();
        let said =
            log.iter().any(|l| l.contains("env: 4 settings from the manifest, 0 that policies may answer"));
        assert_eq!(said, v == 2, "version 1 has no logger: {log:?}");
    }
}

#[test]
fn policies_answer_names_on_the_list_alone() {
    let manifest = "[[policy]]\nfile = 'p.bpf.o'\n[env]\nallow = ['NCCL_ALGO', 'NCCL_PROTO']\noverride = ['NCCL_PROTO']\nset = { NCCL_MAX_CTAS = '4' }\n";
    for (action, want) in [("RF_ENV_ANSWER", "Ring"), ("RF_ENV_HIDE", "(null)"), ("RF_ENV_PASS", "LL")] {
        let dir = dir_with(manifest, &[("p.bpf.o", fixed(action, 255, b"Ring\0\0\0\0"))]);
        let mut side = started(2, Some(&dir), &[("NCCL_PROTO", "LL")]);
        let unset = if action == "RF_ENV_ANSWER" { "Ring" } else { "(null)" };
        assert_eq!(side.get("NCCL_ALGO"), unset, "{action}");
        assert_eq!(side.get("NCCL_PROTO"), want, "{action}");
        assert_eq!(
            (side.get("NCCL_MAX_CTAS"), side.get("NCCL_MIN_CTAS")),
            ("4".into(), "(null)".into()),
            "{action}"
        );
        side.ask("set NCCL_ALGO Tree");
        assert_eq!(side.get("NCCL_ALGO"), "Tree", "{action}");
        for name in ["NCCL_ENV_PLUGIN", "NCCL_NET_PLUGIN", "HOME2", "NCCL_DEBUG_FILE", "RINGFENCE_X"] {
            assert_eq!(side.get(name), "(null)", "{name}");
        }
        side.end();
    }
}

#[test]
fn the_chain_sees_what_stands_so_far() {
    let later = |text: &[u8; 8]| {
        let word = u64::from_le_bytes(*text);
        policy("env_fixed", &["ACTION=RF_ENV_ANSWER", "LEN=255", &format!("WORD={word}ull"), "LATER"])
    };
    let manifest = "[[policy]]\nfile = 'a.bpf.o'\n[env]\nallow = ['NCCL_ALGO', 'NCCL_PROTO']\nset = { NCCL_ALGO = 'Tree' }\n";
    let dir = dir_with(manifest, &[("a.bpf.o", later(b"Ring\0\0\0\0"))]);
    let mut side = started(2, Some(&dir), &[]);
    assert_eq!((side.get("NCCL_ALGO"), side.get("NCCL_PROTO")), ("Ring".into(), "(null)".into()));
    side.end();
}

#[test]
fn answers_that_are_none_change_nothing() {
    let manifest =
        "[[policy]]\nfile = 'p.bpf.o'\n[env]\nallow = ['NCCL_ALGO']\nset = { NCCL_ALGO = 'Tree' }\n";
    for (action, len, text) in [
        ("3", 4, b"Ring\0\0\0\0"),
        ("RF_ENV_ANSWER", 256, b"Ring\0\0\0\0"),
        ("RF_ENV_ANSWER", 255, b"Ri\ng\0\0\0\0"),
    ] {
        let dir = dir_with(manifest, &[("p.bpf.o", fixed(action, len, text))]);
        let mut side = started(2, Some(&dir), &[]);
        assert_eq!(side.get("NCCL_ALGO"), "Tree", "{action} {len} {text:?}");
        side.end();
    }
    // The manifest's value is longer than what a policy sees; a policy that only looks leaves all of it.
    let long = "x".repeat(900);
    let manifest = format!(
        "[[policy]]\nfile = 'p.bpf.o'\n[env]\nallow = ['NCCL_ALGO']\nset = {{ NCCL_ALGO = '{long}' }}\n"
    );
    let same = fixed("RF_ENV_ANSWER", 255, b"xxxxxxxx");
    let mut side = started(2, Some(&dir_with(&manifest, &[("p.bpf.o", same)])), &[]);
    assert_eq!(side.get("NCCL_ALGO"), long);
    side.end();
}

#[test]
fn a_fault_leaves_the_manifest_s_answer() {
    let manifest = "[[policy]]\nfile = 'p.bpf.o'\n[limits]\nfuel = 1\n[env]\nallow = ['NCCL_ALGO']\nset = { NCCL_ALGO = 'Tree' }\n";
    let dir = dir_with(manifest, &[("p.bpf.o", fixed("RF_ENV_ANSWER", 4, b"Ring\0\0\0\0"))]);
    let mut side = started(2, Some(&dir), &[]);
    assert_eq!(side.get("NCCL_ALGO"), "Tree");
    side.ask("fini");
    assert!(side.end().iter().any(|l| l.contains("policy p faulted at call 0")));
}

#[test]
fn rules_that_cannot_be_are_refused_and_nothing_is_answered() {
    for (rules, why) in [
        ("allow = ['NCCL_NET_PLUGIN']", "env.allow: NCCL_NET_PLUGIN names a file, a library or an address"),
        ("allow = ['LD_PRELOAD']", "env.allow: LD_PRELOAD cannot be answered"),
        ("set = { NCCL_ENV_PLUGIN = 'x' }", "env.set.NCCL_ENV_PLUGIN: cannot be answered"),
        ("override = ['NCCL_ALGO']", "env.override: NCCL_ALGO is neither in env.allow nor in env.set"),
        ("alow = []", "unknown field `alow`"),
    ] {
        let dir = dir_with(&format!("policy = []\n[env]\n{rules}\n"), &[]);
        let mut side = started(2, Some(&dir), &[]);
        assert_eq!(side.get("NCCL_ENV_PLUGIN"), "(null)");
        let log = side.end();
        assert!(log.iter().any(|l| l.starts_with("LOG 2 ") && l.contains(why)), "{log:?}");
    }
}

#[test]
fn a_pointer_stays_what_it_was() {
    let manifest = "[[policy]]\nfile = 'p.bpf.o'\n[env]\nallow = ['NCCL_ALGO']\n";
    let counting = policy("env_fixed", &["ACTION=RF_ENV_ANSWER", "LEN=8", "COUNT"]);
    let dir = dir_with(manifest, &[("p.bpf.o", counting)]);
    let mut side = started(2, Some(&dir), &[]);
    let given: Vec<String> = (0..50).map(|_| side.ask("hold NCCL_ALGO").replace("hold ", "")).collect();
    assert_ne!(given[0], given[49], "each answer is another one");
    dir.put("ringfence.toml", "policy = []\n[env]\nset = { NCCL_ALGO = 'Ring' }\n");
    let start = Instant::now();
    while side.get("NCCL_ALGO") != "Ring" {
        assert!(start.elapsed() < PATIENCE, "waited in vain for the reload");
        side.ask("sleep 2");
    }
    side.ask("fini");
    assert_eq!(side.ask("held"), format!("held {}", given.join(" ")), "after a reload and the end");
    side.end();
}

#[test]
fn made_up_answers_do_not_fill_the_memory() {
    let manifest = "[[policy]]\nfile = 'p.bpf.o'\n[env]\nallow = ['NCCL_ALGO']\n";
    let counting = policy("env_fixed", &["ACTION=RF_ENV_ANSWER", "LEN=8", "COUNT"]);
    let mut side = started(2, Some(&dir_with(manifest, &[("p.bpf.o", counting)])), &[("OTHER", "x")]);
    let storm = side.ask("storm NCCL_ALGO 1000");
    assert!(!storm.ends_with("different=0"), "{storm}");
    assert_eq!(side.get("NCCL_ALGO"), "(null)", "the process has none");
    side.ask("fini");
    let log = side.end();
    assert!(log.iter().any(|l| l.contains("answers were left to the process")), "{log:?}");
}

#[test]
fn many_threads_hear_the_same() {
    let manifest =
        "[[policy]]\nfile = 'p.bpf.o'\n[env]\nallow = ['NCCL_ALGO']\nset = { NCCL_PROTO = 'LL' }\n";
    let dir = dir_with(manifest, &[("p.bpf.o", fixed("RF_ENV_ANSWER", 4, b"Ring\0\0\0\0"))]);
    let mut side = started(2, Some(&dir), &[]);
    assert_eq!(side.ask("storm NCCL_ALGO 3000"), "storm Ring different=0");
    assert_eq!(side.ask("storm NCCL_PROTO 3000"), "storm LL different=0");
    assert_eq!(side.ask("storm NCCL_NONE 3000"), "storm (null) different=0");
    assert_eq!(side.ask("fork get NCCL_ALGO"), "get NCCL_ALGO=Ring", "a child has what it inherited");
    assert_eq!(side.ask("fork fini"), "fini 0", "and may end it");
    assert_eq!(side.get("NCCL_ALGO"), "Ring");
    side.ask("fini");
    assert_eq!(side.ask("threads"), "threads 1");
    side.end();
}

#[test]
fn the_shipped_map_policy_answers_from_the_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
    let out =
        std::env::current_exe().unwrap().with_file_name(format!("env_map-{}.bpf.o", std::process::id()));
    let mut clang = Command::new("clang-19");
    clang
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I"])
        .arg(root.join("include"));
    assert!(
        clang.arg("-c").arg(root.join("c/env_map.bpf.c")).arg("-o").arg(&out).status().unwrap().success()
    );
    let object = std::fs::read(&out).unwrap();
    let writer = policy("env_write", &[]);
    // Another policy on the hook writes the map that the shipped one reads.
    let manifest = "[[policy]]\nfile = 'w.bpf.o'\n[[policy]]\nfile = 'm.bpf.o'\n[env]\nallow = ['NCCL_ALGO', 'NCCL_PROTO', 'NCCL_NTHREADS']\n\
                    override = ['NCCL_PROTO']\n";
    let dir = dir_with(manifest, &[("w.bpf.o", writer), ("m.bpf.o", object)]);
    let mut side = started(2, Some(&dir), &[("NCCL_PROTO", "LL")]);
    assert_eq!(
        (side.get("NCCL_ALGO"), side.get("NCCL_PROTO"), side.get("NCCL_NTHREADS")),
        ("Ring".into(), "(null)".into(), "(null)".into())
    );
    side.end();
    let _ = std::fs::remove_file(out);
}

#[test]
fn other_halves_are_not_started_by_a_look_up() {
    // The library that NCCL_ENV_PLUGIN names has a net half too; opening it must not open what that one wraps, unless asked for.
    let dir = dir_with("policy = []\n[env]\nset = { NCCL_ALGO = 'Ring' }\n", &[]);
    let mut side = started(2, Some(&dir), &[("RINGFENCE_CHAIN_NET", "/nowhere/libx.so")]);
    assert_eq!(side.get("NCCL_ALGO"), "Ring");
    assert!(!side.end().iter().any(|l| l.contains("libx.so")), "the net half says it when NCCL asks it");
}
