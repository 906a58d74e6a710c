//! Hot reload of the built plugin, driven through its symbols in a process of its own for each test: under load, with
//! maps, with bad sets, and with communicators of several ranks.

mod plugin;

use plugin::{PolicyDir, isolated, policy, so, threads, wait_for};
use ringfence_host::ffi::driver::{Comm, LogLine, Plugin, Table, take_log};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ALL_REDUCE: i32 = 4;
/// The pair that NCCL would choose in [`table`] by itself.
const NCCL_S: (usize, usize) = (0, 1);

fn table() -> Table {
    let mut costs = vec![-1.0; 21];
    costs[..6].copy_from_slice(&[30.0, 20.0, 40.0, 35.0, 45.0, 25.0]);
    Table::new(7, 3, costs)
}

/// What NCCL would do after asking: the pair, and the channels.
type Outcome = ((usize, usize), i32);

fn ask(comm: &mut Comm) -> Outcome {
    let mut table = table();
    let (code, channels) = comm.get_coll_info(ALL_REDUCE, 1 << 20, 1, &mut table, false);
    assert_eq!(code, 0);
    (table.choice().unwrap(), channels)
}

fn open() -> Plugin {
    let plugin = Plugin::open(so()).unwrap();
    assert_eq!((plugin.version(), plugin.name()), (6, "Ringfence"));
    assert_eq!(plugin.exported(), [6, 5, 4, 3, 2]);
    plugin
}

fn init(plugin: &Plugin, ranks: usize) -> Comm {
    let (comm, code) = plugin.init(ranks, 1, 7);
    assert_eq!(code, 0);
    comm
}

fn choose(algo: u32, proto: u32, channels: u32) -> Vec<u8> {
    policy("choose", &[&format!("ALGO={algo}"), &format!("PROTO={proto}"), &format!("CHANNELS={channels}")])
}

