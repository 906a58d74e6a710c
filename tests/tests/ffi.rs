//! The built plugin, driven through its exported symbols by a C program with NCCL's layouts (tests/c/drive.c), in every
//! version of the tuner interface.

mod plugin;

use plugin::{PolicyDir, c_program, policy, so};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const ALL_REDUCE: u32 = 4;
const ALL_GATHER: u32 = 2;
/// NCCL 2.28 on two nodes of eight GPUs with NVLink, microseconds: Tree, Ring, NVLS and NVLSTree on offer.
const TABLE: [f32; 21] = [
    34.5, 38.0, 71.25, 61.0, 66.5, 98.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 55.5, -1.0, -1.0,
    60.25, -1.0, -1.0, -1.0,
];

fn drive() -> &'static PathBuf {
    static DRIVE: OnceLock<PathBuf> = OnceLock::new();
    DRIVE.get_or_init(|| {
        // Beside this test's executable, so that nothing is left behind elsewhere.
        let out = std::env::current_exe().unwrap().with_file_name(format!("drive-{}", std::process::id()));
        c_program("drive.c", &out);
        out
    })
}

/// What one run printed: results, and log lines apart.
#[derive(Debug)]
struct Run {
    results: Vec<String>,
    log: Vec<String>,
    stderr: String,
}

fn run(policy: Option<&OsStr>, commands: &str) -> Run {
    let mut command = Command::new(drive());
    command.arg(so()).env_remove("RINGFENCE_POLICY").env_remove("RINGFENCE_LOG").env_remove("NCCL_DEBUG");
    if let Some(policy) = policy {
        command.env("RINGFENCE_POLICY", policy);
    }
    let piped = || Stdio::piped();
    let mut child = command.stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{}: {out}{stderr}", output.status);
    assert!(!out.contains("STRAY") && !out.contains("BADLOG"), "{out}");
    let (log, results) = out.lines().map(str::to_owned).partition(|line| line.starts_with("LOG "));
    Run { results, log, stderr }
}

fn in_dir(dir: &PolicyDir, commands: &str) -> Run {
    run(Some(dir.path().as_os_str()), commands)
}

fn dir_with(name: &str, defines: &[&str]) -> PolicyDir {
    let dir = PolicyDir::new();
    dir.put("p.bpf.o", policy(name, defines));
    dir
}

fn get(func: u32, algos: usize, table: &[f32]) -> String {
    let costs: Vec<String> = table.iter().map(f32::to_string).collect();
    format!("get 0 {func} 8388608 1 {algos} 3 0 : {}\n", costs.join(" "))
}

/// A `get` result: code, channels, table.
fn parse(line: &str) -> (i32, i32, Vec<f32>) {
    let (head, table) = line.split_once(" :").unwrap();
    let head: Vec<&str> = head.split(' ').collect();
    let table = table.split_whitespace().map(hex_float).collect();
    (head[1].parse().unwrap(), head[2].parse().unwrap(), table)
}

/// C's `%a`, exact.
fn hex_float(text: &str) -> f32 {
    let (sign, digits) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let (mantissa, exponent) = digits.strip_prefix("0x").unwrap().split_once('p').unwrap();
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let bits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).unwrap() as f64;
    (sign * bits * 2f64.powi(exponent.parse::<i32>().unwrap() - 4 * fraction.len() as i32)) as f32
}

fn with_zero(table: &[f32], entry: usize) -> Vec<f32> {
    let mut table = table.to_vec();
    table[entry] = 0.0;
    table
}

#[test]
fn every_version_carries_a_decision_into_the_table() {
    let dir = dir_with("choose", &["ALGO=1", "PROTO=2", "CHANNELS=8"]);
    for version in 3..=6 {
        let commands = format!(
            "open {version}\ninit 0 16 2 0xabc123\n{}{}fini 0\nthreads\n",
            get(ALL_REDUCE, 7, &TABLE),
            get(ALL_REDUCE, 6, &TABLE[..18]),
        );
        let run = in_dir(&dir, &commands);
        assert_eq!(run.results[..2], ["open Ringfence", "init 0 set"], "v{version}");
        assert_eq!(parse(&run.results[2]), (0, 8, with_zero(&TABLE, 5)), "v{version}");
        assert_eq!(parse(&run.results[3]), (0, 8, with_zero(&TABLE[..18], 5)), "v{version}, six algorithms");
        assert_eq!(run.results[4..], ["fini 0", "threads 1"], "v{version}");
        let comm = if version >= 5 { "0xabc123" } else { "0x0" };
        let init: Vec<_> = run
            .log
            .iter()
            .filter(|l| l.starts_with("LOG 3 0x41 Ringfence 0.1.0: policy p sha256:"))
            .collect();
        assert_eq!(init.len(), 1, "{:?}", run.log);
        let want =
            format!("hook tuner, comm {comm}, 16 ranks; hot reload: new communicators only (16 ranks)");
        assert!(init[0].ends_with(&want), "{}", init[0]);
    }
}

