//! The policies that ship, end to end: built by their Makefile, verified, translated, run, and compared with tables, with
//! plain Rust models and with each other; the refused ones refused for the stated reason.
//!
//! `RINGFENCE_POLICIES` names a folder of objects that are built already (`target/policies`).

mod harness;
mod kinds;
mod model;
mod ncclbpf;
mod observers;
mod toolchain;

use harness::{Case, Loaded, load, objects, verify};
use model::State;
use ringfence_guest::abi::func::{ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER};
use ringfence_guest::telemetry::TELEMETRY_ENTRIES;
use ringfence_host::{Algo, Decision, Hook, Proto};
use ringfence_tests::random::Rng;
use ringfence_translator::Object;
use ringfence_translator::verify::Verifier;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// Objects, and the policy whose decisions they make.
const SHIPPED: [(&str, &str); 13] = [
    ("noop", "noop"),
    ("size_aware", "size_aware"),
    ("size_aware_rs", "size_aware"),
    ("size_aware_v2", "size_aware_v2"),
    ("lookup_only", "lookup_only"),
    ("lookup_update", "lookup_update"),
    ("adaptive_channels", "adaptive_channels"),
    ("adaptive_channels_rs", "adaptive_channels"),
    ("slo_enforcer", "slo_enforcer"),
    ("slo_enforcer_rs", "slo_enforcer"),
    ("nvlink_ring_mid", "nvlink_ring_mid"),
    ("ring_simple_all", "ring_simple_all"),
    ("bad_channels", "bad_channels"),
];

/// Objects that decide nothing for the tuner: the program, and its section.
const OBSERVERS: [(&str, &str, &str); 7] = [
    ("latency_map", "latency_map", "profiler"),
    ("latency_map_rs", "latency_map", "profiler"),
    ("event_count", "event_count", "profiler/event"),
    ("net_count", "net_count", "net"),
    ("net_count_rs", "net_count", "net"),
    ("net_deny", "net_deny", "net"),
    ("env_map", "env_map", "env"),
];

/// All objects, each with its program and section.
fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    SHIPPED.into_iter().map(|(object, program)| (object, program, "tuner")).chain(OBSERVERS)
}

/// Objects whose programs stand on other hooks too, with the hooks.
const SEVERAL: [(&str, &[&str]); 1] = [("closed_loop", &["profiler", "tuner"])];

fn object(name: &str) -> PathBuf {
    objects().join(format!("{name}.bpf.o"))
}

/// Names of the objects in a folder.
fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter_map(|n| Some(n.strip_suffix(".bpf.o")?.to_owned())).collect()
}

#[test]
fn shipped_policies_are_accepted() {
    let known = all().map(|(object, ..)| object).chain(SEVERAL.iter().map(|(object, _)| *object));
    assert_eq!(names_in(objects()), known.map(str::to_owned).collect());
    for (name, policy, section) in all() {
        let verified = verify(&object(name), None).unwrap_or_else(|r| panic!("{name}: {r}"));
        assert_eq!((verified.program().name(), verified.program().section()), (policy, section), "{name}");
        // A refusal could name the author's line.
        let pc = ringfence_translator::isa::Pc(verified.program().len() as u32 - 1);
        let line = verified.program().line_at(pc).unwrap_or_else(|| panic!("{name}: no line info"));
        assert!(line.line > 0, "{name}: {line:?}");
    }
}

#[test]
fn policies_for_several_hooks_are_accepted() {
    for (name, hooks) in SEVERAL {
        let object = Object::parse(&std::fs::read(object(name)).unwrap()).unwrap();
        let mut sections: Vec<_> = object.programs().map(|spec| spec.section().to_owned()).collect();
        sections.sort();
        assert_eq!(sections, hooks, "{name}");
        for spec in object.programs() {
            let hook = Hook::from_section(spec.section()).expect("a section that names a hook");
            let program = object.program(spec.name()).unwrap();
            Verifier::new(hook.env()).verify(program).unwrap_or_else(|r| panic!("{name}: {r}"));
        }
    }
}

#[derive(Debug, PartialEq)]
struct Expected {
    kind: String,
    pc: u32,
}

