//! Objects built for NCCLbpf decide as they do in NCCLbpf. The objects and the traces of a native run are made by
//! `tests/ncclbpf/build.sh` from NCCLbpf's public source; `RINGFENCE_NCCLBPF` says where. Without it nothing is tested.

use ringfence_host::{
    Algo, CommInfo, CostTable, Decision, Engine, Hook, Instance, Limits, MapRegistry, Owner, PolicyModule,
    Proto, ScopeRules, TunerInput,
};
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Object, RejectKind, Rejection, Translator};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

fn directory() -> Option<PathBuf> {
    let dir = std::env::var_os("RINGFENCE_NCCLBPF").map(PathBuf::from);
    if dir.is_none() {
        eprintln!("skipped: RINGFENCE_NCCLBPF is not set (see tests/ncclbpf/build.sh)");
    }
    dir
}

fn load(object: &Path) -> Result<PolicyModule, Rejection> {
    let object = Object::parse(&std::fs::read(object).unwrap()).unwrap();
    let spec = object.programs().next().unwrap();
    let hook = Hook::from_section(spec.section()).unwrap();
    assert_eq!(hook, Hook::NcclBpf);
    let verified = Verifier::new(hook.env()).verify(object.program(spec.name()).unwrap())?;
    let module = Translator::new().translate(&verified).unwrap();
    Ok(PolicyModule::compile(Engine::global().unwrap(), module).unwrap())
}

fn instance(policy: &PolicyModule) -> Instance {
    let engine = Engine::global().unwrap();
    let owner = Owner { policy: policy.name().into(), communicator: 1 };
    let maps =
        MapRegistry::new(engine, 1 << 24).resolve(policy.maps(), &ScopeRules::default(), &owner).unwrap();
    Instance::new(policy, &maps, Limits::default()).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// Runs one line of a trace: a write to a map, or a call whose decision is compared.
fn step(instance: &mut Instance, call_seq: &mut u64, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| words[i].parse::<i64>().unwrap();
    if words[0] == "put" {
        // A map that the code does not refer to is not among the program's maps.
        if let Some(map) = instance.maps().get(words[1]) {
            map.update(&hex(words[2]), &hex(words[3]), 0).unwrap();
        }
        return;
    }
    let comm = CommInfo { n_ranks: 16, n_nodes: 2, max_channels: 64, ..CommInfo::default() };
    let mut costs = [1.0; 21];
    let table = CostTable::new(&mut costs, 7, 3).unwrap();
    let input = TunerInput {
        comm: &comm,
        func: number(2) as u32,
        n_bytes: number(1) as u64,
        num_pipe_ops: number(3) as u32,
        reg_buff: number(4) == 1,
        call_seq: *call_seq,
        costs: table.costs(),
    };
    *call_seq += 1;
    let got = instance.decide(&input, Decision::DEFER).unwrap();
    let route = Algo::new(number(7) as u32).zip(Proto::new(number(8) as u32));
    assert_eq!(
        got,
        Decision { route, channels: NonZeroU32::new(number(6) as u32) },
        "call {call_seq}: {line}"
    );
}

#[test]
fn public_objects_decide_as_in_ncclbpf() {
    let Some(dir) = directory() else { return };
    let mut calls = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let trace = entry.unwrap().path();
        if trace.extension().is_none_or(|e| e != "trace") {
            continue;
        }
        let policy =
            load(&trace.with_extension("bpf.o")).unwrap_or_else(|e| panic!("{}: {e}", trace.display()));
        let (mut instance, mut call_seq) = (instance(&policy), 0);
        for line in std::fs::read_to_string(&trace).unwrap().lines() {
            step(&mut instance, &mut call_seq, line);
        }
        assert_eq!(call_seq, 3000, "{}", trace.display());
        calls += call_seq;
    }
    assert!(calls >= 10 * 3000, "{calls} calls");
}

#[test]
fn public_bad_objects_are_refused() {
    let Some(dir) = directory() else { return };
    for (name, kind) in [
        ("bad_lookup", RejectKind::NullDeref),
        ("bad_oob_access", RejectKind::CtxOob),
        ("bad_unregistered_helper", RejectKind::UnknownHelper),
        ("bad_stack_overflow", RejectKind::StackOob),
        ("bad_infinite_loop", RejectKind::UnboundedLoop),
        // It writes at byte 256 of a context of 72.
        ("bad_write_ctx", RejectKind::CtxOob),
    ] {
        let refusal =
            load(&dir.join(format!("{name}.bpf.o"))).err().unwrap_or_else(|| panic!("{name}: accepted"));
        assert_eq!(refusal.kind(), kind, "{name}: {refusal}");
    }
    // The ISA defines division by zero, so this one is accepted.
    assert!(load(&dir.join("bad_div_zero.bpf.o")).is_ok());
}
