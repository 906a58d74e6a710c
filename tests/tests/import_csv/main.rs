//! `ringfence import-csv`: the imported policy decides as NCCL's example tuner does. Three are compared: the policy, run through
//! verifier, translator and wasmtime; an oracle written from the rules of the format; and, where `RINGFENCE_NCCL_SRC` names a
//! checkout of NCCL, the real plugin, compiled from there and driven as NCCL drives it.

mod generate;
mod oracle;

use oracle::{Call, Config};
use ringfence_host::csv::{self, Options};
use ringfence_host::ffi::driver::{Comm, Plugin, Table, take_log};
use ringfence_host::maps::{DEFAULT_MAP_BYTES, Owner};
use ringfence_host::{
    Algo, CommInfo, CostTable, Decision, Engine, Hook, Instance, Limits, MapRegistry, PolicyModule, Proto,
    ScopeRules, TunerInput,
};
use ringfence_tests::{built, random::Rng};
use ringfence_translator::Object;
use ringfence_translator::verify::Verifier;
use ringfence_translator::wasm::Translator;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An imported configuration, ready to decide.
fn policy(file: &[u8], bug_compatible: bool) -> Option<Instance> {
    let options = Options { file: "nccl_tuner.conf".to_owned(), bug_compatible };
    let object = match csv::import(file, &options) {
        Ok(import) => import.object,
        Err(csv::ImportError::NoRows(_)) => return None,
        Err(error) => panic!("{error}: {}", String::from_utf8_lossy(file)),
    };
    Some(instance(&object))
}

fn instance(object: &[u8]) -> Instance {
    let object = Object::parse(object).unwrap();
    let name = object.programs().next().unwrap().name().to_owned();
    let program = object.program(&name).unwrap();
    let verified = Verifier::new(Hook::Tuner.env()).verify(program).unwrap_or_else(|e| panic!("{e}"));
    let engine = Engine::global().unwrap();
    let policy = PolicyModule::compile(engine, Translator::new().translate(&verified).unwrap()).unwrap();
    let owner = Owner { policy: policy.name().to_owned(), communicator: 0 };
    let maps = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
    let maps = maps.resolve(policy.maps(), &ScopeRules::default(), &owner).unwrap();
    Instance::new(&policy, &maps, Limits::default()).unwrap()
}

/// What the policy does: the table and the channels that NCCL sees.
fn decide(
    instance: &mut Instance,
    call: &Call,
    costs: &[f32],
    so_far: Decision,
) -> (Decision, Vec<f32>, i32) {
    let mut after = costs.to_vec();
    let comm = CommInfo { n_ranks: call.ranks, n_nodes: call.nodes, max_channels: 64, ..CommInfo::default() };
    let mut table = CostTable::new(&mut after, (costs.len() / 3) as u32, 3).unwrap();
    let input = TunerInput {
        comm: &comm,
        func: call.func as u32,
        n_bytes: call.bytes,
        num_pipe_ops: call.pipe_ops as u32,
        reg_buff: call.reg_buff,
        call_seq: 0,
        costs: table.costs(),
    };
    let decision = instance.decide(&input, so_far).unwrap();
    let channels = table.apply(decision, 64).channels.map_or(0, |n| n.get() as i32);
    (decision, after, channels)
}

/// What the rules demand of the policy. `so_far` is the decision of an earlier policy.
fn wanted(config: &Config, call: &Call, costs: &[f32], so_far: Decision, bug_compatible: bool) -> Decision {
    let one = NonZeroU32::new(1);
    let Some((algo, proto, channels)) = config.find(call, costs) else {
        return if bug_compatible { Decision { channels: one, ..so_far } } else { so_far };
    };
    let route = Algo::new(algo as u32).zip(Proto::new(proto as u32));
    let channels = match channels {
        n if n < 0 && bug_compatible => one,
        n if n < 0 => so_far.channels,
        n => NonZeroU32::new(n.min(64) as u32),
    };
    Decision { route, channels }
}

