//! What a running job tells about itself, and what tools can do to it: status file, control file, metrics. The built plugin is driven
//! through its symbols in a process of its own for each test, and the `ringfence` binary looks at it from outside.

mod plugin;

use plugin::{PolicyDir, isolated, isolated_with, policy, so, wait_for};
use ringfence_host::ffi::driver::{Comm, Plugin, Table, take_log};
use ringfence_tests::exposition;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};

const ALL_REDUCE: i32 = 4;
const MIB: usize = 1 << 20;

/// One decision; the channels.
fn ask(comm: &mut Comm, bytes: usize) -> i32 {
    let mut table = Table::new(7, 3, vec![9.0; 21]);
    let (code, channels) = comm.get_coll_info(ALL_REDUCE, bytes, 1, &mut table, false);
    assert_eq!(code, 0);
    channels
}

fn start(dir: &PolicyDir) -> (Plugin, Comm) {
    dir.put("observed.bpf.o", policy("observed", &[]));
    let plugin = Plugin::open(so()).unwrap();
    let (comm, code) = plugin.init(1, 1, 7);
    assert_eq!(code, 0);
    wait_for("the status", || fs::metadata(own("status.json")).is_ok());
    (plugin, comm)
}

fn run_dir() -> PathBuf {
    std::env::var_os("RINGFENCE_RUN_DIR").unwrap().into()
}

/// A file of this process.
fn own(kind: &str) -> PathBuf {
    run_dir().join(format!("{}.{kind}", std::process::id()))
}

fn ringfence(args: &[&str]) -> Output {
    let binary = ringfence_tests::built::dir().join("ringfence");
    let output = Command::new(binary).args(args).env_remove("RINGFENCE_POLICY").output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
    output
}

