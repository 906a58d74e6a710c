//! Every kind of map from C (`tests/c/policies/kinds.bpf.c`) and from Rust, through the guest SDK: the two declare the same maps, do
//! the same to them, and can share them.

use super::harness::repo;
use super::toolchain::build;
use ringfence_host::maps::{DEFAULT_MAP_BYTES, Errno, MapSet, Owner};
use ringfence_host::{Engine, Instance, Limits, MapRegistry, PolicyModule, ScopeRules};
use ringfence_tests::random::Rng;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, Object, Translator};
use std::process::Command;
use std::sync::Arc;

const SOURCE: &str = r#"#![no_std]
use core::sync::atomic::{AtomicU64, Ordering};
use ringfence_guest::{Array, LruHashMap, PerCpuArray, PerCpuHashMap, RingBuf, Update, license, maps, plain};

plain! {
    pub struct Event { pub key: u64, pub amount: u32, pub odd: u32 }
}

maps! {
    static RECENT: LruHashMap<u64, u64, 16> = "recent";
    static TOTALS: PerCpuArray<u64, 2> = "totals";
    static BY_KEY: PerCpuHashMap<u64, u64, 64> = "by_key";
    static CALLS: Array<AtomicU64, 1> = "calls";
    static EVENTS: RingBuf<4096> = "events";
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "generic")]
pub extern "C" fn kinds(mem: &mut [u64; 32]) -> u64 {
    let (key, amount) = (mem[0], mem[1]);
    let recent = RECENT.get(&key);
    mem[2] = recent.unwrap_or(0);
    if recent.is_none() && RECENT.update(&key, &amount, Update::Create).is_err() {
        return 1;
    }
    if let Some(total) = TOTALS.get(0) {
        mem[3] = total.wrapping_add(amount);
        let _ = TOTALS.set(0, &mem[3]);
    }
    let of_key = BY_KEY.get(&key).unwrap_or(0).wrapping_add(amount);
    if BY_KEY.insert(&key, &of_key).is_err() {
        return 2;
    }
    mem[4] = of_key;
    if let Some(calls) = CALLS.get_ref(0) {
        mem[5] = calls.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    }
    mem[6] = TOTALS.get_slot(0, 0).unwrap_or(u64::MAX);
    let Some(record) = EVENTS.reserve::<Event>() else { return 3 };
    if amount & 1 == 1 {
        record.submit(Event { key, amount: amount as u32, odd: 1 });
    } else {
        record.discard();
    }
    if key == 7 && EVENTS.output(&Event { key, amount: 7, odd: 2 }).is_err() {
        return 4;
    }
    0
}
license!("Dual MIT/GPL");
"#;

