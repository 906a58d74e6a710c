//! Tail calls from policy to policy, as the manifest links them (`chain`, `maps.NAME.programs`), driven through the plugin's symbols and
//! `ringfence chain show`. What joining does to code is in `tail_links.rs`.

mod plugin;

use plugin::{PolicyDir, isolated, policy, so, wait_for};
use ringfence_host::ffi::driver::{Comm, Plugin, Table, take_log};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const ALL_REDUCE: i32 = 4;
const TREE: usize = 0;
const RING: usize = 1;
/// What NCCL would choose in [`ask`] by itself.
const NCCL_S: (usize, usize) = (0, 1);
/// Bytes for which `dispatch.bpf.c` takes slot 0, 3 and 7.
const SMALL: u64 = 1000;
const MIDDLE: u64 = 100_000;
const LARGE: u64 = 4 << 20;

/// The pair that NCCL would take, and the channels.
fn ask(comm: &mut Comm, bytes: u64) -> ((usize, usize), i32) {
    let mut costs = vec![-1.0; 21];
    costs[..6].copy_from_slice(&[30.0, 20.0, 40.0, 35.0, 45.0, 25.0]);
    let mut table = Table::new(7, 3, costs);
    let (code, channels) = comm.get_coll_info(ALL_REDUCE, bytes as usize, 1, &mut table, false);
    assert_eq!(code, 0);
    (table.choice().unwrap(), channels)
}

/// A communicator of one rank: it takes a new plan at its next call.
fn init(plugin: &Plugin) -> Comm {
    let (comm, code) = plugin.init(1, 1, 0x77);
    assert_eq!(code, 0);
    comm
}

fn target(algo: usize, proto: usize, channels: u32) -> Vec<u8> {
    policy("target", &[&format!("ALGO={algo}"), &format!("PROTO={proto}"), &format!("CHANNELS={channels}")])
}

/// `dispatch`, which is asked, and targets, which are not.
fn manifest(targets: &[&str], rest: &str) -> String {
    let mut text = "[[policy]]\nfile = 'dispatch.bpf.o'\n".to_owned();
    for name in targets {
        text += &format!("[[policy]]\nfile = '{name}.bpf.o'\nchain = false\n");
    }
    text + rest
}

fn slots(slots: &str) -> String {
    format!("[maps.jump_table]\nprograms = {{ {slots} }}\n")
}

/// A directory with `dispatch`, `small` (Tree/LL, 2 channels) and `large` (Ring/Simple, 9).
fn put_three(dir: &PolicyDir) {
    dir.put("dispatch.bpf.o", policy("dispatch", &[]));
    dir.put("small.bpf.o", target(TREE, 0, 2)).put("large.bpf.o", target(RING, 2, 9));
}

#[test]
fn a_policy_of_the_set_decides_by_size_and_an_empty_slot_falls_through() {
    isolated("a_policy_of_the_set_decides_by_size_and_an_empty_slot_falls_through", |dir| {
        put_three(dir);
        dir.put("ringfence.toml", manifest(&["small", "large"], &slots("0 = 'small', 7 = 'large'")));
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        // Each target has channels in a .rodata of its own; the dispatcher has its limits there.
        assert_eq!(ask(&mut comm, SMALL), ((TREE, 0), 2));
        assert_eq!(ask(&mut comm, LARGE), ((RING, 2), 9));
        // Slot 3 is empty. Three calls of the dispatcher, two of targets: all count in the one map.
        assert_eq!(ask(&mut comm, MIDDLE), (NCCL_S, 3 + 2 * 5));
        assert_eq!(ask(&mut comm, SMALL), ((TREE, 0), 2));
    });
}

#[test]
fn a_circle_of_tail_calls_ends_after_33() {
    isolated("a_circle_of_tail_calls_ends_after_33", |dir| {
        dir.put("dispatch.bpf.o", policy("dispatch", &[]));
        dir.put("small.bpf.o", policy("target", &["AGAIN=7"]))
            .put("large.bpf.o", policy("target", &["AGAIN=0", "CHANNELS=2"]));
        dir.put("ringfence.toml", manifest(&["small", "large"], &slots("0 = 'small', 7 = 'large'")));
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        // Small adds 1 channel, large 2; of 33 tail calls small gets 17 if it begins, and 16 if not. The count starts anew in each run.
        for _ in 0..3 {
            assert_eq!(ask(&mut comm, SMALL), (NCCL_S, 17 + 2 * 16));
            assert_eq!(ask(&mut comm, LARGE), (NCCL_S, 16 + 2 * 17));
        }
    });
}