fn expected() -> BTreeMap<String, Expected> {
    let path = harness::repo().join("policies/reject/expect.toml");
    let table: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let entry = |value: &toml::Value| Expected {
        kind: value["kind"].as_str().unwrap().to_owned(),
        pc: value["pc"].as_integer().unwrap().try_into().unwrap(),
    };
    table.iter().map(|(name, value)| (name.clone(), entry(value))).collect()
}

/// A reload verifies every policy of a set; this build is slower than a release.
#[test]
fn each_shipped_policy_is_verified_in_two_milliseconds() {
    for (name, ..) in all() {
        let time = || {
            let start = std::time::Instant::now();
            verify(&object(name), None).expect("accepted");
            start.elapsed()
        };
        // Read from disk, parsed, linked and verified; the quickest of many is what it takes.
        let quickest = (0..25).map(|_| time()).min().unwrap();
        println!("{name}: {quickest:?}");
        assert!(quickest.as_micros() < 2000, "{name}: {quickest:?}");
    }
}

#[test]
fn refused_policies_fail_for_the_stated_reason() {
    let (dir, expected) = (objects().join("reject"), expected());
    assert_eq!(names_in(&dir), expected.keys().cloned().collect());
    for (name, expected) in &expected {
        let rejection = match verify(&dir.join(format!("{name}.bpf.o")), None) {
            Ok(_) => panic!("{name} was accepted"),
            Err(rejection) => rejection,
        };
        let got = Expected { kind: rejection.kind().name().to_owned(), pc: rejection.pc().index() as u32 };
        assert_eq!(got, *expected, "{name}: {rejection}");
        let source = rejection.source().unwrap_or_else(|| panic!("{name}: no source line in {rejection}"));
        assert_eq!(source.file, format!("policies/reject/{name}.bpf.c"), "{rejection}");
        assert!(!source.text.is_empty(), "{name}: the line has no text");
    }
}

#[test]
fn their_twins_are_accepted() {
    let dir = objects().join("twins");
    assert_eq!(names_in(&dir), expected().keys().map(|name| format!("{name}_ok")).collect());
    for name in names_in(&dir) {
        if let Err(rejection) = verify(&dir.join(format!("{name}.bpf.o")), None) {
            panic!("{name}: {rejection}");
        }
    }
}

const TREE_SIMPLE: Option<(Algo, Proto)> = Some((Algo::Tree, Proto::Simple));
const TREE_LL: Option<(Algo, Proto)> = Some((Algo::Tree, Proto::Ll));
const RING_LL: Option<(Algo, Proto)> = Some((Algo::Ring, Proto::Ll));
const RING_SIMPLE: Option<(Algo, Proto)> = Some((Algo::Ring, Proto::Simple));