#[test]
fn version_2_answers_only_what_is_certain() {
    let get = "get2 0 4 8388608 0 1 1\nget2 0 2 8388608 0 1 1\n";
    for (defines, all_reduce, all_gather) in [
        (["ALGO=1", "PROTO=2", "CHANNELS=8"], "get2 0 1 2 8", "get2 0 1 2 0"),
        (["ALGO=0", "PROTO=0", "CHANNELS=0"], "get2 0 0 0 0", "get2 0 -1 -1 0"),
        (["ALGO=4", "PROTO=2", "CHANNELS=0"], "get2 0 4 2 0", "get2 0 -1 -1 0"),
        (["ALGO=1", "PROTO=1", "CHANNELS=0"], "get2 0 -1 -1 0", "get2 0 -1 -1 0"),
    ] {
        let dir = dir_with("choose", &defines);
        let run = in_dir(&dir, &format!("open 2\ninit 0 8 1 0\n{get}fini 0\n"));
        assert_eq!(run.results[2..4], [all_reduce, all_gather], "{defines:?}");
    }
}

#[test]
fn what_nccl_does_not_offer_stays_unavailable() {
    // NVLS/LL is not on offer; every -1 stays, no entry changes; the wish for channels counts on its own.
    let dir = dir_with("choose", &["ALGO=4", "PROTO=0", "CHANNELS=3"]);
    let commands = format!("open 6\ninit 0 16 2 1\n{}", get(ALL_REDUCE, 7, &TABLE));
    assert_eq!(parse(&in_dir(&dir, &commands).results[2]), (0, 3, TABLE.to_vec()));
    // PAT is the last row; NCCL 2.22 has only six.
    let dir = dir_with("choose", &["ALGO=6", "PROTO=2"]);
    let commands = format!("open 3\ninit 0 16 2 1\n{}", get(ALL_REDUCE, 6, &TABLE[..18]));
    assert_eq!(parse(&in_dir(&dir, &commands).results[2]), (0, 0, TABLE[..18].to_vec()));
    // Numbers that are no algorithm or protocol.
    for wish in [
        ["ALGO=7", "PROTO=2"],
        ["ALGO=1", "PROTO=3"],
        ["ALGO=0xffffffff", "PROTO=2"],
        ["ALGO=1", "PROTO=RF_UNSET"],
    ] {
        let dir = dir_with("choose", &wish);
        let commands = format!("open 6\ninit 0 16 2 1\n{}", get(ALL_REDUCE, 7, &TABLE));
        assert_eq!(parse(&in_dir(&dir, &commands).results[2]), (0, 0, TABLE.to_vec()), "{wish:?}");
    }
    // Nothing on offer at all, NaN, other negatives, and an entry that is 0 already.
    let dir = dir_with("choose", &["ALGO=1", "PROTO=2"]);
    let mut odd = TABLE;
    (odd[0], odd[5], odd[8]) = (f32::NAN, -7.0, 0.0);
    let commands =
        format!("open 6\ninit 0 16 2 1\n{}{}", get(ALL_REDUCE, 7, &[-1.0; 21]), get(ALL_REDUCE, 7, &odd));
    let run = in_dir(&dir, &commands);
    assert_eq!(parse(&run.results[2]), (0, 0, vec![-1.0; 21]));
    let (_, _, table) = parse_nan(&run.results[3]);
    assert!(table[0].is_nan());
    assert_eq!(table[1..], odd[1..]);
}

/// As [`parse`], where `nan` may be among the numbers.
fn parse_nan(line: &str) -> (i32, i32, Vec<f32>) {
    let (code, channels, table) = parse(&line.replace("-nan", "nan").replace("nan", "0x7p+0"));
    let (_, printed) = line.split_once(" :").unwrap();
    let is_nan = printed.split_whitespace().map(|text| text.contains("nan"));
    (code, channels, table.into_iter().zip(is_nan).map(|(v, nan)| if nan { f32::NAN } else { v }).collect())
}