#[test]
fn a_reload_that_changes_only_programs_is_one() {
    isolated("a_reload_that_changes_only_programs_is_one", |dir| {
        put_three(dir);
        let with = |programs: &str| manifest(&["small", "large"], &slots(programs));
        dir.put("ringfence.toml", with("0 = 'small', 7 = 'large'"));
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        assert_eq!(ask(&mut comm, SMALL), ((TREE, 0), 2));
        dir.put("ringfence.toml", with("0 = 'large', 7 = 'small'"));
        wait_for("the other slots", || ask(&mut comm, SMALL) == ((RING, 2), 9));
        assert_eq!(ask(&mut comm, LARGE), ((TREE, 0), 2));
        // A manifest that is refused changes nothing, and says why.
        dir.put("ringfence.toml", with("0 = 'large', 8 = 'small'"));
        let why = "maps.jump_table.programs: slot 8: in dispatch (dispatch.bpf.o) the map has no such slot: max_entries is 8";
        wait_for("the refusal", || take_log().iter().any(|l| l.level == 2 && l.text.contains(why)));
        assert_eq!(ask(&mut comm, LARGE), ((TREE, 0), 2));
        // The slots emptied again.
        dir.put("ringfence.toml", "[[policy]]\nfile = 'dispatch.bpf.o'\n");
        wait_for("empty slots", || ask(&mut comm, SMALL).0 == NCCL_S);
    });
}

#[test]
fn a_target_has_the_same_data_whoever_calls_it() {
    isolated("a_target_has_the_same_data_whoever_calls_it", |dir| {
        dir.put("dispatch.bpf.o", policy("dispatch", &[]))
            .put("second.bpf.o", policy("dispatch", &["SLOTS=8"]));
        dir.put("both.bpf.o", policy("target", &["OWN_CALLS"]));
        let entry = |file: &str| format!("[[policy]]\nfile = '{file}'\n");
        let all = entry("dispatch.bpf.o") + &entry("both.bpf.o") + &entry("second.bpf.o");
        dir.put("ringfence.toml", all + &slots("0 = 'both'"));
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        // Through the first dispatcher, on its own, through the second: three calls, one count.
        assert_eq!(ask(&mut comm, SMALL), (NCCL_S, 3));
        assert_eq!(ask(&mut comm, SMALL), (NCCL_S, 6));
        // Without tail calls only its own turn counts, and it goes on from what was counted; the dispatchers ask for what `seen` has: five
        // for each call of `both`, one for each of their own.
        assert_eq!(ask(&mut comm, MIDDLE).1, 6 * 5 + 4 + 1 + 5 + 1);
        assert_eq!(ask(&mut comm, SMALL), (NCCL_S, 10));
    });
}

#[test]
fn slots_of_the_object_and_of_the_manifest_go_together() {
    isolated("slots_of_the_object_and_of_the_manifest_go_together", |dir| {
        put_three(dir);
        dir.put("dispatch.bpf.o", policy("dispatch", &["OWN"]));
        let text = manifest(&["small"], &slots("0 = 'small'"));
        dir.put("ringfence.toml", text.replacen("\n[[policy]]", "\nprogram = 'dispatch'\n[[policy]]", 1));
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        assert_eq!(ask(&mut comm, SMALL), ((TREE, 0), 2));
        assert_eq!(ask(&mut comm, MIDDLE), (NCCL_S, 33));
        assert_eq!(ask(&mut comm, LARGE), (NCCL_S, 3 + 5));
    });
}

#[test]
fn what_a_target_does_counts_for_the_policy_that_was_asked() {
    isolated("what_a_target_does_counts_for_the_policy_that_was_asked", |dir| {
        put_three(dir);
        dir.put("ringfence.toml", manifest(&["small", "large"], &slots("0 = 'small', 7 = 'large'")));
        let plugin = Plugin::open(so()).unwrap();
        let mut comm = init(&plugin);
        for _ in 0..10 {
            ask(&mut comm, SMALL);
        }
        let run_dir = PathBuf::from(std::env::var_os("RINGFENCE_RUN_DIR").unwrap());
        let path = run_dir.join(format!("{}.status.json", std::process::id()));
        let mut status = Value::Null;
        wait_for("ten calls", || {
            status =
                fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
            status["plan"]["policies"][0]["calls"] == 10
        });
        let policies = status["plan"]["policies"].as_array().unwrap();
        let told: Vec<_> = policies.iter().map(|p| (&p["name"], &p["calls"], &p["submitted"])).collect();
        assert_eq!(told, [(&json!("dispatch"), &json!(10), &json!(10))]);
        // Global data of a target is listed as that object's.
        let maps = status["maps"].as_array().unwrap();
        let rodata: Vec<_> =
            maps.iter().filter(|m| m["name"] == ".rodata").map(|m| m["scope"].as_str().unwrap()).collect();
        assert_eq!(rodata, ["policy dispatch.bpf.o", "policy small.bpf.o", "policy large.bpf.o"]);
    });
}