/// Object, bytes, collective, ranks; route and channels of the first decision (0: none).
type Row = (&'static str, u64, u32, u32, Option<(Algo, Proto)>, u32);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const FIRST_DECISIONS: [Row; 52] = [
    ("noop", MIB, ALL_REDUCE, 8, None, 0),
    ("lookup_only", MIB, ALL_REDUCE, 8, None, 0),
    ("lookup_update", MIB, ALL_REDUCE, 8, None, 0),
    ("bad_channels", 0, ALL_REDUCE, 8, None, 1),
    ("bad_channels", 1 << 40, BROADCAST, 2, None, 1),
    ("ring_simple_all", 1, BROADCAST, 2, RING_SIMPLE, 0),
    ("ring_simple_all", 1 << 40, ALL_GATHER, 1024, RING_SIMPLE, 0),
    ("size_aware", 0, ALL_REDUCE, 8, TREE_SIMPLE, 2),
    ("size_aware", 4095, ALL_REDUCE, 8, TREE_SIMPLE, 2),
    ("size_aware", 4096, ALL_REDUCE, 8, RING_LL, 4),
    ("size_aware", MIB - 1, BROADCAST, 2, RING_LL, 4),
    ("size_aware", MIB, BROADCAST, 2, RING_SIMPLE, 8),
    ("size_aware", u64::MAX, ALL_REDUCE, 8, RING_SIMPLE, 8),
    ("size_aware_rs", 0, ALL_REDUCE, 8, TREE_SIMPLE, 2),
    ("size_aware_rs", 4095, ALL_REDUCE, 8, TREE_SIMPLE, 2),
    ("size_aware_rs", 4096, ALL_REDUCE, 8, RING_LL, 4),
    ("size_aware_rs", MIB - 1, BROADCAST, 2, RING_LL, 4),
    ("size_aware_rs", MIB, BROADCAST, 2, RING_SIMPLE, 8),
    ("size_aware_rs", u64::MAX, ALL_REDUCE, 8, RING_SIMPLE, 8),
    ("size_aware_v2", 4095, ALL_REDUCE, 8, TREE_SIMPLE, 2),
    ("size_aware_v2", 4096, ALL_REDUCE, 8, TREE_LL, 4),
    ("size_aware_v2", 32 * KIB, ALL_REDUCE, 8, TREE_LL, 4),
    ("size_aware_v2", 32 * KIB + 1, ALL_REDUCE, 8, RING_LL, 4),
    ("size_aware_v2", 32 * KIB, BROADCAST, 8, RING_LL, 4),
    ("size_aware_v2", 4095, BROADCAST, 8, RING_SIMPLE, 2),
    ("size_aware_v2", MIB - 1, ALL_REDUCE, 8, RING_LL, 4),
    ("size_aware_v2", MIB, ALL_REDUCE, 8, RING_SIMPLE, 10),
    ("size_aware_v2", MIB, ALL_REDUCE, 7, RING_SIMPLE, 8),
    ("size_aware_v2", MIB, REDUCE_SCATTER, 8, RING_SIMPLE, 8),
    ("nvlink_ring_mid", 2 * MIB - 1, ALL_REDUCE, 8, None, 0),
    ("nvlink_ring_mid", 2 * MIB, ALL_REDUCE, 8, RING_SIMPLE, 0),
    ("nvlink_ring_mid", 192 * MIB, BROADCAST, 2, RING_SIMPLE, 0),
    ("nvlink_ring_mid", 192 * MIB + 1, ALL_REDUCE, 8, None, 0),
    ("adaptive_channels", 16 * KIB - 1, ALL_REDUCE, 8, None, 2),
    ("adaptive_channels", 16 * KIB, ALL_REDUCE, 8, None, 4),
    ("adaptive_channels", MIB - 1, ALL_REDUCE, 8, None, 4),
    ("adaptive_channels", MIB, ALL_REDUCE, 8, None, 8),
    ("adaptive_channels_rs", 16 * KIB - 1, ALL_REDUCE, 8, None, 2),
    ("adaptive_channels_rs", 16 * KIB, ALL_REDUCE, 8, None, 4),
    ("adaptive_channels_rs", MIB - 1, ALL_REDUCE, 8, None, 4),
    ("adaptive_channels_rs", MIB, ALL_REDUCE, 8, None, 8),
    // Nothing measured yet: within the target.
    ("slo_enforcer", 16 * KIB - 1, ALL_REDUCE, 8, TREE_SIMPLE, 1),
    ("slo_enforcer", 16 * KIB, ALL_REDUCE, 8, RING_SIMPLE, 1),
    ("slo_enforcer", MIB, ALL_GATHER, 8, RING_SIMPLE, 1),
    ("slo_enforcer_rs", 16 * KIB - 1, ALL_REDUCE, 8, TREE_SIMPLE, 1),
    ("slo_enforcer_rs", 16 * KIB, ALL_REDUCE, 8, RING_SIMPLE, 1),
    ("slo_enforcer_rs", MIB, ALL_GATHER, 8, RING_SIMPLE, 1),
    // A collective that the ABI does not know.
    ("size_aware_v2", 32 * KIB, 9, 8, RING_LL, 4),
    ("slo_enforcer", MIB, 9, 8, RING_SIMPLE, 1),
    ("slo_enforcer_rs", MIB, 9, 8, RING_SIMPLE, 1),
    ("adaptive_channels", MIB, 9, 8, None, 8),
    ("adaptive_channels_rs", MIB, 9, 8, None, 8),
];

#[test]
fn first_decisions() {
    for (name, n_bytes, func, n_ranks, route, channels) in FIRST_DECISIONS {
        let case = Case { n_bytes, func, n_ranks, n_nodes: 1, so_far: Decision::DEFER };
        let want = Decision { route, channels: NonZeroU32::new(channels) };
        assert_eq!(load(&object(name), None).decide(&case), want, "{name}: {case:?}");
    }
}

