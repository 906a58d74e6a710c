//! Chains on the tuner's hooks, driven through the plugin's symbols: several policies in manifest order, a fault in one, objects with programs for
//! several hooks, NCCL's constants and chunk sizes, and a downstream tuner (`RINGFENCE_CHAIN_TUNER`) of each version.

mod plugin;

use plugin::{PolicyDir, isolated, isolated_with, policy, so, wait_for};
use ringfence_host::ffi::driver::{Comm, Plugin, Table, take_log};
use ringfence_host::ffi::types::{NvlDomainInfo, TunerConstants};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ALL_REDUCE: i32 = 4;
const COSTS: [f32; 6] = [30.0, 20.0, 40.0, 35.0, 45.0, 25.0];

fn table() -> Table {
    let mut costs = vec![-1.0; 21];
    costs[..6].copy_from_slice(&COSTS);
    Table::new(7, 3, costs)
}

fn ask(comm: &mut Comm) -> (Table, i32) {
    let mut table = table();
    let (code, channels) = comm.get_coll_info(ALL_REDUCE, 1 << 20, 1, &mut table, false);
    assert_eq!(code, 0);
    (table, channels)
}

/// The table with other costs at these places.
fn with(changes: &[(usize, f32)]) -> Table {
    let mut table = table();
    changes.iter().for_each(|(at, cost)| table.costs_mut()[*at] = *cost);
    table
}

fn init(plugin: &Plugin) -> Comm {
    let (comm, code) = plugin.init(8, 2, 0x77);
    assert_eq!(code, 0);
    comm
}

fn manifest(dir: &PolicyDir, files: &[&str], rest: &str) {
    let entries: String = files.iter().map(|f| format!("[[policy]]\nfile = '{f}'\n")).collect();
    dir.put("ringfence.toml", entries + rest);
}

#[test]
fn policies_are_asked_in_the_manifest_s_order_and_see_the_decision_so_far() {
    isolated("policies_are_asked_in_the_manifest_s_order_and_see_the_decision_so_far", |dir| {
        dir.put("one.bpf.o", policy("chain", &["ADD=1"]));
        dir.put("ten.bpf.o", policy("chain", &["ADD=10", "AWAY_FROM=0"]));
        dir.put("tree.bpf.o", policy("choose", &["ALGO=0", "PROTO=2", "CHANNELS=4"]));
        // 4, then + 10 and away from Tree, then + 1.
        manifest(dir, &["tree.bpf.o", "ten.bpf.o", "one.bpf.o"], "");
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        assert_eq!(ask(&mut comm), (with(&[(3, 0.0)]), 15));
        drop(comm);
        // The other way round, the last word is Tree's, and the additions are overwritten.
        manifest(dir, &["one.bpf.o", "ten.bpf.o", "tree.bpf.o"], "");
        let mut comm = init(&plugin);
        assert_eq!(ask(&mut comm), (with(&[(2, 0.0)]), 4));
    });
}

#[test]
fn a_policy_that_faults_is_skipped_and_the_rest_of_the_chain_decides() {
    isolated("a_policy_that_faults_is_skipped_and_the_rest_of_the_chain_decides", |dir| {
        dir.put("one.bpf.o", policy("chain", &["ADD=1"]));
        dir.put("spin.bpf.o", policy("chain", &["ADD=100", "SPIN"]));
        manifest(dir, &["one.bpf.o", "spin.bpf.o", "one.bpf.o"], "[limits]\nfuel = 5000\n");
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        for _ in 0..3 {
            assert_eq!(ask(&mut comm), (table(), 2), "1 + (skipped) + 1");
        }
        wait_for("the report of the fault", || {
            take_log()
                .iter()
                .any(|l| l.text.contains("policy spin faulted at call 0 on comm 0x77 and was skipped"))
        });
    });
}

