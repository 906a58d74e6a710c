//! The built plugin as NCCL's profiler, driven through its exported symbols in every version, each test in a process of its own. What
//! policies saw is read through the plugin's tuner (tests/c/policies/samples.bpf.c). The oddities of NCCL that need no second
//! library are tested one by one in host/src/profiler/tests.rs.

mod plugin;

use plugin::{PolicyDir, c_program, isolated, isolated_with, policy, so, threads, wait_for};
use ringfence_host::ffi::driver::{CollEvent, Comm, Plugin, Profiler, ProfilerComm, Start, Table, take_log};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::sync_channel;

const ALL_REDUCE: u32 = 4;
const COLL_AND_KERNELS: u32 = 0x42;

/// Fields of samples.bpf.c.
const SAMPLES: u64 = 0;
const DURATION: u64 = 1;
const SEQ: u64 = 3;
const TIMING: u64 = 11;
const SUM: u64 = 18;

/// The count of an event: type is the number of its bit; actions start, stop, state.
fn events(kind: u64, action: u64) -> u64 {
    32 + 3 * kind + action
}

/// The plugin's tuner, that answers what the policy has seen.
struct Oracle(Comm);

impl Oracle {
    fn new() -> Oracle {
        let (comm, code) = Plugin::open(so()).unwrap().init(1, 1, 1);
        assert_eq!(code, 0);
        Oracle(comm)
    }

    fn field(&mut self, field: u64) -> u64 {
        (0..16).fold(0, |value, nibble| {
            let mut costs = vec![-1.0; 21];
            costs[..6].fill(1.0);
            let mut table = Table::new(7, 3, costs);
            let question = (field << 8 | nibble) as usize;
            let (code, channels) = self.0.get_coll_info(ALL_REDUCE as i32, question, 1, &mut table, false);
            assert_eq!(code, 0);
            assert!((1..=16).contains(&channels), "no policy answers");
            value | (channels as u64 - 1) << (4 * nibble)
        })
    }
}

fn put_samples(dir: &PolicyDir, events: &str) {
    let define: &[&str] = if events.is_empty() { &[] } else { &["EVENT_HOOK"] };
    let list = if events.is_empty() { String::new() } else { format!("events = [{events}]\n") };
    dir.put("samples.bpf.o", policy("samples", define));
    dir.put("ringfence.toml", format!("[[policy]]\nfile = 'samples.bpf.o'\n{list}"));
}

fn open(version: u32) -> Profiler {
    let profiler = Profiler::open_version(so(), version).unwrap();
    assert_eq!((profiler.version(), profiler.name()), (version, "Ringfence"));
    profiler
}

fn init(profiler: &Profiler) -> ProfilerComm {
    let comm = profiler.init(0xabc, 1, 2, 1, "tp");
    assert_eq!(comm.init_result(), 0);
    assert!(comm.has_context());
    comm
}

fn coll(seq: u64, duration: u64) -> CollEvent {
    CollEvent {
        func: ALL_REDUCE,
        count: 1 << 20,
        datatype: 7,
        algo: 1,
        proto: 2,
        channels: 4,
        seq,
        start_ns: 1 << 60,
        stop_ns: (1 << 60) + duration,
    }
}