fn c_object() -> Vec<u8> {
    let out = tempfile::tempdir().unwrap();
    let object = out.path().join("kinds.bpf.o");
    let clang = ["clang-19", "clang"]
        .into_iter()
        .find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()))
        .expect("clang");
    let status = Command::new(clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I"])
        .arg(repo().join("policies/include"))
        .arg("-c")
        .arg(repo().join("tests/c/policies/kinds.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read(object).unwrap()
}

fn rust_object() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let output = build(dir.path(), SOURCE);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(dir.path().join("out.bpf.o")).unwrap()
}

fn compile(object: &[u8]) -> PolicyModule {
    let program = Object::parse(object).unwrap().program("kinds").unwrap();
    let verified =
        Verifier::new(Arc::new(Env::generic(256))).verify(program).unwrap_or_else(|r| panic!("{r}"));
    let module = Translator::new().translate(&verified).unwrap();
    PolicyModule::compile(Engine::global().unwrap(), module).unwrap()
}

fn resolve(registry: &MapRegistry, policy: &PolicyModule, name: &str) -> MapSet {
    let owner = Owner { policy: name.into(), communicator: 0 };
    registry.resolve(policy.maps(), &ScopeRules::default(), &owner).unwrap()
}

fn registry() -> MapRegistry {
    MapRegistry::new(Engine::global().unwrap(), DEFAULT_MAP_BYTES)
}

/// Two ranks of a policy.
fn ranks(policy: &PolicyModule, maps: &MapSet) -> [Instance; 2] {
    [0, 1].map(|c| Instance::new(policy, &maps.for_communicator(c), Limits::default()).unwrap())
}

fn run(instance: &mut Instance, key: u64, amount: u64) -> (u64, Vec<u64>) {
    let mut memory = vec![0u8; 256];
    memory[..8].copy_from_slice(&key.to_le_bytes());
    memory[8..16].copy_from_slice(&amount.to_le_bytes());
    let r0 = instance.run_generic(&mut memory).unwrap();
    let word = |i: usize| u64::from_le_bytes(memory[8 * i..8 * i + 8].try_into().unwrap());
    (r0, (2..7).map(word).collect())
}

/// Entries of a map.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// All contents, in order.
fn dump(maps: &MapSet, names: &[&str]) -> Vec<(String, Entries)> {
    let entries = |name: &&str| {
        let mut all: Vec<_> = maps.get(name).unwrap().entries().collect();
        all.sort();
        ((*name).to_owned(), all)
    };
    names.iter().map(entries).collect()
}

#[test]
fn every_kind_of_map_works_from_c_and_from_rust() {
    const NAMES: [&str; 5] = ["recent", "totals", "by_key", "calls", "events"];
    let (c, rust) = (compile(&c_object()), compile(&rust_object()));
    let (in_c, in_rust) = (resolve(&registry(), &c, "c"), resolve(&registry(), &rust, "rust"));
    for name in NAMES {
        let (a, b) = (in_c.get(name).unwrap(), in_rust.get(name).unwrap());
        assert!(a.decl().same_shape(b.decl()), "{name}: {} and {}", a.shape(), b.shape());
    }
    let (mut c_ranks, mut rust_ranks) = (ranks(&c, &in_c), ranks(&rust, &in_rust));
    let mut rng = Rng::new(5);
    let (mut total, mut records) = ([0, 0], Vec::new());
    for i in 0..2000u64 {
        let (rank, key, amount) = (rng.below(2) as usize, rng.below(40), rng.below(1000));
        let (r0, words) = run(&mut c_ranks[rank], key, amount);
        assert_eq!((r0, &words), (0, &run(&mut rust_ranks[rank], key, amount).1), "{i}");
        total[rank] += amount;
        assert_eq!((words[1], words[3], words[4]), (total[rank], i + 1, total[0]), "{i}");
        records.extend((amount % 2 == 1).then_some([key, amount | 1 << 32]));
        records.extend((key == 7).then_some([7, 7 | 2 << 32]));
        if i % 50 == 49 {
            for maps in [&in_c, &in_rust] {
                let mut got = Vec::new();
                maps.get("events").unwrap().drain(usize::MAX, |r| {
                    got.push([0, 8].map(|at| u64::from_le_bytes(r[at..at + 8].try_into().unwrap())));
                });
                assert_eq!(got, records, "{i}");
            }
            records.clear();
        }
    }
    assert_eq!(dump(&in_c, &NAMES[..4]), dump(&in_rust, &NAMES[..4]));
    assert_eq!((in_c.get("recent").unwrap().len(), in_c.get("by_key").unwrap().len()), (16, 40));
    // A read of the value's type says what it is.
    let ty = in_c.get("by_key").unwrap().decl().value_type.clone().unwrap();
    assert_eq!(
        (ty.size, in_rust.get("by_key").unwrap().decl().value_type.as_ref().map(|t| t.size)),
        (8, Some(8))
    );
}

/// One map for both, since name and shape agree; the full per-CPU hash tells each of them.
#[test]
fn c_and_rust_share_the_maps_of_one_process() {
    let (c, rust) = (compile(&c_object()), compile(&rust_object()));
    let registry = registry();
    let (in_c, in_rust) = (resolve(&registry, &c, "c"), resolve(&registry, &rust, "rust"));
    assert!(in_c.iter().all(|m| in_rust.iter().any(|n| Arc::ptr_eq(m, n))));
    let (mut c_ranks, mut rust_ranks) = (ranks(&c, &in_c), ranks(&rust, &in_rust));
    assert_eq!(run(&mut c_ranks[1], 5, 10).1, [0, 10, 10, 1, 0]);
    assert_eq!(run(&mut rust_ranks[1], 5, 1).1, [10, 11, 11, 2, 0]);
    assert_eq!(run(&mut rust_ranks[0], 5, 2).1, [10, 2, 2, 3, 2]);
    for key in 100..163u64 {
        assert_eq!(in_c.get("by_key").unwrap().update(&key.to_le_bytes(), &[0; 8], 1), Ok(()));
    }
    assert_eq!(in_c.get("by_key").unwrap().update(&[9; 8], &[0; 8], 1), Err(Errno::TOO_BIG));
    assert_eq!((run(&mut c_ranks[0], 99, 1).0, run(&mut rust_ranks[0], 99, 1).0), (2, 2));
}