/// Takes log lines until one contains `text`.
fn wait_for_log(text: &str) -> LogLine {
    let mut found = None;
    wait_for(text, || {
        found = take_log().into_iter().find(|l| l.text.contains(text));
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn four_threads_lose_no_call_and_see_old_or_new() {
    isolated("four_threads_lose_no_call_and_see_old_or_new", |dir| {
        const THREADS: usize = 4;
        const RELOADS: usize = 12;
        let objects = [choose(1, 2, 4), choose(0, 0, 8)];
        let outcomes: [Outcome; 2] = [((1, 2), 4), ((0, 0), 8)];
        dir.put("p.bpf.o", &objects[0]);
        let plugin = open();
        let stop = AtomicBool::new(false);
        let seen: [AtomicUsize; THREADS] = [const { AtomicUsize::new(0) }; THREADS];
        let totals = std::thread::scope(|scope| {
            let workers: Vec<_> = seen
                .iter()
                .map(|seen| {
                    let (plugin, stop) = (&plugin, &stop);
                    scope.spawn(move || work(init(plugin, 1), outcomes, seen, stop))
                })
                .collect();
            for reload in 1..=RELOADS {
                let side = reload % 2;
                dir.put("p.bpf.o", &objects[side]);
                wait_for("all threads to see the new policy", || {
                    seen.iter().all(|s| s.load(Ordering::Relaxed) == side)
                });
            }
            stop.store(true, Ordering::Relaxed);
            workers.into_iter().map(|w| w.join().unwrap()).collect::<Vec<_>>()
        });
        for (calls, switches, worst) in totals {
            println!("{calls} calls, {switches} switches, slowest call {worst:?}");
            assert_eq!(switches, RELOADS, "each reload is one switch: never back to the old policy");
            assert!(calls > RELOADS);
        }
    });
}

/// Asks until told to stop; returns calls, switches and the slowest call. Panics at any outcome that is neither.
fn work(
    mut comm: Comm,
    outcomes: [Outcome; 2],
    seen: &AtomicUsize,
    stop: &AtomicBool,
) -> (usize, usize, Duration) {
    let (mut calls, mut switches, mut worst) = (0, 0, Duration::ZERO);
    let mut current = 0;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let outcome = ask(&mut comm);
        worst = worst.max(start.elapsed());
        calls += 1;
        let side =
            outcomes.iter().position(|o| *o == outcome).unwrap_or_else(|| panic!("lost call: {outcome:?}"));
        if side != current {
            current = side;
            switches += 1;
        }
        seen.store(side, Ordering::Relaxed);
    }
    assert_eq!(comm.finalize(), 0);
    (calls, switches, worst)
}

#[test]
fn maps_of_the_same_shape_keep_their_contents() {
    isolated("maps_of_the_same_shape_keep_their_contents", |dir| {
        dir.put("p.bpf.o", policy("count", &["ALGO=1"]));
        let plugin = open();
        let mut comm = init(&plugin, 1);
        for n in 1..=5 {
            assert_eq!(ask(&mut comm), ((1, 2), n));
        }
        dir.put("p.bpf.o", policy("count", &["ALGO=0"]));
        let mut calls = 5;
        wait_for("the new policy", || {
            calls += 1;
            let ((algo, _), n) = ask(&mut comm);
            assert_eq!(n, calls.min(60), "no call was lost and the count went on");
            algo == 0
        });
        // Another shape: refused, and the policy in force counts on.
        take_log();
        dir.put("p.bpf.o", policy("count", &["ALGO=1", "ENTRIES=2"]));
        let line = wait_for_log("map calls is in use as array(key 4, value 8, 1 entries)");
        assert_eq!(line.level, 2);
        assert_eq!(ask(&mut comm), ((0, 2), (calls + 1).min(60)));
        // With leave to reset, the count starts anew.
        dir.put("ringfence.toml", "[[policy]]\nfile = 'p.bpf.o'\n[maps.calls]\nreset = true\n");
        wait_for("the reset", || ask(&mut comm) == ((1, 2), 1));
        assert_eq!(ask(&mut comm), ((1, 2), 2));
        // Process scope: a second communicator shares the map, which also outlives both.
        let mut other = init(&plugin, 2);
        assert_eq!(ask(&mut other), ((1, 2), 3));
        drop((comm, other));
        assert_eq!(ask(&mut init(&plugin, 2)), ((1, 2), 4));
    });
}

#[test]
fn maps_of_a_communicator_are_its_own() {
    isolated("maps_of_a_communicator_are_its_own", |dir| {
        dir.put("p.bpf.o", policy("count", &["ALGO=1"]));
        dir.put("ringfence.toml", "[[policy]]\nfile = 'p.bpf.o'\n[maps.calls]\nscope = 'communicator'\n");
        let plugin = open();
        let (mut a, mut b) = (init(&plugin, 1), init(&plugin, 2));
        assert_eq!([ask(&mut a).1, ask(&mut a).1, ask(&mut b).1, ask(&mut a).1], [1, 2, 1, 3]);
        dir.put("p.bpf.o", policy("count", &["ALGO=0"]));
        let mut calls = 3;
        wait_for("the new policy", || {
            calls += 1;
            let ((algo, _), n) = ask(&mut a);
            assert_eq!(n, calls.min(60));
            algo == 0
        });
    });
}

#[test]
fn a_bad_set_changes_nothing_and_says_why() {
    isolated("a_bad_set_changes_nothing_and_says_why", |dir| {
        let good = choose(1, 2, 4);
        dir.put("p.bpf.o", &good);
        let plugin = open();
        let mut comm = init(&plugin, 1);
        assert_eq!(ask(&mut comm), ((1, 2), 4));
        take_log();
        let bad: [(&str, Vec<u8>, &str); 3] = [
            ("q.bpf.o", policy("refused", &[]), "q.bpf.o: reject[null-deref] refused@"),
            ("q.bpf.o", b"nonsense".to_vec(), "q.bpf.o: "),
            ("ringfence.toml", b"[[policy]]\nfile = 'gone.bpf.o'\n".to_vec(), "gone.bpf.o: no such file"),
        ];
        for (name, contents, reason) in bad {
            dir.put(name, contents);
            let line = wait_for_log(reason);
            assert_eq!(line.level, 2, "{line:?}");
            assert!(
                line.text.starts_with("Ringfence: policy refused, still in force: p sha256:"),
                "{line:?}"
            );
            assert_eq!(ask(&mut comm), ((1, 2), 4));
            assert_eq!(ask(&mut init(&plugin, 1)), ((1, 2), 4), "new communicators get the policy in force");
        }
        dir.put("ringfence.toml", "[[policy]]\nfile = 'p.bpf.o'\n");
        dir.put("p.bpf.o", choose(0, 2, 6));
        wait_for("the good set", || ask(&mut comm) == ((0, 2), 6));
        // An empty chain is a set like any other.
        dir.put("ringfence.toml", "policy = []\n");
        wait_for("no policy", || ask(&mut comm) == (NCCL_S, 0));
    });
}

#[test]
fn a_process_that_starts_badly_takes_the_first_good_set() {
    isolated("a_process_that_starts_badly_takes_the_first_good_set", |dir| {
        let plugin = open();
        let mut comm = init(&plugin, 1);
        assert_eq!(ask(&mut comm), (NCCL_S, 0));
        assert_eq!(wait_for_log("holds neither ringfence.toml nor any *.bpf.o").level, 2);
        dir.put("p.bpf.o", choose(1, 2, 4));
        wait_for("the first policy", || ask(&mut comm) == ((1, 2), 4));
    });
}

#[test]
fn ranks_keep_their_plan_and_new_communicators_take_the_new_one() {
    isolated("ranks_keep_their_plan_and_new_communicators_take_the_new_one", |dir| {
        dir.put("p.bpf.o", choose(1, 2, 4));
        let plugin = open();
        let (mut old, mut alone) = (init(&plugin, 2), init(&plugin, 1));
        let log: Vec<String> = take_log().into_iter().map(|l| l.text).collect();
        let line = |end: &str| {
            log.iter()
                .filter(|l| l.starts_with("Ringfence 0.1.0: policy p sha256:") && l.ends_with(end))
                .count()
        };
        assert_eq!(
            line(", hook tuner, comm 0x7, 2 ranks; hot reload: new communicators only (2 ranks)"),
            1,
            "{log:?}"
        );
        assert_eq!(line(", hook tuner, comm 0x7, 1 ranks; hot reload: on"), 1, "{log:?}");
        dir.put("p.bpf.o", choose(0, 0, 8));
        wait_for("the lone rank", || ask(&mut alone) == ((0, 0), 8));
        let line = wait_for_log("1 endpoints take it at their next call, 1 keep theirs");
        assert_eq!(line.level, 3);
        for _ in 0..100 {
            assert_eq!(ask(&mut old), ((1, 2), 4));
        }
        assert_eq!(ask(&mut init(&plugin, 2)), ((0, 0), 8));
        assert_eq!(ask(&mut old), ((1, 2), 4));
    });
}

#[test]
fn kubernetes_swaps_and_replaced_directories_are_followed() {
    isolated("kubernetes_swaps_and_replaced_directories_are_followed", |dir| {
        let version = |name: &str, object: Vec<u8>| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("p.bpf.o"), object).unwrap();
            std::os::unix::fs::symlink(name, dir.path().join("..data_tmp")).unwrap();
            std::fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        };
        version("..2026_1", choose(1, 2, 4));
        std::os::unix::fs::symlink("..data/p.bpf.o", dir.path().join("p.bpf.o")).unwrap();
        let plugin = open();
        let mut comm = init(&plugin, 1);
        assert_eq!(ask(&mut comm), ((1, 2), 4));
        version("..2026_2", choose(0, 2, 5));
        std::fs::remove_dir_all(dir.path().join("..2026_1")).unwrap();
        wait_for("the swap", || ask(&mut comm) == ((0, 2), 5));
        // The whole directory is replaced.
        let away = dir.path().with_extension("away");
        let fresh = PolicyDir::new();
        fresh.put("p.bpf.o", choose(1, 0, 6));
        std::fs::rename(dir.path(), &away).unwrap();
        std::fs::rename(fresh.path(), dir.path()).unwrap();
        wait_for("the new directory", || ask(&mut comm) == ((1, 0), 6));
        std::fs::remove_dir_all(away).unwrap();
        dir.put("p.bpf.o", choose(1, 2, 7));
        wait_for("the new directory's own changes", || ask(&mut comm) == ((1, 2), 7));
    });
}