/// `ringfence chain show DIR`.
fn show(dir: &PolicyDir, json: bool) -> (i32, String) {
    let mut command = Command::new(ringfence_tests::built::dir().join("ringfence"));
    command.args(["chain", "show"]).arg(dir.path()).args(json.then_some("--json"));
    let output = command.env_remove("RINGFENCE_POLICY").output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn chain_show_tells_where_tail_calls_lead() {
    let dir = PolicyDir::new();
    put_three(&dir);
    dir.put(
        "ringfence.toml",
        manifest(&["small", "large"], &slots("0 = 'small', 1 = 'dispatch', 7 = 'large', 2 = 'small'")),
    );
    let (code, text) = show(&dir, false);
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let line = "  tail calls of dispatch: jump_table[0] small.decide, jump_table[1] dispatch, jump_table[2] small.decide, jump_table[7] \
                large.decide";
    assert_eq!(lines.last(), Some(&line));
    // One policy on the hook: the targets are no links of the chain.
    assert_eq!(lines.iter().filter(|l| l.contains(" decide ")).count(), 0, "{text}");
    let (code, text) = show(&dir, true);
    assert_eq!(code, 0, "{text}");
    let json: Value = serde_json::from_str(&text).unwrap();
    let policies = json["hooks"][0]["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 1);
    assert_eq!(
        policies[0]["tail_calls"][3],
        json!({"map": "jump_table", "slot": 7, "function": "large.decide"})
    );
    let hash = json["hash"].clone();
    // The hash of the set follows the slots.
    dir.put("ringfence.toml", manifest(&["small", "large"], &slots("0 = 'small', 7 = 'large'")));
    let json: Value = serde_json::from_str(&show(&dir, true).1).unwrap();
    assert_ne!(json["hash"], hash);
}

/// Each has a name, what is put there, the manifest, and what the refusal says.
#[test]
fn what_cannot_be_linked_is_refused_with_a_reason() {
    let dir = PolicyDir::new();
    put_three(&dir);
    dir.put("again.bpf.o", policy("target", &["AGAIN=0"]));
    dir.put("refused.bpf.o", policy("refused", &[]));
    dir.put("wide.bpf.o", policy("target", &["SEEN_ENTRIES=4"]))
        .put("short.bpf.o", policy("dispatch", &["SLOTS=4"]));
    dir.put("own.bpf.o", policy("dispatch", &["OWN"]));
    dir.put("chunk.bpf.o", policy("target", &["HOOK=\"tuner/chunk\""]));
    let own = manifest(&["small"], &slots("3 = 'small'")).replacen(
        "dispatch.bpf.o'",
        "own.bpf.o'\nprogram = 'dispatch'",
        1,
    );
    let cases = [
        (
            manifest(&["small"], &slots("0 = 'smal'")),
            "ringfence.toml: maps.jump_table.programs: slot 0: no policy is called \"smal\"",
        ),
        (
            manifest(&["small"], ""),
            "ringfence.toml: policy[1].chain: false, and no map's `programs` names \"small\"",
        ),
        (
            manifest(&["small"], "[maps.jmp_table]\nprograms = { 0 = 'small' }\n"),
            "ringfence.toml: maps.jmp_table.programs: no program of the set uses a map of this name",
        ),
        (
            manifest(&["small"], "[maps.seen]\nprograms = { 0 = 'small' }\n"),
            "ringfence.toml: maps.seen.programs: in dispatch (dispatch.bpf.o) the map is of kind array; only a prog_array holds programs",
        ),
        (
            manifest(&["small", "short"], &slots("0 = 'small', 1 = 'short', 7 = 'small'")),
            "ringfence.toml: maps.jump_table.programs: slot 7: in short (short.bpf.o) the map has no such slot: max_entries is 4",
        ),
        (
            // Two objects that declare the array differently cannot be one program.
            manifest(&["short"], &slots("0 = 'short'")),
            "dispatch.bpf.o: linking short (short.bpf.o) into dispatch: map jump_table: short declares it as prog_array(key 4, value 4, 4 \
             entries), and a program that it is linked with as prog_array(key 4, value 4, 8 entries); make them equal",
        ),
        (
            manifest(&["wide"], &slots("0 = 'wide'")),
            "dispatch.bpf.o: linking wide (wide.bpf.o) into dispatch: map seen: wide declares it as array(key 4, value 8, 4 entries)",
        ),
        (
            manifest(&["chunk"], &slots("0 = 'chunk'")),
            "ringfence.toml: maps.jump_table.programs: slot 0: dispatch (dispatch.bpf.o) makes the tail call on the hook tuner, and chunk \
             (chunk.bpf.o) has programs for tuner/chunk only; a tail call stays on its hook",
        ),
        (
            own,
            "ringfence.toml: maps.jump_table.programs: slot 3: slot 3 holds middle already; give the new one another slot",
        ),
        (
            // The array is used by `again` alone, and nothing leads there.
            "[[policy]]\nfile = 'small.bpf.o'\n[[policy]]\nfile = 'again.bpf.o'\nchain = false\n".to_owned()
                + &slots("0 = 'again'"),
            "ringfence.toml: policy[1].chain: false, and no tail call leads to again (again.bpf.o): the maps whose `programs` name it",
        ),
        (
            // What a target does is proved with its caller.
            manifest(&["refused"], &slots("0 = 'refused'")),
            "dispatch.bpf.o: reject[null-deref] refused.refused@",
        ),
    ];
    for (text, want) in cases {
        dir.put("ringfence.toml", &text);
        let (code, said) = show(&dir, false);
        let said = said.replace(&format!("{}/", dir.path().display()), "");
        assert!(said.starts_with(&format!("refused: {want}")), "{text}\n{said}\nwanted {want}");
        assert_eq!(code, 1);
    }
}