#[test]
fn programs_of_one_object_stand_on_all_their_hooks_and_share_maps() {
    isolated("programs_of_one_object_stand_on_all_their_hooks_and_share_maps", |dir| {
        dir.put("halves.bpf.o", policy("halves", &[]));
        for version in [5, 6] {
            let plugin = Plugin::open_version(so(), version).unwrap();
            let mut constants = TunerConstants::ZERO;
            constants.base_latencies[1] = [6.6, 14.0, 8.4];
            constants.hw_latencies[0][0][0] = 0.6;
            constants.ll_max_bws[2] = [87.7, 22.5, 19.0];
            let before = constants;
            let nvl =
                NvlDomainInfo { n_nvl_domains: 2, min_ranks_per_nvl_domain: 4, max_ranks_per_nvl_domain: 4 };
            let (mut comm, code) = plugin.init_with(8, 2, 0x77, nvl, &mut constants);
            assert_eq!(code, 0);
            let mut want = before;
            (want.base_latencies[1][2], want.ll_max_bws[2][0]) = (16.8, 43.85);
            assert_eq!(constants, want, "two constants, and the rest bit for bit");
            assert_eq!(ask(&mut comm), (table(), 3));
            // Version 5 has no chunk sizes. 512 is the grain of Simple; NCCL's own is the most.
            let chunks = [(131_072, 65_536), (1024, 512), (512, 512), (100, 100)];
            for (nccl, want) in chunks {
                let want = if version == 6 { want } else { nccl };
                assert_eq!(comm.get_chunk_size(4, 1 << 20, 1, 2, 1, nccl), want, "v{version}");
            }
        }
    });
}

#[test]
fn without_policies_constants_and_chunks_are_nccl_s() {
    isolated("without_policies_constants_and_chunks_are_nccl_s", |dir| {
        dir.put("tree.bpf.o", policy("choose", &["ALGO=0", "PROTO=2", "CHANNELS=4"]));
        let plugin = Plugin::open(so()).unwrap();
        let mut constants = TunerConstants::ZERO;
        constants.base_latencies[1] = [f64::NAN, -1.0, 0.123_456_789];
        let bits = constants.base_latencies[1].map(f64::to_bits);
        let (mut comm, _) = plugin.init_with(8, 2, 0x77, NvlDomainInfo::default(), &mut constants);
        assert_eq!(constants.base_latencies[1].map(f64::to_bits), bits);
        assert_eq!(comm.get_chunk_size(4, 1 << 20, 1, 2, 1, 7), 7);
    });
}