/// Sizes at and around every threshold, and anything.
fn random_bytes(rng: &mut Rng) -> u64 {
    const EDGES: [u64; 9] = [0, 4096, 16 * KIB, 32 * KIB, 64 * KIB, MIB, 2 * MIB, 192 * MIB, u64::MAX];
    match rng.below(3) {
        0 => rng.bits() >> rng.below(64),
        _ => EDGES[rng.below(9) as usize].wrapping_add(rng.below(3)).wrapping_sub(1),
    }
}

fn random_case(rng: &mut Rng) -> Case {
    let route = match rng.below(3) {
        0 => Some((Algo::ALL[rng.below(7) as usize], Proto::ALL[rng.below(3) as usize])),
        _ => None,
    };
    let channels = NonZeroU32::new([0, 0, 1, 3, 12, 64][rng.below(6) as usize]);
    Case {
        n_bytes: random_bytes(rng),
        func: rng.below(7) as u32,
        n_ranks: [1, 2, 7, 8, 9, 4096][rng.below(6) as usize],
        // More keys than the telemetry map has room for.
        n_nodes: 1 + rng.below(30) as u32,
        so_far: Decision { route, channels },
    }
}

/// Seeds maps now and then, as a profiler or an operator would, in the policy and in its model.
fn disturb(loaded: &Loaded, state: &mut State, case: &Case, rng: &mut Rng) {
    let key = model::key(case);
    if loaded.has_map("telemetry_map") && rng.below(3) == 0 {
        let telemetry = model::random_telemetry(rng);
        let stored = loaded.set_telemetry(key, &telemetry);
        assert_eq!(stored, state.insert(key, telemetry));
    }
    if loaded.has_map("config_map") && rng.below(8) == 0 && case.func < 5 {
        let config = model::random_config(rng);
        loaded.set_config(case.func, &config);
        state.config[case.func as usize] = config;
    }
}

#[test]
fn decisions_and_maps_follow_the_models() {
    const STEPS: u32 = 4000;
    for (name, policy) in SHIPPED {
        // C and Rust versions of a policy see the same steps.
        let mut rng = Rng::new(policy.bytes().map(u64::from).sum());
        let (mut loaded, mut state) = (load(&object(name), None), State::default());
        let mut full = 0;
        for step in 0..STEPS {
            let case = random_case(&mut rng);
            disturb(&loaded, &mut state, &case, &mut rng);
            let want = model::decide(policy, &case, &mut state);
            assert_eq!(loaded.decide(&case), want, "{name}, step {step}: {case:?}");
            if loaded.has_map("telemetry_map") {
                let key = model::key(&case);
                assert_eq!(loaded.telemetry(key), state.get(key), "{name}, step {step}: {case:?}");
                full += u32::from(state.len() == TELEMETRY_ENTRIES);
            }
        }
        // The steps reached what happens when the map has no room.
        assert!(full > STEPS / 2 || !loaded.has_map("telemetry_map"), "{name}");
    }
}

/// C and Rust policies declare one map, so that they can share it.
#[test]
fn languages_agree_on_map_shapes() {
    for name in ["adaptive_channels", "slo_enforcer"] {
        let shapes = |name: &str| {
            let verified = verify(&object(name), None).unwrap();
            let mut maps = verified.program().maps().to_vec();
            maps.sort_by(|a, b| a.name.cmp(&b.name));
            maps
        };
        let (c, rust) = (shapes(name), shapes(&format!("{name}_rs")));
        // Their types have other names in each language.
        assert!(
            c.len() == rust.len() && c.iter().zip(&rust).all(|(c, r)| c.name == r.name && c.same_shape(r)),
            "{c:?}\n{rust:?}"
        );
    }
}

/// The hook is the section's; another one is not made to fit.
#[test]
fn tuner_policies_do_not_verify_as_ncclbpf() {
    let rejection = verify(&object("size_aware"), Some(Hook::NcclBpf)).unwrap_err();
    assert_eq!(rejection.kind().name(), "ctx-write", "{rejection}");
}