#[test]
fn nccl_finds_every_version() {
    assert_eq!(Profiler::open(so()).unwrap().exported(), [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(Profiler::open(so()).unwrap().version(), 7);
}

#[test]
fn every_version_tells_the_policies_of_a_collective() {
    isolated("every_version_tells_the_policies_of_a_collective", |dir| {
        put_samples(dir, "");
        let mut oracle = Oracle::new();
        for version in 1..=7 {
            let profiler = open(version);
            assert_eq!(profiler.mask(), 0);
            let comm = init(&profiler);
            assert_eq!(profiler.mask(), COLL_AND_KERNELS, "v{version}");
            let before = oracle.field(SAMPLES);
            comm.collective(&coll(70 + u64::from(version), 12_345));
            assert_eq!(oracle.field(SAMPLES), before + 1, "v{version}");
            let [bytes, seq, func, algo, proto, channels] = [2, 3, 4, 5, 6, 7].map(|f| oracle.field(f));
            assert_eq!((bytes, seq, func), (4 << 20, 70 + u64::from(version), 4), "v{version}");
            assert_eq!((algo, proto, channels), (1, 2, 4), "v{version}");
            let timing = oracle.field(TIMING);
            // The GPU's timer since version 4; in version 3 kernels without it; before, nothing but the enqueueing.
            assert_eq!(timing, [2, 2, 1, 0, 0, 0, 0][version as usize - 1], "v{version}");
            if version >= 4 {
                let facts = [8, 9, 10, 13, 14, 15].map(|f| oracle.field(f));
                assert_eq!(oracle.field(DURATION), 12_345, "v{version}");
                assert_eq!(facts, [1, 2, 1, 0xffff_ffff, 0, 0xabc], "v{version}");
                assert_eq!(oracle.field(16), u64::from_le_bytes(*b"tp\0\0\0\0\0\0"));
            }
            assert_eq!(comm.finalize(), 0);
            assert_eq!(profiler.mask(), 0, "v{version}: the last communicator takes our bits along");
        }
    });
}

#[test]
fn a_c_compiler_agrees_on_the_layouts() {
    isolated("a_c_compiler_agrees_on_the_layouts", |dir| {
        put_samples(dir, "'coll', 'proxy_op', 'proxy_step'");
        let program =
            std::env::current_exe().unwrap().with_file_name(format!("profile-{}", std::process::id()));
        c_program("profile.c", &program);
        for version in 4..=7 {
            let output = Command::new(&program).arg(so()).arg(version.to_string()).output().unwrap();
            let out = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "v{version}: {} {out}", output.status);
            let lines: Vec<_> = out.lines().filter(|l| !l.starts_with("LOG ")).collect();
            let name0 = format!("name0 {:#x}", u64::from_le_bytes(*b"tp group"));
            let want = [
                "open Ringfence set mask 0x5a",
                "samples 0x1",
                "duration 0x1328", // 5002 - 98: from the third channel's start to its end
                "bytes 0x1f40",    // four ranks
                "seq 0x29",
                "func 0x3",
                "algo 0x5",
                "proto 0x1",
                "channels 0x3",
                "rank 0x3",
                "ranks 0x4",
                "nodes 0x2",
                "timing 0",
                "element 0x2",
                "peer 0xffffffff",
                "flags 0",
                "comm 0xabc123",
                name0.as_str(),
                "name1 0",
                "step value 0x3039 state 9",
                "ops 1 steps 1 states 1 stops 1",
                // Nothing of the other process' operation: what is seen is the stop of the one before.
                "step value 0 state 4294967295",
                "ops 1 steps 1 states 1 stops 1",
                "codes 0 mask 0",
            ];
            assert_eq!(lines, want, "v{version}");
        }
        let _ = std::fs::remove_file(program);
    });
}

#[test]
fn the_mask_follows_the_policies_in_force() {
    isolated("the_mask_follows_the_policies_in_force", |dir| {
        dir.put("noop.bpf.o", policy("choose", &["ALGO=1", "PROTO=2"]));
        dir.put("ringfence.toml", "[[policy]]\nfile = 'noop.bpf.o'\n");
        let profiler = open(6);
        // NCCL's own, and another party's.
        profiler.set_mask(0x100);
        let comm = init(&profiler);
        assert_eq!(profiler.mask(), 0x100, "no policy wants events");
        comm.collective(&coll(1, 100));
        // A reload in mid-run: there is no call that could take the plan, as nothing is asked for.
        put_samples(dir, "");
        wait_for("the mask", || profiler.mask() == COLL_AND_KERNELS | 0x100);
        let mut oracle = Oracle::new();
        comm.collective(&coll(2, 200));
        assert_eq!((oracle.field(SAMPLES), oracle.field(DURATION)), (1, 200));
        // More events; a collective is enqueued before and ends after.
        let open = comm.enqueue(&coll(3, 300));
        put_samples(dir, "'p2p', 'coll', 'proxy_ctrl'");
        wait_for("the mask", || profiler.mask() == 0x100 | COLL_AND_KERNELS | 0x24);
        comm.kernels(&open);
        assert_eq!((oracle.field(SEQ), oracle.field(DURATION)), (3, 300));
        let ctrl = comm.start(Start::ProxyCtrl, 0);
        comm.stop(ctrl);
        assert_eq!((oracle.field(events(5, 0)), oracle.field(events(5, 1))), (1, 1));
        let send = comm.enqueue_p2p(&CollEvent { func: 6, ..coll(0, 77) }, 9);
        comm.kernels(&send);
        assert_eq!((oracle.field(DURATION), oracle.field(13), oracle.field(4)), (77, 9, 6));
        // And none again.
        dir.put("ringfence.toml", "policy = []\n");
        wait_for("the mask", || profiler.mask() == 0x100);
        assert_eq!(comm.finalize(), 0);
        assert_eq!(profiler.mask(), 0x100);
    });
}

#[test]
fn nobody_asks_for_kernel_phases() {
    isolated("nobody_asks_for_kernel_phases", |dir| {
        put_samples(dir, "'kernel_phase'");
        let profiler = open(7);
        let comm = init(&profiler);
        assert_eq!(profiler.mask(), 0, "the set is refused");
        drop(comm);
        let log = take_log();
        assert!(log.iter().any(|l| l.text.contains("kernel_phase is never asked for")), "{log:?}");
    });
}

#[test]
fn nonsense_is_survived_in_every_version() {
    isolated("nonsense_is_survived_in_every_version", |dir| {
        put_samples(
            dir,
            "'group', 'coll', 'p2p', 'proxy_op', 'proxy_step', 'proxy_ctrl', 'kernel_ch', 'net_plugin', 'group_api', 'coll_api'",
        );
        let mut oracle = Oracle::new();
        for version in 1..=7 {
            let profiler = open(version);
            let comm = init(&profiler);
            assert_eq!(comm.start_null(), [0, 0]);
            let starts = [
                Start::Group,
                Start::Coll(coll(1, 1)),
                Start::P2p { coll: coll(1, 1), peer: -1 },
                Start::ProxyOp { pid: 1, channel: 255, peer: -5, steps: -1, chunk: -1, send: false },
                Start::ProxyStep(-1),
                Start::ProxyCtrl,
                Start::KernelCh { channel: 255, timer: u64::MAX },
                Start::NetPlugin(-1),
                Start::GroupApi { depth: -1 },
                Start::CollApi { func: 99, count: usize::MAX, datatype: 99 },
                Start::CeSync,
                Start::KernelPhase { channel: 200, phase: 3, timer: 0 },
            ];
            for context in [comm.context(), 0, 1, usize::MAX, comm.context() ^ 1] {
                for parent in [0, 1, usize::MAX, comm.context()] {
                    for start in starts {
                        let handle = comm.start_at(context, start, parent, parent);
                        for number in -1..40 {
                            let code = comm.state(handle, number, Some(5)).unwrap_or(0);
                            assert_eq!(code + comm.state(handle, number, None).unwrap_or(0), 0);
                        }
                        assert_eq!(comm.stop(handle) + comm.stop(handle), 0);
                    }
                }
            }
            // Afterwards all is as it was.
            let before = oracle.field(SAMPLES);
            comm.collective(&coll(5, 50));
            assert_eq!(oracle.field(SAMPLES), before + 1, "v{version}");
            // After finalize every handle is stale.
            let late = comm.enqueue(&coll(6, 60));
            let context = comm.context();
            assert_eq!(comm.finalize(), 0);
            let again = init(&profiler);
            assert_ne!(again.context(), context);
            again.kernels(&late);
            assert_eq!(again.start_at(context, Start::Coll(coll(1, 1)), 0, 0) & 1, 0);
            assert_eq!(oracle.field(SAMPLES), before + 1 + u64::from(version < 3), "v{version}");
        }
    });
}

#[test]
fn two_ranks_of_a_process_share_an_id() {
    isolated("two_ranks_of_a_process_share_an_id", |dir| {
        put_samples(dir, "");
        const EACH: u64 = 2000;
        let mut oracle = Oracle::new();
        let profiler = open(6);
        let ranks: Vec<_> = (0..2).map(|rank| profiler.init(0xabc, rank, 2, 1, "")).collect();
        assert_ne!(ranks[0].context(), ranks[1].context());
        // Each rank has an application thread and a proxy thread.
        std::thread::scope(|scope| {
            for comm in &ranks {
                let (send, receive) = sync_channel(16);
                scope.spawn(move || {
                    for seq in 0..EACH {
                        send.send(comm.enqueue(&coll(seq, 1000 + seq))).unwrap();
                    }
                });
                scope.spawn(move || receive.iter().for_each(|e| comm.kernels(&e)));
            }
        });
        let sum: u64 = (0..EACH).map(|seq| 1000 + seq).sum();
        ranks.into_iter().for_each(drop);
        assert_eq!((oracle.field(SAMPLES), oracle.field(SUM)), (2 * EACH, 2 * sum));
    });
}

/// A process that asks for events in windows.
#[test]
fn events_are_sampled_in_windows() {
    isolated_with("events_are_sampled_in_windows", &[("RINGFENCE_PROFILER_SAMPLE", "40/120")], |dir| {
        put_samples(dir, "");
        let mut oracle = Oracle::new();
        let profiler = open(6);
        let comm = init(&profiler);
        // A thread gives itself its name.
        wait_for("the ticker", || threads(Some("ringfence-prof")) == 1);
        // A window closes between enqueueing and kernels: the collective is told of all the same.
        for seq in 0..3 {
            wait_for("a window", || profiler.mask() == COLL_AND_KERNELS);
            let open = comm.enqueue(&coll(seq, 500 + seq));
            wait_for("its end", || profiler.mask() == 0);
            comm.kernels(&open);
            if open.handle() != 0 {
                assert_eq!((oracle.field(SEQ), oracle.field(DURATION)), (seq, 500 + seq));
            }
        }
        assert!(oracle.field(SAMPLES) >= 1);
        drop(comm);
        // It was joined; it may be listed for a moment longer.
        wait_for("its end", || threads(Some("ringfence-prof")) == 0);
        assert_eq!(profiler.mask(), 0);
    });
}

#[test]
fn a_wrong_window_is_told_and_ignored() {
    isolated_with("a_wrong_window_is_told_and_ignored", &[("RINGFENCE_PROFILER_SAMPLE", "50/10")], |dir| {
        put_samples(dir, "");
        let profiler = open(6);
        let _comm = init(&profiler);
        assert_eq!(profiler.mask(), COLL_AND_KERNELS);
        assert!(take_log().iter().any(|l| l.text.contains("RINGFENCE_PROFILER_SAMPLE=50/10: must be")));
    });
}

/// Builds the downstream profiler where the environment says that it is.
fn downstream(version: u32, flags: &[&str]) -> PathBuf {
    let path = PathBuf::from(std::env::var_os("RINGFENCE_CHAIN_PROFILER").unwrap());
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("c/downstream.c");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc)
        .args(["-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-DVERSION={version}"))
        .args(flags)
        .arg("-o")
        .arg(&path)
        .arg(source)
        .arg("-lpthread")
        .status()
        .unwrap();
    assert!(status.success());
    path
}