fn so_far(rng: &mut Rng) -> Decision {
    match rng.below(3) {
        0 => Decision { route: Some((Algo::Tree, Proto::Ll)), channels: NonZeroU32::new(7) },
        1 => Decision { route: None, channels: NonZeroU32::new(3) },
        _ => Decision::DEFER,
    }
}

/// Set for more, as `RINGFENCE_CSV_FILES=5000`.
fn files() -> u64 {
    std::env::var("RINGFENCE_CSV_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}

fn compare_with_the_rules(bug_compatible: bool) {
    let (mut decisions, mut matches) = (0, 0);
    for seed in 0..files() {
        let mut rng = Rng::new(seed * 2 + u64::from(bug_compatible));
        let file = generate::file(&mut rng);
        let config = Config::load(&file);
        let Some(mut policy) = policy(&file, bug_compatible) else {
            assert!(config.rows.is_empty(), "seed {seed}: {}", String::from_utf8_lossy(&file));
            continue;
        };
        for _ in 0..200 {
            let call = generate::call(&mut rng, &config);
            let (costs, so_far) = (generate::costs(&mut rng), so_far(&mut rng));
            let got = decide(&mut policy, &call, &costs, so_far).0;
            let want = wanted(&config, &call, &costs, so_far, bug_compatible);
            assert_eq!(got, want, "seed {seed}, {call:?}, {costs:?}:\n{}", String::from_utf8_lossy(&file));
            decisions += 1;
            matches += u64::from(config.find(&call, &costs).is_some());
        }
    }
    println!("{decisions} decisions of {} files alike, {matches} of them by a row", files());
    assert!(matches * 10 > decisions, "the calls hardly ever match: {matches} of {decisions}");
    assert!(matches < decisions);
}

#[test]
fn decides_as_the_rules_say() {
    compare_with_the_rules(false);
}

#[test]
fn decides_as_the_rules_say_bug_for_bug() {
    compare_with_the_rules(true);
}

/// Compiles the example plugin of the checkout that `RINGFENCE_NCCL_SRC` names.
fn example_plugin(dir: &Path) -> Option<PathBuf> {
    let source = PathBuf::from(std::env::var_os("RINGFENCE_NCCL_SRC")?).join("plugins/tuner/example");
    let out = dir.join("libnccl-tuner-example.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-w", "-I"]).arg(source.join("nccl")).arg(source.join("plugin.c"));
    let status = cc.arg("-o").arg(&out).status().unwrap();
    assert!(status.success(), "{} does not compile", source.display());
    Some(out)
}

/// Settles that the rules are those of the real thing.
#[test]
fn the_real_plugin_decides_alike() {
    let dir = tempfile::tempdir().unwrap();
    let Some(so) = example_plugin(dir.path()) else {
        eprintln!("skipped: RINGFENCE_NCCL_SRC names no checkout of NCCL");
        return;
    };
    let plugin = Plugin::open(&so).unwrap();
    // It reads nccl_tuner.conf of the working directory. No other test of this file depends on that.
    std::env::set_current_dir(dir.path()).unwrap();
    let (mut calls, mut matches, mut beyond) = (0, 0, 0);
    for seed in 0..files() {
        let mut rng = Rng::new(seed ^ 0xc5f);
        let file = generate::file(&mut rng);
        std::fs::write("nccl_tuner.conf", &file).unwrap();
        let config = Config::load(&file);
        let mut policy = policy(&file, true);
        let mut comms: HashMap<(u32, u32), Comm> = HashMap::new();
        for _ in 0..100 {
            let call = generate::call(&mut rng, &config);
            let costs = generate::costs(&mut rng);
            let comm = comms.entry((call.ranks, call.nodes)).or_insert_with(|| {
                let (comm, code) = plugin.init(call.ranks as usize, call.nodes as usize, seed);
                assert_eq!(code, 0);
                comm
            });
            let mut table = Table::new(costs.len() / 3, 3, costs.clone());
            let (code, channels) =
                comm.get_coll_info(call.func, call.bytes as usize, call.pipe_ops, &mut table, call.reg_buff);
            assert_eq!(code, 0);
            let context = || format!("seed {seed}, {call:?}, {costs:?}:\n{}", String::from_utf8_lossy(&file));
            // The oracle, exactly.
            let found = config.find(&call, &costs);
            let mut want = costs.clone();
            found.iter().for_each(|(algo, proto, _)| want[algo * 3 + proto] = 0.0);
            assert_eq!(table.costs(), want, "{}", context());
            assert_eq!(channels, found.map_or(1, |(_, _, n)| if n == -1 { 1 } else { n }), "{}", context());
            // The policy, but for channels that it cannot ask for.
            if let Some(policy) = &mut policy {
                let (_, after, ours) = decide(policy, &call, &costs, Decision::DEFER);
                assert_eq!(after, table.costs(), "{}", context());
                let asked = if channels < 0 { 1 } else { channels.min(64) };
                assert_eq!(ours, asked, "{}", context());
                beyond += u64::from(asked != channels);
            }
            calls += 1;
            matches += u64::from(found.is_some());
        }
        take_log();
    }
    println!(
        "{calls} calls of the real plugin alike over {} files; {matches} matched a row, {beyond} with channels that are not kept",
        files()
    );
}

fn ringfence(args: &[&str]) -> Output {
    Command::new(built::dir().join("ringfence")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sample() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/nccl_tuner.conf").to_string_lossy().into_owned()
}

#[test]
fn the_command_writes_a_policy_that_the_others_take() {
    let dir = tempfile::tempdir().unwrap();
    let object = dir.path().join("imported.bpf.o").to_string_lossy().into_owned();
    let import = ringfence(&["import-csv", &sample(), "-o", &object]);
    assert_eq!(import.status.code(), Some(0), "{}", text(&import.stderr));
    let said = text(&import.stdout);
    assert!(said.contains("nccl_tuner.conf:") && said.contains("warning[never-offered]"), "{said}");
    let check = ringfence(&["check", &object]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check.stdout));
    let run = |bytes: &str| {
        let run = ringfence(&[
            "run",
            &object,
            "--json",
            "--set",
            "func=allreduce",
            "--set",
            &format!("n_bytes={bytes}"),
        ]);
        serde_json::from_slice::<serde_json::Value>(&run.stdout).unwrap()
    };
    let small = run("4K");
    assert_eq!(
        (small["algo"].as_str(), small["proto"].as_str(), small["channels"].as_u64()),
        (Some("Tree"), Some("LL"), Some(2))
    );
    assert_eq!(run("16G")["channels"].as_u64(), Some(0), "channels -1 leaves them to NCCL");
    let shown = text(&ringfence(&["disasm", &object]).stdout);
    assert!(shown.contains("nccl_tuner.conf:") && shown.contains("does NCCL offer"), "{shown}");
}

#[test]
fn the_command_tells_wrong_use_from_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let out = path("out.bpf.o");
    let code = |args: &[&str]| ringfence(args).status.code();
    assert_eq!(code(&["import-csv", &path("missing"), "-o", &out]), Some(2));
    assert_eq!(code(&["import-csv", &sample(), "-o", &out, "--deny-warnings"]), Some(1));
    assert!(!Path::new(&out).exists(), "nothing is written");
    std::fs::write(path("empty"), "# nothing\n").unwrap();
    let json = ringfence(&["import-csv", &path("empty"), "-o", &out, "--json"]);
    assert_eq!(json.status.code(), Some(2));
    assert!(text(&json.stdout).contains("no line is a row"), "{}", text(&json.stdout));
    let json = ringfence(&["import-csv", &sample(), "-o", &out, "--json"]);
    let lines: Vec<serde_json::Value> =
        text(&json.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "policy");
    assert_eq!(last["warnings"].as_u64(), Some(lines.len() as u64 - 1));
}