#[test]
fn a_faulting_policy_is_reported_once_and_can_be_replaced() {
    isolated("a_faulting_policy_is_reported_once_and_can_be_replaced", |dir| {
        dir.put("ringfence.toml", "[[policy]]\nfile = 'p.bpf.o'\n[limits]\nfuel = 1000\n");
        dir.put("p.bpf.o", policy("spin", &[]));
        let plugin = open();
        let mut comm = init(&plugin, 1);
        for _ in 0..50 {
            assert_eq!(ask(&mut comm), (NCCL_S, 0));
        }
        let line = wait_for_log("policy p faulted at call 0 on comm 0x7 and was skipped: out of fuel");
        assert_eq!(line.level, 2);
        dir.put("p.bpf.o", choose(1, 2, 4));
        wait_for("the replacement", || ask(&mut comm) == ((1, 2), 4));
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!take_log().iter().any(|l| l.text.contains("faulted")), "reported once");
    });
}

#[test]
fn one_thread_serves_all_communicators_and_ends_with_the_last() {
    isolated("one_thread_serves_all_communicators_and_ends_with_the_last", |dir| {
        dir.put("p.bpf.o", choose(1, 2, 4));
        let plugin = open();
        let before = threads(None);
        let comms: Vec<_> = (0..8).map(|_| init(&plugin, 1)).collect();
        wait_for("the thread", || threads(Some("ringfence")) == 1);
        assert_eq!(threads(None), before + 1);
        drop(comms);
        wait_for("the end of the thread", || threads(None) == before);
        assert_eq!(threads(Some("ringfence")), 0);
    });
}