/// Runs a command that must work.
fn works(args: &[&str]) -> String {
    let output = ringfence(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must work; its lines as JSON.
fn json_of(args: &[&str]) -> Vec<Value> {
    works(args).lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
}

/// Runs a command that must be refused with that error and exit code 1.
fn refused(args: &[&str], errno: &str, why: &str) {
    let output = ringfence(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    assert!(text.contains(why) && text.contains(errno), "{args:?}: {text}");
}

/// Waits for a status that satisfies `good`.
fn status_with(what: &str, good: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    wait_for(what, || {
        last = json_of(&["status", "--json"]).pop().unwrap();
        good(&last)
    });
    last
}

#[test]
fn status_tells_what_a_job_does_and_goes_with_it() {
    isolated("status_tells_what_a_job_does_and_goes_with_it", |dir| {
        let (_plugin, mut comm) = start(dir);
        for _ in 0..1000 {
            ask(&mut comm, MIB);
        }
        let status = status_with("1000 calls", |s| s["plan"]["policies"][0]["calls"] == 1000);
        let first = &status["plan"]["policies"][0];
        assert_eq!(
            (&first["name"], &first["hook"], &first["submitted"]),
            (&json!("observed"), &json!("tuner"), &json!(1000))
        );
        assert_eq!(first["faults"], json!({"out_of_fuel": 0, "trap": 0, "host": 0}));
        let fuel = |what: &str| first["fuel"][what].as_u64().unwrap();
        assert!(fuel("last") > 0 && fuel("last") <= fuel("max"), "{first}");
        assert!(fuel("sum") >= 1000 * 10 && fuel("sum") <= 1000 * fuel("max"), "{first}");
        assert!(fuel("max") <= first["fuel_limit"].as_u64().unwrap(), "{first}");
        let timed = first["latency"]["count"].as_u64().unwrap();
        assert!((3..80).contains(&timed), "one call in 64 is timed: {timed}");
        assert!(first["latency"]["p50_ns"].as_u64().unwrap() > 0);
        assert_eq!(status["communicators"][0]["role"], "tuner");
        assert_eq!(status["communicators"][0]["id"], "0x7");
        let maps: Vec<_> =
            status["maps"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
        assert_eq!(maps, ["seen", "events", "wanted"]);
        assert_eq!(
            (&status["maps"][0]["entries"], status["maps"][1]["dropped"].as_u64() > Some(0)),
            (&json!(1), true)
        );
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(run_dir()), mode(own("status.json")), mode(own("ctl"))), (0o700, 0o600, 0o600));

        // A refused reload is told, and what is in force stays.
        dir.put("observed.bpf.o", policy("refused", &[]));
        let status = status_with("the refusal", |s| s["reloads"]["refused"] == 1);
        assert!(
            status["reloads"]["last"]["refused"].as_str().unwrap().contains("observed.bpf.o: "),
            "{status}"
        );
        assert_eq!(status["plan"]["policies"][0]["calls"], 1000);
        // The next policy of the name counts on.
        dir.put("observed.bpf.o", policy("count", &[]));
        status_with("the next policy", |s| s["plan"]["generation"] == 2);
        ask(&mut comm, MIB);
        let status = status_with("its call", |s| s["plan"]["policies"][0]["calls"] == 1001);
        assert_eq!(status["reloads"]["done"], 2);

        let text = String::from_utf8(ringfence(&["status"]).stdout).unwrap();
        for part in
            ["generation 2, observed sha256:", "2 done, 1 refused", "1001", "at its next call", "calls"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let picture = works(&["top", "--once", "--size", "80x24"]);
        let row = picture.lines().find(|l| l.contains(" observed ")).unwrap_or_else(|| panic!("{picture}"));
        assert!(row.contains(&std::process::id().to_string()) && row.contains(" tuner "), "{picture}");
        assert!(picture.contains("0x7") && picture.lines().all(|l| l.chars().count() <= 80), "{picture}");
        assert_eq!(comm.finalize(), 0);
        assert_eq!(fs::read_dir(run_dir()).unwrap().count(), 0, "nothing is left");
        let output = ringfence(&["status"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stdout).unwrap().starts_with("no process of this user"));
        assert_eq!(ringfence(&["top"]).status.code(), Some(2), "top needs a terminal");
    });
}

#[test]
fn maps_are_read_and_written_from_outside_by_field_name() {
    isolated("maps_are_read_and_written_from_outside_by_field_name", |dir| {
        let (_plugin, mut comm) = start(dir);
        assert_eq!(ask(&mut comm, MIB), 0, "no channels are wanted yet");
        ask(&mut comm, MIB);
        ask(&mut comm, 64);
        let listed = json_of(&["map", "list", "--json"]);
        let shape = |m: &Value| {
            (m["name"].clone(), m["kind"].clone(), m["key_type"].clone(), m["value_type"].clone())
        };
        assert_eq!(shape(&listed[0]), (json!("seen"), json!("hash"), json!("place"), json!("stats")));

        let mut entries = json_of(&["map", "dump", "seen", "--json"]);
        entries.sort_by_key(|e| e["key"]["class"].as_u64());
        assert_eq!(
            entries[0]["value"],
            json!({"calls": 1, "bytes": 64, "pick": "PICK_RING", "delta": -1, "label": "first"})
        );
        assert_eq!(entries[1]["value"]["calls"], 2);
        let key = r#"{"func": 4, "class": 1}"#;
        assert_eq!(json_of(&["map", "get", "seen", key, "--json"])[0], entries[1]);
        assert_eq!(json_of(&["map", "get", "seen", "hex:0400000001000000", "--json"])[0], entries[1]);

        // What a tool writes, the policy reads at its next call.
        works(&["map", "set", "wanted", "0", "17"]);
        assert_eq!(ask(&mut comm, MIB), 17);
        let new = r#"{"calls": 5, "bytes": 0, "pick": "PICK_TREE", "delta": -7, "label": "mine"}"#;
        let other = r#"{"func": 1, "class": 0}"#;
        refused(&["map", "set", "seen", other, new, "--exist"], "ENOENT", "no such key");
        works(&["map", "set", "seen", other, new, "--create"]);
        refused(&["map", "set", "seen", other, new, "--create"], "EEXIST", "there already");
        works(&["map", "set", "seen", other, r#"{"delta": 9}"#, "--keep"]);
        let mut want: Value = serde_json::from_str(new).unwrap();
        want["delta"] = json!(9);
        assert_eq!(json_of(&["map", "get", "seen", other, "--json"])[0]["value"], want);
        works(&["map", "delete", "seen", other]);
        refused(&["map", "delete", "seen", other], "ENOENT", "no such key");

        // Mistakes say what is wanted.
        refused(&["map", "set", "wanted", "9", "1"], "E2BIG", "there are 4 entries");
        refused(&["map", "delete", "wanted", "0"], "EINVAL", "set them to zero");
        refused(&["map", "get", "events", "0"], "EINVAL", "ringfence map drain");
        refused(&["map", "drain", "seen"], "EINVAL", "not a ring buffer");
        let usage = |args: &[&str], want: &str| {
            let output = ringfence(args);
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && text.contains(want), "{args:?}: {text}");
        };
        usage(&["map", "get", "sen", "0"], "there is no map \"sen\"; the process has seen, events, wanted");
        usage(
            &["map", "get", "seen", r#"{"func": 4}"#],
            "the key does not fit map seen: field class is missing",
        );
        usage(&["map", "set", "wanted", "0", "many"], "\"many\" is no whole number");
        usage(&["map", "list", "--pid", "4294967295"], "process 4294967295");

        let records = json_of(&["map", "drain", "events", "--json"]);
        assert_eq!(records.len(), 4, "one for each call");
        assert_eq!(records[0], json!({"n_bytes": MIB, "func": 4, "class": 1}));
        assert_eq!(json_of(&["map", "drain", "events", "--json"]), Vec::<Value>::new());
        assert_eq!(comm.finalize(), 0);
    });
}

/// A small generator of repeatable random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

/// Where a control file keeps things (`host/src/observe/control/frame.rs`).
const HEADS: [u64; 2] = [64, 128];
const BODY: u64 = 4096;

#[test]
fn a_hostile_control_file_costs_the_job_nothing() {
    isolated("a_hostile_control_file_costs_the_job_nothing", |dir| {
        let (_plugin, mut comm) = start(dir);
        works(&["map", "set", "wanted", "0", "17"]);
        let mut random = Random(7);
        let open = || OpenOptions::new().read(true).write(true).open(own("ctl"));
        for round in 0..400 {
            // It is made anew within a second after it was removed.
            let Ok(file) = open() else {
                std::thread::sleep(std::time::Duration::from_millis(20));
                continue;
            };
            let bytes: Vec<u8> = (0..random.next() % 600).map(|_| random.next() as u8).collect();
            let at = match random.next() % 4 {
                0 => HEADS[0],
                1 => HEADS[1],
                2 => BODY,
                _ => random.next() % (16 << 20),
            };
            file.write_all_at(&bytes, at).unwrap();
            match round % 50 {
                10 => file.set_len(random.next() % 200).unwrap(),
                20 => file.set_len(1 << 40).unwrap(),
                30 => fs::remove_file(own("ctl")).unwrap(),
                40 => forge(&file, &mut random),
                _ => {}
            }
            assert_eq!(ask(&mut comm, MIB), 17);
        }
        for text in [
            "[[[[[[[[",
            "{\"op\":\"get\",\"map\":18446744073709551615,\"key\":\"hex:00\"}",
            "{\"op\":\"set\",\"map\":1}",
            "{\"op\":\"dump\",\"map\":1,\"from\":4294967295}",
            "{\"op\":\"maps\",\"from\":18446744073709551615}",
            "{\"op\":\"set\",\"map\":2,\"key\":\"hex:00000000\",\"value\":\"hex:00\",\"flags\":9,\"slot\":7}",
            "null",
            "\u{0}",
        ] {
            if let Ok(file) = open() {
                send(&file, random.next() | 1, text.as_bytes());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // An honest tool still gets its answers, perhaps after the file was made anew.
        let _ = fs::remove_file(own("ctl"));
        wait_for("a new control file", || ringfence(&["map", "list"]).status.success());
        assert_eq!(json_of(&["map", "get", "seen", r#"{"func": 4, "class": 1}"#, "--json"]).len(), 1);
        assert_eq!(comm.finalize(), 0);
        let log = take_log();
        assert!(!log.iter().any(|l| l.text.contains("defect")), "{log:?}");
    });
}

/// Writes a message as a tool does, with a right checksum.
fn send(file: &fs::File, number: u64, body: &[u8]) {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(PRIME).rotate_left(23);
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
    let start = step(step(0xcbf2_9ce4_8422_2325, number), body.len() as u64);
    let sum = body.chunks(8).fold(start, |sum, chunk| step(sum, word(chunk)));
    file.write_all_at(body, BODY).unwrap();
    let head: Vec<u8> = [number, body.len() as u64, sum].iter().flat_map(|w| w.to_le_bytes()).collect();
    file.write_all_at(&head, HEADS[0]).unwrap();
}

/// A message that counts, with random bytes in it.
fn forge(file: &fs::File, random: &mut Random) {
    let body: Vec<u8> = (0..random.next() % 300).map(|_| random.next() as u8).collect();
    send(file, random.next() | 1, &body);
}

#[test]
fn tools_that_die_or_come_together_do_not_get_in_each_other_s_way() {
    isolated("tools_that_die_or_come_together_do_not_get_in_each_other_s_way", |dir| {
        let (_plugin, mut comm) = start(dir);
        ask(&mut comm, MIB);
        // One that died between its request and the answer.
        let file = OpenOptions::new().read(true).write(true).open(own("ctl")).unwrap();
        send(&file, 77, br#"{"op":"maps","from":0}"#);
        let asked = |n: u32| {
            std::thread::spawn(move || {
                let n = n.to_string();
                works(&["map", "set", "wanted", &n, &n]);
                json_of(&["map", "get", "wanted", &n, "--json"]).pop().unwrap()
            })
        };
        let tools: Vec<_> = (0..4).map(asked).collect();
        for (n, tool) in tools.into_iter().enumerate() {
            assert_eq!(tool.join().unwrap(), json!({"key": n, "value": n}));
        }
        assert_eq!(comm.finalize(), 0);
    });
}

#[test]
fn files_of_dead_processes_go_and_those_of_others_stay() {
    isolated("files_of_dead_processes_go_and_those_of_others_stay", |dir| {
        fs::create_dir(run_dir()).unwrap();
        fs::set_permissions(run_dir(), fs::Permissions::from_mode(0o700)).unwrap();
        let put = |name: &str, text: &str| {
            fs::write(run_dir().join(name), text).unwrap();
            fs::set_permissions(run_dir().join(name), fs::Permissions::from_mode(0o600)).unwrap();
        };
        let namespace = std::os::unix::fs::MetadataExt::ino(&fs::metadata("/proc/self/ns/pid").unwrap());
        let status = |pid: u32, started: u64, namespace: u64| {
            json!({"format": 1, "pid": pid, "started": started, "pid_namespace": namespace}).to_string()
        };
        let dead = 4_000_000;
        put(&format!("{dead}.status.json"), &status(dead, 5, namespace));
        put(&format!("{dead}.ctl"), "garbage");
        put(&format!(".{dead}.status.json.tmp"), "half");
        // Process 1 lives, but did not start then.
        put("1.status.json", &status(1, u64::MAX, namespace));
        let elsewhere = 4_000_001;
        put(&format!("{elsewhere}.status.json"), &status(elsewhere, 5, 1));
        put("notes.txt", "not ours");
        // What an earlier process of this number left.
        put(&format!("{}.ctl", std::process::id()), "garbage");
        let (_plugin, comm) = start(dir);
        let mut names: Vec<_> =
            fs::read_dir(run_dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let me = std::process::id();
        let mut want = vec![
            format!("{elsewhere}.status.json"),
            format!("{me}.ctl"),
            format!("{me}.status.json"),
            "notes.txt".into(),
        ];
        want.sort();
        assert_eq!(names, want);
        works(&["map", "list", "--pid", &me.to_string()]);
        let text = String::from_utf8(ringfence(&["status"]).stdout).unwrap();
        assert!(text.contains("in another container"), "{text}");
        assert_eq!(comm.finalize(), 0);
    });
}

#[test]
fn a_directory_that_others_can_write_is_not_used() {
    isolated("a_directory_that_others_can_write_is_not_used", |dir| {
        fs::create_dir(run_dir()).unwrap();
        fs::set_permissions(run_dir(), fs::Permissions::from_mode(0o777)).unwrap();
        dir.put("observed.bpf.o", policy("observed", &[]));
        let plugin = Plugin::open(so()).unwrap();
        let (mut comm, _) = plugin.init(1, 1, 7);
        let mut log = Vec::new();
        wait_for("the warning", || {
            log.extend(take_log());
            log.iter().any(|l| l.level == 2 && l.text.contains("others can write"))
        });
        assert_eq!(ask(&mut comm, MIB), 0, "the job goes on");
        assert_eq!(comm.finalize(), 0);
        assert_eq!(fs::read_dir(run_dir()).unwrap().count(), 0);
    });
}

#[test]
fn a_forked_child_leaves_its_parent_s_files_alone() {
    isolated("a_forked_child_leaves_its_parent_s_files_alone", |dir| {
        let (_plugin, comm) = start(dir);
        let files = || (fs::metadata(own("status.json")).is_ok(), fs::metadata(own("ctl")).is_ok());
        // SAFETY: the child makes no call but finalize, as a forked worker that drops its communicator does, and `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = comm.finalize();
            // SAFETY: ends the child at once; nothing of the parent's is touched.
            unsafe { libc::_exit(code) };
        }
        let mut code = -1;
        // SAFETY: `pid` is our child, and `code` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut code, 0) }, pid);
        assert_eq!((code, files()), (0, (true, true)));
        works(&["map", "list"]);
        assert_eq!(comm.finalize(), 0);
        assert_eq!(files(), (false, false));
    });
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let env = [("RINGFENCE_METRICS_FILE", "%d/job-%p.prom"), ("RINGFENCE_METRICS_INTERVAL", "1")];
    isolated_with("metrics_are_what_prometheus_reads", &env, |dir| {
        let (_plugin, mut comm) = start(dir);
        for _ in 0..500 {
            ask(&mut comm, MIB);
        }
        let file = run_dir().with_file_name(format!("job-{}.prom", std::process::id()));
        let read = || exposition::parse(&fs::read_to_string(&file).unwrap_or_default()).unwrap();
        let calls = |families: &std::collections::BTreeMap<String, exposition::Family>| {
            let family = families.get("ringfence_policy_calls_total")?;
            let ours = family
                .samples
                .iter()
                .find(|s| s.labels["policy"] == "observed" && s.labels["hook"] == "tuner")?;
            Some(ours.value)
        };
        wait_for("500 calls", || calls(&read()) == Some(500.0));
        let families = read();
        for name in [
            "ringfence_build_info",
            "ringfence_policy_faults_total",
            "ringfence_policy_fuel_total",
            "ringfence_policy_latency_seconds",
            "ringfence_reload_total",
            "ringfence_map_entries",
            "ringfence_map_drops_total",
        ] {
            assert!(!families[name].samples.is_empty(), "{name}");
        }
        let by_tool = ringfence(&["metrics"]);
        let text = String::from_utf8(by_tool.stdout).unwrap();
        wait_for("the tool to say the same", || {
            let text = String::from_utf8(ringfence(&["metrics"]).stdout).unwrap();
            calls(&exposition::parse(&text).unwrap()) == Some(500.0)
        });
        assert!(exposition::parse(&text).is_ok());
        let out = run_dir().with_file_name("all.prom");
        works(&["metrics", "--out", out.to_str().unwrap()]);
        assert!(calls(&exposition::parse(&fs::read_to_string(out).unwrap()).unwrap()).is_some());
        // The last calls of a job are not lost.
        ask(&mut comm, MIB);
        assert_eq!(comm.finalize(), 0);
        assert_eq!(calls(&read()), Some(501.0));
    });
}

#[test]
fn what_policies_say_reaches_the_log_at_a_bounded_rate() {
    isolated("what_policies_say_reaches_the_log_at_a_bounded_rate", |dir| {
        dir.put("ringfence.toml", "[[policy]]\nfile = 'talks.bpf.o'\n[maps.events]\nlog = true\n");
        dir.put("talks.bpf.o", policy("talks", &[]));
        let plugin = Plugin::open(so()).unwrap();
        let (mut comm, _) = plugin.init(1, 1, 7);
        let line = "1048576 bytes for function 4";
        for _ in 0..100 {
            assert_eq!(ask(&mut comm, MIB) as usize, line.len() + 1, "the helper says how long the line is");
        }
        let mut log: Vec<String> = Vec::new();
        let event = r#"{"n_bytes":1048576,"func":4,"length":29}"#;
        // Lines that are there, and those that are said to be left out.
        let told = |log: &[String], who: &str, text: &str| {
            let said = log
                .iter()
                .filter_map(|l| l.strip_prefix("Ringfence: ")?.strip_prefix(who)?.strip_prefix(": "));
            let left_out = |l: &str| {
                l.strip_suffix(" more were left out (20 at once and 5 a second are written)")?
                    .parse::<usize>()
                    .ok()
            };
            let (mut there, mut more) = (0, 0);
            for l in said {
                match left_out(l) {
                    Some(n) => more += n,
                    None => {
                        assert_eq!(l, text);
                        there += 1;
                    }
                }
            }
            (there, more)
        };
        let both = |log: &[String]| [told(log, "policy talks", line), told(log, "map events", event)];
        wait_for("the lines", || {
            log.extend(take_log().into_iter().map(|l| l.text));
            both(&log).iter().all(|(there, left_out)| there + left_out == 100)
        });
        // Twenty at once, and a few more where the machine was so slow that the calls took longer than a tick.
        assert!(both(&log).iter().all(|(there, _)| (20..50).contains(there)), "{:?}", both(&log));
        let suppressed = both(&log).iter().map(|(_, left_out)| *left_out as u64).sum::<u64>();
        let status = status_with("the counts", |s| s["log"]["suppressed"] == suppressed);
        assert_eq!(status["log"], json!({"lines": 200 - suppressed, "suppressed": suppressed, "lost": 0}));
        // More than there is room for until the next second, all of it counted.
        for _ in 0..1000 {
            ask(&mut comm, MIB);
        }
        let counted = |s: &Value| {
            ["lines", "suppressed", "lost"].iter().map(|k| s["log"][k].as_u64().unwrap()).sum::<u64>()
        };
        status_with("every line to be counted", |s| {
            counted(s) == 2 * 1100 && s["log"]["lost"].as_u64() > Some(500)
        });
        assert_eq!(comm.finalize(), 0);
        // Only ring buffers have records.
        dir.put("ringfence.toml", "[[policy]]\nfile = 'count.bpf.o'\n[maps.calls]\nlog = true\n");
        dir.put("count.bpf.o", policy("count", &[]));
        let (comm, _) = plugin.init(1, 1, 7);
        let refused =
            take_log().into_iter().any(|l| l.text.contains("maps.calls.log: the map is of kind array"));
        assert!(refused);
        assert_eq!(comm.finalize(), 0);
    });
}

#[test]
fn hostile_names_and_operations_survive_the_strict_parser() {
    use ringfence_host::observe::status::{
        CommStatus, LatencyStatus, MapStatus, OperationStatus, PlanStatus, PolicyStatus, Status,
    };
    let odd = "a\"b\\c\nd{}=,\u{e9}";
    let policy = PolicyStatus {
        name: odd.into(),
        hook: "profiler".into(),
        calls: u64::MAX,
        latency: LatencyStatus {
            buckets: vec![(0, 1), (40, 5), (527, 2)],
            sum_ns: u64::MAX,
            ..Default::default()
        },
        ..PolicyStatus::default()
    };
    let operation = |operation: &str, size: &str| OperationStatus {
        comm: "0x7".into(),
        comm_name: odd.into(),
        ranks: 8,
        nodes: 2,
        operation: operation.into(),
        algo: "RING".into(),
        proto: "LL128".into(),
        size: size.into(),
        count: 2,
        duration_ns: 3_000,
        rated: 2,
        log2_gbs: 14.0,
        ..OperationStatus::default()
    };
    let status = |pid| Status {
        pid,
        node: odd.into(),
        plan: PlanStatus { policies: vec![policy.clone(), policy.clone()], ..PlanStatus::default() },
        communicators: vec![CommStatus { role: odd.into(), ..CommStatus::default() }],
        maps: vec![MapStatus { name: odd.into(), scope: odd.into(), ..MapStatus::default() }],
        operations: vec![
            operation("AllReduce", "4-5MB"),
            operation("Send", "1-2KB"),
            operation("AllReduce", "5-6MB"),
        ],
        profiler: [("started".to_owned(), 7)].into(),
        ..Status::default()
    };
    let text = ringfence_host::observe::prometheus::render(&[status(7), status(8)]);
    let families = exposition::parse(&text).unwrap();
    let bandwidth = &families["nccl_bus_bandwidth_gbs"].samples;
    assert_eq!((bandwidth.len(), bandwidth[0].value), (4, 128.0));
    assert_eq!(
        (bandwidth[0].labels["comm_name"].as_str(), bandwidth[0].labels["algo_proto"].as_str()),
        (odd, "RING_LL128")
    );
    for label in [
        "version",
        "slurm_job_id",
        "node",
        "gpu",
        "comm_name",
        "n_nodes",
        "nranks",
        "collective",
        "message_size",
    ] {
        assert!(bandwidth[0].labels.contains_key(label), "{label} is Inspector's");
    }
    let p2p = &families["nccl_p2p_exec_time_microseconds"].samples;
    assert_eq!((p2p.len(), p2p[0].value, p2p[0].labels["p2p_operation"].as_str()), (2, 1.5, "Send"));
    assert_eq!(families["ringfence_policy_calls_total"].samples[0].labels["policy"], odd);
    assert_eq!(families["ringfence_map_entries"].samples[0].labels["map"], odd);
}

#[test]
fn two_hosts_of_one_process_have_files_of_their_own() {
    isolated("two_hosts_of_one_process_have_files_of_their_own", |dir| {
        use ringfence_host::{Source, client::Client};
        let (_plugin, comm) = start(dir);
        // A library in the process with a source of its own; here it is this test, which has the host's code a second time.
        let of_library = PolicyDir::new();
        of_library.put("count.bpf.o", policy("count", &[]));
        let client = Client::open(Some(Source::at(of_library.path()))).unwrap();
        wait_for("the second host's files", || fs::metadata(own("1.status.json")).is_ok());
        let me = std::process::id();
        let names = |host: &str| -> Vec<String> {
            let maps = json_of(&["map", "list", "--json", "--pid", host]);
            maps.iter().map(|m| m["name"].as_str().unwrap().to_owned()).collect()
        };
        for _ in 0..2 {
            assert_eq!(names(&format!("{me}.0")), ["seen", "events", "wanted"]);
            assert_eq!(names(&format!("{me}.1")), ["calls"]);
            // A tick later nobody has taken the other's files.
            std::thread::sleep(std::time::Duration::from_millis(1500));
        }
        let both = ringfence(&["map", "list"]);
        let text = String::from_utf8(both.stderr).unwrap();
        assert!(
            both.status.code() == Some(2)
                && text.contains(&format!("{me} ("))
                && text.contains(&format!("{me}.1 (")),
            "{text}"
        );
        assert_eq!(json_of(&["status", "--json"]).len(), 2);
        drop(client);
        assert_eq!(names(&me.to_string()), ["seen", "events", "wanted"], "only one is left");
        assert_eq!(comm.finalize(), 0);
        assert_eq!(fs::read_dir(run_dir()).unwrap().count(), 0);
    });
}