fn downstream_log() -> Vec<String> {
    let text = std::fs::read_to_string(std::env::var_os("DOWNSTREAM_LOG").unwrap()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn chained(name: &str, mask: &str, body: impl FnOnce(&PolicyDir)) {
    let env = [
        ("RINGFENCE_CHAIN_PROFILER", "%d/down.so"),
        ("DOWNSTREAM_LOG", "%d/down.log"),
        ("DOWNSTREAM_MASK", mask),
    ];
    isolated_with(name, &env, body);
}

#[test]
fn a_downstream_profiler_gets_everything_at_its_own_version() {
    // (NCCL's version with us, the downstream's): the same, and every step down.
    for (ours, theirs) in [(6, 6), (5, 5), (4, 4), (7, 7), (7, 6), (6, 5), (7, 4)] {
        chained_at(ours, theirs);
    }
}

/// Runs the child once for each pair of versions, which it finds in its environment.
fn chained_at(ours: u32, theirs: u32) {
    const VERSIONS: &str = "PROFILER_TEST_VERSIONS";
    if std::env::var_os("RINGFENCE_TEST_DIR").is_none() {
        let env = [
            ("RINGFENCE_CHAIN_PROFILER", "%d/down.so"),
            ("DOWNSTREAM_LOG", "%d/down.log"),
            ("DOWNSTREAM_MASK", "0x142"),
            (VERSIONS, &format!("{ours} {theirs}")),
        ];
        isolated_with("a_downstream_profiler_gets_everything_at_its_own_version", &env, |_| {});
        return;
    }
    if std::env::var(VERSIONS).unwrap() != format!("{ours} {theirs}") {
        return;
    }
    isolated("", |dir| {
        put_samples(dir, "");
        downstream(theirs, &[]);
        let mut oracle = Oracle::new();
        let profiler = open(ours);
        let comm = init(&profiler);
        assert_eq!(profiler.mask(), 0x142, "both masks together");
        let log = take_log();
        let told = format!("chains profiler downstream (v{theirs}) behind ours (v{ours})");
        assert!(log.iter().any(|l| l.text.contains(&told)), "{log:?}");
        let open = comm.enqueue(&coll(17, 640));
        // Doubled, as NCCL does it: the downstream profiler is spared.
        comm.stop(open.handle());
        comm.kernels(&open);
        assert_eq!((oracle.field(SAMPLES), oracle.field(DURATION)), (1, 640), "ours works as ever");
        assert_eq!(comm.finalize(), 0);
        assert_eq!(profiler.mask(), 0);
        let lines = downstream_log();
        assert!(lines.iter().all(|l| !l.contains("BAD")), "v{ours} on v{theirs}: {lines:#?}");
        let named = u8::from(ours >= 4);
        assert_eq!(lines[0], format!("init rank 1 comm {} named {named} mask 322", 0xabc));
        let starts: Vec<_> = lines.iter().filter(|l| l.starts_with("start")).collect();
        let coll_line = starts.iter().find(|l| l.contains("type 2 ")).unwrap();
        assert!(coll_line.ends_with("seq 17 channels 4"), "{coll_line}");
        let number = coll_line.split(' ').nth(1).unwrap();
        // Its parent is the API call, or up to version 4 the group.
        let parent = coll_line.split(' ').nth(5).unwrap();
        let kind = if theirs >= 5 { "type 512" } else { "type 1 " };
        let parent_line = starts.iter().find(|l| l.starts_with(&format!("start {parent} "))).unwrap();
        assert!(parent_line.contains(kind), "v{ours} on v{theirs}: {parent_line}");
        let kernels: Vec<_> = starts.iter().filter(|l| l.contains("type 64")).collect();
        assert_eq!(kernels.len(), 4, "{lines:#?}");
        for (channel, line) in kernels.iter().enumerate() {
            let timer = (1u64 << 60) + channel as u64;
            assert!(line.ends_with(&format!("parent {number} channel {channel} timer {timer}")), "{line}");
        }
        let last = (1u64 << 60) + 640;
        assert!(lines.iter().any(|l| l.starts_with("state") && l.ends_with(&format!("value {last}"))));
        let stops = lines.iter().filter(|l| l.starts_with("stop")).count();
        assert_eq!(stops, starts.len(), "each start has one stop: {lines:#?}");
        assert_eq!(lines.last().unwrap(), "finalize rank 1");
        assert_eq!(starts.iter().any(|l| l.contains("type 256")), theirs >= 5 && ours >= 5);
    });
}

#[test]
fn a_downstream_profiler_flips_its_mask_as_it_likes() {
    chained("a_downstream_profiler_flips_its_mask_as_it_likes", "0x2", |dir| {
        dir.put("ringfence.toml", "policy = []\n");
        downstream(6, &[]);
        let profiler = open(6);
        let comm = init(&profiler);
        assert_eq!(profiler.mask(), 2, "we ask for nothing");
        comm.collective(&coll(1, 5));
        comm.collective(&coll(999, 5));
        wait_for("its mask", || profiler.mask() == 0);
        comm.collective(&coll(2, 5));
        put_samples(dir, "");
        wait_for("ours", || profiler.mask() == COLL_AND_KERNELS);
        comm.collective(&coll(3, 5));
        drop(comm);
        let lines = downstream_log();
        let colls: Vec<_> = lines.iter().filter(|l| l.contains("type 2 ")).collect();
        assert_eq!(colls.len(), 2, "what it does not ask for it does not get: {lines:#?}");
        assert!(lines.iter().all(|l| !l.contains("BAD")), "{lines:#?}");
    });
}

#[test]
fn a_downstream_profiler_that_fails_leaves_ours_working() {
    for name in ["fails", "is_newer", "is_missing", "is_ourselves"] {
        failing(name);
    }
}

fn failing(how: &str) {
    const HOW: &str = "PROFILER_TEST_HOW";
    let ourselves = so();
    if std::env::var_os("RINGFENCE_TEST_DIR").is_none() {
        let chain = if how == "is_ourselves" { ourselves.to_str().unwrap() } else { "%d/down.so" };
        let env = [("RINGFENCE_CHAIN_PROFILER", chain), ("DOWNSTREAM_LOG", "%d/log"), (HOW, how)];
        isolated_with("a_downstream_profiler_that_fails_leaves_ours_working", &env, |_| {});
        return;
    }
    if std::env::var(HOW).unwrap() != how {
        return;
    }
    isolated("", |dir| {
        put_samples(dir, "");
        let told = match how {
            "fails" => {
                downstream(6, &["-DFAIL"]);
                "the chained profiler downstream failed to start (2)"
            }
            "is_newer" => {
                downstream(7, &[]);
                "it has no profiler below version 7, and this NCCL speaks version 6"
            }
            "is_missing" => "cannot open shared object file",
            _ => "that is Ringfence itself",
        };
        let mut oracle = Oracle::new();
        let profiler = open(6);
        let comm = init(&profiler);
        let log = take_log();
        assert!(log.iter().any(|l| l.level == 2 && l.text.contains(told)), "{how}: {log:?}");
        assert_eq!(profiler.mask(), COLL_AND_KERNELS);
        comm.collective(&coll(1, 321));
        assert_eq!((oracle.field(SAMPLES), oracle.field(DURATION)), (1, 321), "{how}");
        assert_eq!(comm.finalize(), 0);
    });
}

/// The tuner of a rank finds the maps of its own rank's profiler: scope communicator, two ranks with one id.
#[test]
fn the_tuner_of_a_rank_sees_its_own_profiler() {
    isolated("the_tuner_of_a_rank_sees_its_own_profiler", |dir| {
        dir.put("samples.bpf.o", policy("samples", &[]));
        dir.put(
            "ringfence.toml",
            "[[policy]]\nfile = 'samples.bpf.o'\n[maps.seen]\nscope = 'communicator'\n",
        );
        let profiler = open(6);
        let tuner = Plugin::open_version(so(), 6).unwrap();
        // As commInitRank does: the profiler's init, then the tuner's, on one thread for each rank.
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                std::thread::scope(|scope| {
                    scope
                        .spawn(|| {
                            let prof = profiler.init(0xabc, rank, 2, 1, "");
                            (prof, Oracle(tuner.init(2, 1, 0xabc).0))
                        })
                        .join()
                        .unwrap()
                })
            })
            .collect();
        for (rank, (comm, _)) in ranks.iter().enumerate() {
            for _ in 0..=rank {
                comm.collective(&coll(rank as u64, 100 * (rank as u64 + 1)));
            }
        }
        for (rank, (comm, mut oracle)) in ranks.into_iter().enumerate() {
            let want = (rank as u64 + 1, 100 * (rank as u64 + 1), rank as u64);
            let got = (oracle.field(SAMPLES), oracle.field(DURATION), oracle.field(8));
            assert_eq!(got, want, "rank {rank}");
            drop(comm);
        }
    });
}