#[test]
fn channels_stay_within_bounds() {
    let coll_net = {
        let mut table = TABLE;
        table[8] = 50.0;
        table
    };
    let ask = |limits: &str, channels: &str, func: u32, table: &[f32; 21]| {
        let dir = dir_with("choose", &["ALGO=1", "PROTO=2", channels]);
        if !limits.is_empty() {
            dir.put("ringfence.toml", format!("[[policy]]\nfile = 'p.bpf.o'\n[limits]\n{limits}\n"));
        }
        let run = in_dir(&dir, &format!("open 6\ninit 0 16 2 1\n{}", get(func, 7, table)));
        parse(&run.results[2]).1
    };
    assert_eq!(ask("", "CHANNELS=64", ALL_REDUCE, &TABLE), 64);
    assert_eq!(ask("", "CHANNELS=65", ALL_REDUCE, &TABLE), 64);
    assert_eq!(ask("", "CHANNELS=0xffffffff", ALL_REDUCE, &TABLE), 64);
    assert_eq!(ask("max_channels = 24", "CHANNELS=64", ALL_REDUCE, &TABLE), 24);
    assert_eq!(ask("", "CHANNELS=4", ALL_GATHER, &TABLE), 0, "NCCL would not clamp");
    assert_eq!(ask("max_channels = 24", "CHANNELS=64", ALL_GATHER, &TABLE), 24);
    assert_eq!(
        ask("", "CHANNELS=4", ALL_REDUCE, &coll_net),
        4,
        "a Ring decision is clamped even with CollNet on offer"
    );
}

#[test]
fn nothing_is_touched_without_a_good_policy() {
    let dir = PolicyDir::new();
    let missing = dir.path().join("missing");
    let bad = dir_with("refused", &[]);
    let no_object = PolicyDir::new();
    no_object.put("p.bpf.o", b"\x7fELF but not really");
    let spin = dir_with("spin", &[]);
    spin.put("ringfence.toml", "[[policy]]\nfile = 'p.bpf.o'\n[limits]\nfuel = 1000\n");
    let manifest = PolicyDir::new();
    manifest.put("ringfence.toml", "[[policy]]\nfle = 'p.bpf.o'\n");
    let cases: [(&str, Option<OsString>, &str); 7] = [
        ("unset", None, "policy none (RINGFENCE_POLICY is not set; NCCL decides)"),
        ("empty", Some("".into()), "policy none (RINGFENCE_POLICY is not set; NCCL decides)"),
        ("missing", Some(missing.into()), "cannot open the policy directory"),
        ("refused", Some(bad.path().into()), "p.bpf.o: reject[null-deref] refused@"),
        ("no object", Some(no_object.path().into()), "p.bpf.o: "),
        ("manifest", Some(manifest.path().into()), "ringfence.toml: line 2, column 1: unknown field `fle`"),
        (
            "fuel",
            Some(spin.path().into()),
            "policy p faulted at call 0 on comm 0x9 and was skipped: out of fuel",
        ),
    ];
    for (name, source, reason) in cases {
        for version in 3..=6 {
            let commands = format!("open {version}\ninit 0 16 2 9\n{}fini 0\n", get(ALL_REDUCE, 7, &TABLE));
            let run = run(source.as_deref(), &commands);
            assert_eq!(run.results[1], "init 0 set", "{name} v{version}");
            assert_eq!(parse(&run.results[2]), (0, 0, TABLE.to_vec()), "{name} v{version}");
            let reason = if version < 5 { reason.replace("0x9", "0x0") } else { reason.to_owned() };
            assert!(run.log.iter().any(|l| l.contains(&reason)), "{name} v{version}: {:?}", run.log);
            if source.is_some() && name != "empty" {
                assert!(run.stderr.contains(&reason), "{name}: NCCL shows nothing unless NCCL_DEBUG is set");
            }
        }
        let run = run(source.as_deref(), "open 2\ninit 0 8 1 0\nget2 0 4 8388608 0 0 1\nfini 0\n");
        assert_eq!(run.results[2..], ["get2 0 -1 -1 0", "fini 0"], "{name} v2");
    }
}