#[test]
fn communicators_come_and_go_on_many_threads_during_reloads() {
    isolated("communicators_come_and_go_on_many_threads_during_reloads", |dir| {
        let objects = [choose(1, 2, 4), choose(0, 0, 8)];
        dir.put("p.bpf.o", &objects[0]);
        let plugin = open();
        let before = threads(None);
        std::thread::scope(|scope| {
            for ranks in 1..=4 {
                let plugin = &plugin;
                scope.spawn(move || {
                    for round in 0..60 {
                        let mut comm = init(plugin, ranks);
                        for _ in 0..round {
                            assert!([((1, 2), 4), ((0, 0), 8)].contains(&ask(&mut comm)));
                        }
                        assert_eq!(comm.finalize(), 0);
                    }
                });
            }
            for i in 0..20 {
                dir.put("p.bpf.o", &objects[i % 2]);
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        wait_for("the reload thread to end with the last communicator", || threads(None) == before);
        assert_eq!(threads(Some("ringfence")), 0);
        let warnings: Vec<_> = take_log().into_iter().filter(|l| l.level == 2).collect();
        assert!(warnings.is_empty(), "{warnings:?}");
    });
}

#[test]
fn ncclbpf_policies_keep_their_channel_count_over_a_reload() {
    isolated("ncclbpf_policies_keep_their_channel_count_over_a_reload", |dir| {
        dir.put("p.bpf.o", policy("packed", &[]));
        let plugin = open();
        let mut comm = init(&plugin, 1);
        for n in 1..=5 {
            assert_eq!(ask(&mut comm), ((0, 2), n));
        }
        // The same object under other rules is another set; the count goes on.
        take_log();
        dir.put("ringfence.toml", "[[policy]]\nfile = 'p.bpf.o'\n[limits]\nfuel = 5000\n");
        wait_for_log("1 endpoints take it at their next call, 0 keep theirs");
        assert_eq!(ask(&mut comm), ((0, 2), 6));
    });
}