#[test]
fn the_collectives_of_a_short_job_are_in_its_metrics() {
    let env = [("RINGFENCE_METRICS_FILE", "%d/short.prom"), ("RINGFENCE_METRICS_INTERVAL", "3600")];
    isolated_with("the_collectives_of_a_short_job_are_in_its_metrics", &env, |dir| {
        put_samples(dir, "");
        let file = PathBuf::from(std::env::var_os("RINGFENCE_METRICS_FILE").unwrap());
        let profiler = open(6);
        // Two communicators, one after the other, in one place; the host ends with each.
        for (seq, duration) in [(1, 10_000), (2, 30_000)] {
            let comm = init(&profiler);
            comm.collective(&coll(seq, duration));
            comm.collective(&coll(seq + 1, duration));
            assert_eq!(comm.finalize(), 0);
            let text = std::fs::read_to_string(&file).unwrap();
            let mut means = text.lines().filter(|l| l.starts_with("nccl_collective_exec_time_microseconds{"));
            let line = means.next().unwrap_or_else(|| panic!("no collective is told of:\n{text}"));
            assert!(
                line.contains("collective=\"AllReduce\"") && line.contains("algo_proto=\"RING_SIMPLE\""),
                "{line}"
            );
            let mean: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert_eq!(mean, duration as f64 / 1000.0, "each is told once");
            assert_eq!(means.next(), None, "{text}");
        }
    });
}