/// Builds the downstream tuner of a version.
fn downstream(dir: &Path, version: u32) {
    let out = dir.join(format!("libchained{version}.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/tuner_plugin.c");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"])
        .arg(format!("-DVERSION={version}"))
        .arg(source)
        .arg("-o")
        .arg(&out)
        .status()
        .unwrap();
    assert!(status.success());
}

/// A downstream tuner that lies in this (isolated) process' own directory, where `RINGFENCE_CHAIN_TUNER` has it.
struct Downstream(PathBuf);

impl Downstream {
    fn new(version: u32) -> Downstream {
        let own = PathBuf::from(std::env::var_os("CHAINED").unwrap());
        downstream(&own, version);
        Downstream(own)
    }

    fn behave(&self, lines: &str) {
        fs::write(self.0.join("config"), lines).unwrap();
    }

    /// The calls since the last time.
    fn calls(&self) -> String {
        let path = self.0.join("calls");
        let calls = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        calls
    }
}

/// With NCCL 2.30 a downstream tuner of any version is called; NCCL 2.22 to 2.27 tells too little for versions 5 and 6.
fn is_asked_first(name: &str, version: u32) {
    let path = format!("%d/libchained{version}.so");
    isolated_with(name, &[("CHAINED", "%d"), ("RINGFENCE_CHAIN_TUNER", &path)], |dir| {
        let downstream = Downstream::new(version);
        downstream.behave("ZERO=1 2\nCHANNELS=6\n");
        dir.put("one.bpf.o", policy("chain", &["ADD=1"]));
        for ours in [6, 4] {
            let plugin = Plugin::open_version(so(), ours).unwrap();
            let mut comm = init(&plugin);
            let called = version <= ours;
            let want = if called { (with(&[(5, 0.0)]), 7) } else { (table(), 1) };
            assert_eq!(ask(&mut comm), want, "below ours v{ours}");
            comm.finalize();
            let calls = downstream.calls();
            let lines: Vec<&str> = calls.lines().filter(|l| !l.starts_with("comm")).collect();
            let get =
                if version == 2 { "get 4 1048576 collnet 0 nvls 0" } else { "get 4 1048576 7x3 channels 0" };
            let want = if called { vec!["init 8 2", get, "finalize"] } else { vec![] };
            assert_eq!(lines, want, "below ours v{ours}");
            if called && version >= 5 {
                assert!(calls.contains("comm 77 domains 2 first 0\n"), "{calls}");
            }
        }
        assert!(take_log().iter().any(|l| l.text == "the chained tuner begins"), "it has NCCL's own logger");
    });
}

macro_rules! versions {
    ($($name:ident: $version:literal,)*) => {
        $(#[test]
        fn $name() {
            is_asked_first(stringify!($name), $version);
        })*
    };
}

versions! {
    a_downstream_tuner_v2_is_asked_first: 2,
    a_downstream_tuner_v3_is_asked_first: 3,
    a_downstream_tuner_v4_is_asked_first: 4,
    a_downstream_tuner_v5_is_asked_first: 5,
    a_downstream_tuner_v6_is_asked_first: 6,
}

#[test]
fn the_policies_have_the_last_word_over_a_downstream_tuner() {
    let name = "the_policies_have_the_last_word_over_a_downstream_tuner";
    isolated_with(name, &[("CHAINED", "%d"), ("RINGFENCE_CHAIN_TUNER", "%d/libchained6.so")], |dir| {
        let downstream = Downstream::new(6);
        // Away from Tree, which the downstream tuner wants, to Ring/LL.
        dir.put("p.bpf.o", policy("chain", &["ADD=1", "AWAY_FROM=0"]));
        let plugin = Plugin::open(so()).unwrap();
        let outcome = |settings: &str| {
            downstream.behave(settings);
            let mut comm = init(&plugin);
            let (table, channels) = ask(&mut comm);
            (table, channels, comm.get_chunk_size(4, 1 << 20, 1, 2, 1, 65_536))
        };
        let nccl = (table(), 1, 65_536);
        assert_eq!(outcome(""), nccl, "it has no opinion");
        assert_eq!(outcome("ZERO=0 2\nCHANNELS=6\n"), (with(&[(3, 0.0)]), 7, 65_536));
        // The policy keeps Ring/Simple, so NCCL gets the plugin's whole table. What it disables becomes expensive, not
        // negative: NCCL 2.32 would take -1 for the best.
        assert_eq!(outcome("SET=1 2 7.5\n"), (with(&[(5, 7.5)]), 1, 65_536));
        assert_eq!(outcome("SET=0 1 -1\n"), (with(&[(1, 1e30)]), 1, 65_536));
        // It may not revive what NCCL does not offer, nor ask for channels that NCCL does not have, nor fail the collective.
        assert_eq!(outcome("ZERO=4 2\n"), nccl);
        assert_eq!(outcome("CHANNELS=1000\n"), nccl);
        assert_eq!(outcome("CHANNELS=-3\n"), nccl);
        assert_eq!(outcome("ZERO=1 0\nRC=3\n"), nccl);
        // Chunk sizes: its own count, in whole grains, also above NCCL's.
        assert_eq!(outcome("CHUNK=1000\n").2, 512);
        assert_eq!(outcome("CHUNK=1\n").2, 512);
        assert_eq!(outcome("CHUNK=131072\n").2, 131_072);
        // A plugin that cannot begin leaves the policies alone in the chain.
        assert_eq!(outcome("INIT_RC=3\nZERO=0 2\n"), nccl);
        assert!(
            take_log().iter().any(|l| l.level == 2 && l.text.contains("Chained failed to begin (code 3)"))
        );
        assert!(downstream.calls().contains("finalize"));
    });
}

fn leaves_the_policies_alone(name: &str, chained: &str, why: &str) {
    isolated_with(name, &[("RINGFENCE_CHAIN_TUNER", chained)], |dir| {
        dir.put("one.bpf.o", policy("chain", &["ADD=1"]));
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        assert_eq!(ask(&mut comm), (table(), 1));
        let lines = take_log();
        assert!(lines.iter().any(|l| l.level == 2 && l.text.contains(why)), "{lines:?}");
    });
}

#[test]
fn a_downstream_tuner_that_is_missing_is_said() {
    leaves_the_policies_alone("a_downstream_tuner_that_is_missing_is_said", "/nowhere/x.so", "cannot open");
}

#[test]
fn ringfence_is_not_chained_to_itself() {
    let path = so();
    leaves_the_policies_alone(
        "ringfence_is_not_chained_to_itself",
        path.to_str().unwrap(),
        "it is Ringfence itself",
    );
}

#[test]
fn a_library_without_a_tuner_is_said() {
    leaves_the_policies_alone(
        "a_library_without_a_tuner_is_said",
        "libc.so.6",
        "exports no tuner of version 2 to 6",
    );
}

fn ringfence(args: &[&std::ffi::OsStr], env: &[(&str, &str)]) -> (i32, String) {
    let output = Command::new(ringfence_tests::built::dir().join("ringfence"))
        .args(args)
        .env_remove("RINGFENCE_POLICY")
        .envs(env.iter().copied())
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn chain_show_lists_policies_in_the_order_in_which_they_are_asked() {
    let dir = PolicyDir::new();
    dir.put("halves.bpf.o", policy("halves", &[]));
    dir.put("one.bpf.o", policy("chain", &[]));
    manifest(&dir, &["one.bpf.o", "halves.bpf.o"], "[maps.seen]\nscope = 'communicator'\n");
    let show = ["chain".as_ref(), "show".as_ref(), dir.path().as_os_str(), "--json".as_ref()];
    let (code, text) = ringfence(&show[..3], &[("RINGFENCE_CHAIN_TUNER", "aws-ofi")]);
    assert_eq!(code, 0, "{text}");
    let tuner =
        text.split("\n\n").find(|part| part.starts_with("tuner\n")).unwrap_or_else(|| panic!("{text}"));
    let lines: Vec<&str> = tuner.lines().map(str::trim).collect();
    assert_eq!(lines[1], "first: RINGFENCE_CHAIN_TUNER=aws-ofi (native code, not confined)");
    assert!(lines[3].starts_with("1  one ") && lines[3].ends_with("seen (communicator)"), "{text}");
    assert!(lines[4].starts_with("2  halves.decide "), "{text}");
    assert!(
        text.lines().any(|l| l.contains("tuner/chunk/half") && l.ends_with("shared (process)")),
        "{text}"
    );
    assert_eq!(lines.len(), 5);

    let (code, text) = ringfence(&show, &[]);
    assert_eq!(code, 0, "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let hooks: Vec<_> =
        json["hooks"].as_array().unwrap().iter().map(|h| h["hook"].as_str().unwrap()).collect();
    assert_eq!(hooks, ["tuner", "tuner/chunk", "tuner/init"]);
    assert_eq!(json["hooks"][0]["policies"][1]["program"], "decide");
    assert_eq!(json["hooks"][0]["policies"][1]["place"], 3, "after the object's programs in their order");
    assert!(json["hooks"][0]["first"].is_null());

    dir.put("one.bpf.o", "not an object");
    let (code, text) = ringfence(&show[..3], &[]);
    assert_eq!(code, 1);
    assert!(text.starts_with("refused: one.bpf.o: "), "{text}");
}