#[test]
fn a_refusal_shows_the_line_of_source() {
    let bad = dir_with("refused", &[]);
    let run = in_dir(&bad, "open 6\ninit 0 2 1 1\n");
    let warning = run.log.iter().find(|l| l.contains("reject[null-deref]")).unwrap();
    assert!(
        warning.starts_with("LOG 2 0x41 Ringfence: policy refused, still in force: none (NCCL decides): "),
        "{warning}"
    );
    assert!(
        warning.contains("refused.bpf.c:17") && warning.contains("*n += 1; /* the fault */"),
        "{warning}"
    );
}

#[test]
fn a_fault_skips_one_policy_of_the_chain() {
    let dir = PolicyDir::new();
    dir.put("a.bpf.o", policy("choose", &["ALGO=1", "PROTO=0", "CHANNELS=5"]));
    dir.put("b.bpf.o", policy("spin", &[]));
    dir.put("c.bpf.o", policy("choose", &["ALGO=1", "PROTO=1", "CHANNELS=0"]));
    let chain = |files: &[&str], fuel: &str| {
        let policies: String = files.iter().map(|f| format!("[[policy]]\nfile = '{f}.bpf.o'\n")).collect();
        dir.put("ringfence.toml", format!("{policies}[limits]\n{fuel}\n"));
        let run = in_dir(&dir, &format!("open 6\ninit 0 16 2 1\n{}fini 0\n", get(ALL_REDUCE, 7, &TABLE)));
        parse(&run.results[2])
    };
    let little = "fuel = 1000";
    assert_eq!(chain(&["a", "b"], little), (0, 5, with_zero(&TABLE, 3)), "the decision so far stands");
    assert_eq!(chain(&["b", "a"], little), (0, 5, with_zero(&TABLE, 3)), "the next policy is asked");
    assert_eq!(chain(&["b", "c"], little), (0, 0, with_zero(&TABLE, 4)));
    let (code, channels, table) = chain(&["a", "b"], "");
    assert_eq!((code, table), (0, with_zero(&TABLE, 0)), "with fuel enough the second overrides the first");
    assert!((1..=16).contains(&channels));
}

#[test]
fn null_pointers_and_nonsense_are_survived() {
    let dir = dir_with("choose", &["ALGO=1", "PROTO=2", "CHANNELS=8"]);
    for version in 2..=6 {
        for source in [Some(dir.path().as_os_str()), None] {
            let commands = format!(
                "open {version}\ninitnull\ninit 0 16 2 1\nnulls 0\nnulls -1\nnulls -2\nfini 0\nnulls 0\n"
            );
            let run = run(source, &commands);
            assert_eq!(run.results[1..3], ["initnull 0 set", "init 0 set"], "v{version}");
            for line in [&run.results[3], &run.results[4], &run.results[5], &run.results[7]] {
                assert!(line.starts_with("nulls 0 "), "v{version}: {line}");
            }
        }
    }
}

#[test]
fn stale_and_invented_contexts_pass_through() {
    let dir = dir_with("choose", &["ALGO=1", "PROTO=2", "CHANNELS=8"]);
    let ask = |slot: i32| get(ALL_REDUCE, 7, &TABLE).replacen("get 0", &format!("get {slot}"), 1);
    let commands = format!(
        "open 6\ninit 0 16 2 1\ninit 1 16 2 2\nfini 0\n{}refini 0\nrefini 0\ninit 2 16 2 3\n{}{}{}{}{}refini 0\n{}",
        ask(0),
        ask(0),
        ask(-1),
        ask(-2),
        ask(1),
        ask(2),
        ask(2),
    );
    let run = in_dir(&dir, &commands);
    let untouched = (0, 0, TABLE.to_vec());
    let decided = (0, 8, with_zero(&TABLE, 5));
    let gets: Vec<_> = run.results.iter().filter(|l| l.starts_with("get ")).map(|l| parse(l)).collect();
    let want = [&untouched, &untouched, &untouched, &untouched, &decided, &decided, &decided];
    for (i, (have, want)) in gets.iter().zip(want).enumerate() {
        assert_eq!(have, want, "call {i}");
    }
    assert_eq!(gets.len(), want.len());
}

#[test]
fn the_chunk_size_stays_nccl_s() {
    let dir = dir_with("choose", &["ALGO=1", "PROTO=2", "CHANNELS=8"]);
    let run = in_dir(&dir, "open 6\ninit 0 16 2 1\nchunk 0 524288\nchunk -1 7\n");
    assert_eq!(run.results[2..], ["chunk 0 524288", "chunk 0 7"]);
}

#[test]
fn a_lone_object_is_a_source() {
    let dir = dir_with("choose", &["ALGO=0", "PROTO=2", "CHANNELS=2"]);
    let run = run(
        Some(dir.path().join("p.bpf.o").as_os_str()),
        &format!("open 6\ninit 0 16 2 1\n{}", get(ALL_REDUCE, 7, &TABLE)),
    );
    assert_eq!(parse(&run.results[2]), (0, 2, with_zero(&TABLE, 2)));
}

#[test]
fn a_forked_child_neither_hangs_nor_harms_its_parent() {
    let dir = dir_with("choose", &["ALGO=1", "PROTO=2", "CHANNELS=8"]);
    let get0 = get(ALL_REDUCE, 7, &TABLE).trim_end().to_owned();
    let get1 = get0.replacen("get 0", "get 1", 1);
    let commands = format!(
        "open 6\ninit 0 16 2 1\nfork {get0}; fini 0; init 1 16 2 2; {get1}; fini 1; threads\n{get0}\nfini 0\nthreads\n"
    );
    let run = in_dir(&dir, &commands);
    let decided = (0, 8, with_zero(&TABLE, 5));
    assert_eq!(parse(&run.results[2]), decided, "the child may go on with what it inherited");
    assert_eq!(run.results[3..5], ["fini 0", "init 0 set"]);
    assert_eq!(parse(&run.results[5]), decided, "and has a host of its own");
    assert_eq!(run.results[6..9], ["fini 0", "threads 1", "fork 0"]);
    assert_eq!(parse(&run.results[9]), decided);
    assert_eq!(run.results[10..], ["fini 0", "threads 1"]);
}

#[test]
fn an_object_with_several_programs_needs_a_name() {
    let dir = dir_with("several", &[]);
    let ask = |manifest: &str| {
        if !manifest.is_empty() {
            dir.put("ringfence.toml", format!("[[policy]]\nfile = 'p.bpf.o'\n{manifest}\n"));
        }
        let run = in_dir(&dir, &format!("open 6\ninit 0 16 2 1\n{}", get(ALL_REDUCE, 7, &TABLE)));
        (parse(&run.results[2]).2, run.log.join("\n"))
    };
    let (table, log) = ask("");
    assert_eq!(table, TABLE);
    let want = "p.bpf.o: several programs for the hook tuner: ring (section tuner/ring), tree (section tuner/tree); say which one: program = ";
    assert!(log.contains(want), "{log}");
    assert_eq!(ask("program = 'tree'").0, with_zero(&TABLE, 2));
    assert_eq!(ask("program = 'ring'").0, with_zero(&TABLE, 5));
    let (table, log) = ask("program = 'other'");
    assert_eq!(table, TABLE);
    assert!(log.contains("p.bpf.o: no program \"other\" for a hook of NCCL; the object has "), "{log}");
    assert_eq!(ask("program = 'other'\nhook = 'tuner'").0, with_zero(&TABLE, 3));
    let (table, log) = ask("program = 'tree'\nhook = 'uprobe'");
    assert_eq!(table, TABLE);
    assert!(
        log.contains("p.bpf.o: reject["),
        "a tuner program writes to the context, which uprobe forbids: {log}"
    );
}

#[test]
fn objects_in_the_form_of_ncclbpf_decide() {
    let dir = dir_with("packed", &[]);
    let small = get(ALL_REDUCE, 7, &TABLE).replace("8388608", "4096");
    let run = in_dir(
        &dir,
        &format!(
            "open 5\ninit 0 16 2 1\n{}{}{small}",
            get(ALL_REDUCE, 7, &TABLE),
            get(ALL_REDUCE, 7, &TABLE)
        ),
    );
    let gets: Vec<_> = run.results[2..].iter().map(|l| parse(l)).collect();
    assert_eq!(
        gets,
        [(0, 1, with_zero(&TABLE, 5)), (0, 2, with_zero(&TABLE, 5)), (0, 3, with_zero(&TABLE, 2))]
    );
    assert!(run.log.iter().any(|l| l.contains(", hook uprobe, ")), "{:?}", run.log);
}
