//! Programs in these tests are assembled and *not* verified, so that they can also do what a verified program cannot.

use super::*;
use crate::decision::{CommInfo, CostTable};
use crate::engine::Engine;
use crate::maps::{MapRegistry, Owner, ScopeRules};
use crate::policy::Code;
use crate::raw::{RawError, run_unverified};
use ringfence_guest::abi::UNSET;
use ringfence_translator::isa::{Pc, asm::assemble};
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, MapDecl, MapKind, Translator, translate_unverified};
use std::num::NonZeroU32;

pub(crate) fn policy(hook: Hook, text: &str, maps: &[MapDecl]) -> PolicyModule {
    let program = assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let module = translate_unverified(&program, &Env::base_helpers()).unwrap();
    PolicyModule::from_code(Engine::global().unwrap(), Code::Unverified(module, hook.env())).unwrap()
}

/// The same, proved.
pub(super) fn verified(hook: Hook, text: &str, maps: &[MapDecl]) -> PolicyModule {
    let program = assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let verified =
        Verifier::new(hook.env()).verify(program).unwrap_or_else(|r| panic!("{}\n{text}", r.message()));
    let module = Translator::new().translate(&verified).unwrap();
    PolicyModule::compile(Engine::global().unwrap(), module).unwrap()
}

pub(super) fn registry() -> MapRegistry {
    MapRegistry::new(Engine::global().unwrap(), 1 << 24)
}

fn owner() -> Owner {
    Owner { policy: "p".into(), communicator: 1 }
}

pub(super) fn instance_in(registry: &MapRegistry, policy: &PolicyModule) -> Instance {
    let maps = registry.resolve(policy.maps(), &ScopeRules::default(), &owner()).unwrap();
    Instance::new(policy, &maps, Limits { fuel: Some(10_000) }).unwrap()
}

pub(crate) fn instance(hook: Hook, text: &str) -> Instance {
    instance_in(&registry(), &policy(hook, text, &[]))
}

pub(super) fn map(name: &str, kind: MapKind, key_size: u32, value_size: u32) -> MapDecl {
    MapDecl { name: name.into(), kind, key_size, value_size, max_entries: 4, ..MapDecl::default() }
}

pub(super) const COMM: CommInfo = CommInfo {
    comm_id: 0x1122_3344_5566_7788,
    n_ranks: 16,
    n_nodes: 2,
    n_nvl_domains: 3,
    min_ranks_per_nvl_domain: 4,
    max_ranks_per_nvl_domain: 8,
    max_channels: 32,
};

/// Row `a`, column `p` costs `10 * a + p` microseconds and a half; Tree/Simple and PAT are not available.
pub(super) fn costs() -> Vec<f32> {
    let cost = |i: usize| if i == 2 || i >= 18 { -1.0 } else { (10 * (i / 3) + i % 3) as f32 + 0.5 };
    (0..21).map(cost).collect()
}

pub(super) fn decide(instance: &mut Instance, so_far: Decision) -> Result<Decision, Fault> {
    let mut values = costs();
    let table = CostTable::new(&mut values, 7, 3).unwrap();
    let input = TunerInput {
        comm: &COMM,
        func: 4,
        n_bytes: 0x99_aabb_ccdd,
        num_pipe_ops: 5,
        reg_buff: true,
        call_seq: 0x7_0000_0006,
        costs: table.costs(),
    };
    instance.decide(&input, so_far)
}

pub(super) fn channels(n: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(n)
}

/// Each 32-bit piece of the context, copied by the policy into its decision.
#[test]
fn the_tuner_context_is_filled() {
    let mut want = vec![
        0xaabb_ccdd,
        0x99,
        0x5566_7788,
        0x1122_3344,
        4,
        16,
        2,
        5,
        1,
        7,
        3,
        32, // up to max_channels
        0x3_fffb,
        3,
        4,
        8,
        UNSET,
        UNSET,
        0,
        0,
        6,
        7, // up to call_seq
    ];
    want.extend(costs().iter().map(|c| if *c < 0.0 { UNSET } else { (c * 1000.0) as u32 }));
    for (i, want) in want.iter().enumerate() {
        let text = format!("w2 = *(u32 *)(r1 + {})\n*(u32 *)(r1 + 72) = w2\nr0 = 0\nexit", 4 * i);
        let got = decide(&mut instance(Hook::Tuner, &text), Decision::DEFER).unwrap();
        assert_eq!(got, Decision { route: None, channels: channels(*want) }, "context + {}", 4 * i);
    }
}

#[test]
fn tuner_decisions_are_read_back() {
    let ring_simple = Some((Algo::Ring, Proto::Simple));
    let so_far = Decision { route: Some((Algo::Tree, Proto::Ll)), channels: channels(3) };
    let set = |offset: u32, value: i64| format!("w2 = {value}\n*(u32 *)(r1 + {offset}) = w2\n");
    let both = set(64, 1) + &set(68, 2);
    for (body, r0, before, want) in [
        ("".to_string(), 0, Decision::DEFER, Decision::DEFER),
        ("".to_string(), 0, so_far, so_far),
        (both.clone(), 0, Decision::DEFER, Decision { route: ring_simple, channels: None }),
        (both.clone() + &set(72, 8), 0, so_far, Decision { route: ring_simple, channels: channels(8) }),
        // Not submitted.
        (both.clone() + &set(72, 8), 1, so_far, so_far),
        (both.clone(), -1, Decision::DEFER, Decision::DEFER),
        // Half a route, and numbers that name nothing.
        (set(64, 1), 0, Decision::DEFER, Decision::DEFER),
        (set(68, 1), 0, Decision::DEFER, Decision::DEFER),
        (set(64, 7) + &set(68, 0), 0, Decision::DEFER, Decision::DEFER),
        (set(64, 0) + &set(68, 3), 0, so_far, Decision { route: None, ..so_far }),
        // Taking back an earlier policy's wish.
        (set(64, -1) + &set(72, 0), 0, so_far, Decision::DEFER),
    ] {
        let mut i = instance(Hook::Tuner, &format!("{body}r0 = {r0}\nexit"));
        assert_eq!(decide(&mut i, before), Ok(want), "{body}r0 = {r0}");
        assert_eq!(i.counters().decisions, u64::from(r0 == 0));
    }
}

const LOOP_ON_TREE: &str = "w2 = *(u32 *)(r1 + 64)\nspin:\nif w2 == 0 goto spin\nr0 = 0\nexit";

#[test]
fn fuel_ends_a_loop_and_the_instance_lives_on() {
    let mut i = instance(Hook::Tuner, LOOP_ON_TREE);
    let tree = Decision { route: Some((Algo::Tree, Proto::Ll)), channels: None };
    for _ in 0..3 {
        assert_eq!(decide(&mut i, tree), Err(Fault::OutOfFuel));
        assert_eq!(decide(&mut i, Decision::DEFER), Ok(Decision::DEFER));
    }
    let (most, last) = (i.fuel_limit(), i.fuel_used());
    assert!(last > 0 && last < most, "{last} of {most}");
    let want = Snapshot {
        calls: 6,
        decisions: 3,
        out_of_fuel: 3,
        fuel: 3 * (most + last),
        fuel_max: most,
        fuel_last: last,
        ..Snapshot::default()
    };
    assert_eq!(i.counters(), want);
    drop(i.policy().clone());
    assert_eq!(i.policy().metrics().snapshot(), want);
}

#[test]
fn traps_name_the_instruction() {
    // A pointer with the private memory's tag and an offset outside it; one whose tag names nothing.
    for (text, pc, code) in [
        ("r2 = 1\nr2 <<= 32\nr2 += 65536\nr0 = *(u64 *)(r2 + 0)\nexit", 3, TrapCode::OutOfBounds),
        ("r2 = 99\nr2 <<= 32\nr0 = *(u64 *)(r2 + 0)\nexit", 2, TrapCode::Unreachable),
    ] {
        let mut i = instance(Hook::Tuner, text);
        let Err(Fault::Trap(trap)) = decide(&mut i, Decision::DEFER) else { panic!("{text}: no trap") };
        assert_eq!(trap.place.as_ref().map(|p| p.pc), Some(Pc(pc)), "{text}: {trap:?}");
        assert_eq!(trap.code, code, "{text}");
        assert_eq!(i.counters().traps, 1);
    }
}

#[test]
fn ncclbpf_actions_are_unpacked() {
    let action =
        |flags: u64, algo: u64, proto: u64, channels: u64| flags << 32 | channels << 16 | proto << 8 | algo;
    let so_far = Decision { route: Some((Algo::Tree, Proto::Ll)), channels: channels(3) };
    for (action, before, want) in [
        (0, Decision::DEFER, Decision::DEFER),
        (0, so_far, so_far),
        (
            action(7, 1, 2, 8),
            so_far,
            Decision { route: Some((Algo::Ring, Proto::Simple)), channels: channels(8) },
        ),
        (
            action(3, 1, 2, 8),
            Decision::DEFER,
            Decision { route: Some((Algo::Ring, Proto::Simple)), channels: None },
        ),
        (action(1, 1, 2, 8), so_far, so_far),
        (action(2, 1, 2, 8), Decision::DEFER, Decision::DEFER),
        (action(4, 1, 2, 0), so_far, so_far),
        (action(4, 1, 2, 255), so_far, Decision { channels: channels(255), ..so_far }),
        (action(3, 9, 2, 8), Decision::DEFER, Decision::DEFER),
        (action(8, 1, 2, 8), Decision::DEFER, Decision::DEFER),
    ] {
        let mut i = instance(Hook::NcclBpf, &format!("r0 = {action} ll\nexit"));
        assert_eq!(decide(&mut i, before), Ok(want), "{action:#x}");
    }
}

/// Words of NCCLbpf's context that are 32 or 64 bits wide, returned as channels; and what stays from call to call.
#[test]
fn the_ncclbpf_context_is_filled() {
    let wants =
        [(0, 0xdd), (32, 6), (40, 4), (44, 5), (48, 1), (52, 16), (56, 2), (60, 0), (64, 0), (8, 0), (24, 0)];
    let ret =
        |offset: u32| format!("r0 = *(u8 *)(r1 + {offset})\nr0 <<= 16\nr2 = 4\nr2 <<= 32\nr0 |= r2\nexit");
    for (offset, want) in wants {
        let got = decide(&mut instance(Hook::NcclBpf, &ret(offset)), Decision::DEFER).unwrap();
        assert_eq!(got.channels, channels(want), "context + {offset}");
    }
    // current_channels + 1: the count goes up, also in an instance that takes over.
    let count = "r0 = *(u32 *)(r1 + 60)\nr0 += 1\nr0 <<= 16\nr2 = 4\nr2 <<= 32\nr0 |= r2\nexit";
    let mut first = instance(Hook::NcclBpf, count);
    assert_eq!(decide(&mut first, Decision::DEFER).unwrap().channels, channels(1));
    assert_eq!(decide(&mut first, Decision::DEFER).unwrap().channels, channels(2));
    let mut second = instance(Hook::NcclBpf, count);
    second.inherit(&first);
    assert_eq!(decide(&mut second, Decision::DEFER).unwrap().channels, channels(3));
    let mut keep = instance(Hook::NcclBpf, "r0 = 0\nexit");
    keep.inherit(&second);
    assert_eq!(decide(&mut keep, Decision::DEFER).unwrap().channels, channels(3));
}

#[test]
fn ncclbpf_latencies_come_from_the_telemetry_map() {
    let text = "r0 = *(u64 *)(r1 + 8)\nr2 = *(u64 *)(r1 + 16)\nr0 += r2\nr2 = *(u64 *)(r1 + 24)\nr0 += r2\n\
                r3 = map[telemetry_map] ll\nr0 <<= 16\nr2 = 4\nr2 <<= 32\nr0 |= r2\nexit";
    let maps = [map("telemetry_map", MapKind::Hash, 8, 48)];
    let mut i = instance_in(&registry(), &policy(Hook::NcclBpf, text, &maps));
    assert_eq!(decide(&mut i, Decision::DEFER).unwrap().channels, None);
    let value: Vec<u8> = [1u64, 20, 100, 9, 9, 9].iter().flat_map(|w| w.to_le_bytes()).collect();
    let key = [4, 0, 0, 0, 2, 0, 0, 0];
    i.maps().get("telemetry_map").unwrap().update(&key, &value, 0).unwrap();
    assert_eq!(decide(&mut i, Decision::DEFER).unwrap().channels, channels(121));
}

#[test]
fn generic_programs_run_over_a_buffer() {
    let mut i = instance(Hook::Generic, "r0 = r2\nr3 = *(u8 *)(r1 + 2)\nr3 += 1\n*(u8 *)(r1 + 0) = r3\nexit");
    let mut mem = [1, 2, 3];
    assert_eq!(i.run_generic(&mut mem), Ok(3));
    assert_eq!(mem, [4, 2, 3]);
    let mut large = vec![0; CTX_MAX as usize + 1];
    assert_eq!(i.run_generic(&mut large).unwrap_err().name(), "host");
    assert!(i.run_generic(&mut large[1..]).is_ok());
    assert_eq!(decide(&mut i, Decision::DEFER).unwrap_err().name(), "host");
}

fn run_raw(text: &str, maps: &[MapDecl]) -> Result<u64, RawError> {
    let module = translate_unverified(&assemble(text, maps).unwrap(), &Env::base_helpers()).unwrap();
    run_unverified(&module, &mut [0; 16], 10_000)
}

#[test]
fn unverified_programs_run_apart() {
    assert_eq!(run_raw("r0 = 42\nexit", &[]), Ok(42));
    assert_eq!(run_raw("l:\ngoto l\nexit", &[]), Err(RawError::Fault(Fault::OutOfFuel)));
}

/// Key 5 at r10-8, value at r10-16 and above; `call` with map `m`.
fn map_call(helper: &str, rest: &str) -> String {
    format!(
        "r6 = 5\n*(u64 *)(r10 - 8) = r6\nr6 = 77\n*(u64 *)(r10 - 16) = r6\nr1 = map[m] ll\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\n\
         r4 = 0\n{helper}\n{rest}\nexit"
    )
}

#[test]
fn map_helpers_answer_like_the_kernel() {
    let read = "call map_update_elem\nr1 = map[m] ll\nr2 = r10\nr2 += -8\ncall map_lookup_elem\nif r0 == 0 goto +1\nr0 = *(u64 *)(r0 + 0)";
    let hash = [map("m", MapKind::Hash, 8, 8)];
    let small = [map("m", MapKind::Hash, 4, 4)];
    let array = [map("m", MapKind::Array, 4, 8)];
    let frozen = [MapDecl { read_only: true, ..map("m", MapKind::Hash, 8, 8) }];
    let update = "call map_update_elem";
    for (call, maps, want) in [
        ("call map_lookup_elem".to_string(), &hash, 0),
        (read.to_string(), &hash, 77),
        (format!("r4 = 2\n{update}"), &hash, -2),
        (format!("r4 = 3\n{update}"), &hash, -22),
        (
            format!("{update}\nr1 = map[m] ll\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 1\n{update}"),
            &hash,
            -17,
        ),
        ("call map_delete_elem".to_string(), &hash, -2),
        (format!("{update}\nr1 = map[m] ll\nr2 = r10\nr2 += -8\ncall map_delete_elem"), &hash, 0),
        (read.to_string(), &small, 77),
        (update.to_string(), &array, -7),
        ("call map_delete_elem".to_string(), &array, -22),
        (update.to_string(), &frozen, -1),
        ("call map_delete_elem".to_string(), &frozen, -1),
        // Pointers to nothing, and a map object that is none.
        (format!("r3 = 0\n{update}"), &hash, -14),
        (format!("r2 = 0\n{update}"), &hash, -14),
        (format!("r3 = 99\nr3 <<= 32\n{update}"), &hash, -14),
        (format!("r1 = 7\n{update}"), &hash, -22),
        ("r2 = 0\ncall map_lookup_elem".to_string(), &hash, 0),
    ] {
        assert_eq!(run_raw(&map_call(&call, ""), maps), Ok(want as u64), "{call}\n{}", maps[0].value_size);
    }
}

/// A value pointer serves as key and as value of another update: both then lie in a map's memory.
#[test]
fn keys_and_values_may_lie_in_maps() {
    let text = map_call(
        "call map_update_elem",
        "r1 = map[m] ll\nr2 = r10\nr2 += -8\ncall map_lookup_elem\nif r0 == 0 goto out\nr7 = r0\n\
         r1 = map[m] ll\nr2 = r7\nr3 = r7\nr4 = 0\ncall map_update_elem\nif r0 != 0 goto out\n\
         r6 = 77\n*(u64 *)(r10 - 8) = r6\nr1 = map[m] ll\nr2 = r10\nr2 += -8\ncall map_lookup_elem\nif r0 == 0 goto out\n\
         r0 = *(u64 *)(r0 + 0)\nout:",
    );
    assert_eq!(run_raw(&text, &[map("m", MapKind::Hash, 8, 8)]), Ok(77));
}

#[test]
fn instances_share_maps_by_name_and_shape() {
    let registry = registry();
    let count = "r6 = 0\n*(u64 *)(r10 - 8) = r6\nr1 = map[m] ll\nr2 = r10\nr2 += -8\ncall map_lookup_elem\nif r0 == 0 goto +3\n\
                 r1 = 1\nlock *(u64 *)(r0 + 0) += r1\nr0 = *(u64 *)(r0 + 0)\nexit";
    let maps = [map("m", MapKind::Array, 4, 8)];
    let (a, b) = (policy(Hook::Generic, count, &maps), policy(Hook::Generic, count, &maps));
    let (mut a, mut b) = (instance_in(&registry, &a), instance_in(&registry, &b));
    assert_eq!(
        (a.run_generic(&mut []), b.run_generic(&mut []), a.run_generic(&mut [])),
        (Ok(1), Ok(2), Ok(3))
    );
    assert_eq!(b.maps().get("m").unwrap().lookup(&[0; 4]), Some(3u64.to_le_bytes().to_vec()));
}

#[test]
fn maps_that_do_not_fit_are_refused() {
    let p = policy(Hook::Generic, "r1 = map[m] ll\nr0 = 0\nexit", &[map("m", MapKind::Array, 4, 8)]);
    let kind = |decls: &[MapDecl]| {
        let maps = registry().resolve(decls, &ScopeRules::default(), &owner()).unwrap();
        Instance::new(&p, &maps, Limits::default()).map(|_| ()).map_err(|e| e.kind())
    };
    assert_eq!(kind(&[]), Err(ErrorKind::Instantiate));
    assert_eq!(kind(&[map("m", MapKind::Array, 4, 16)]), Err(ErrorKind::Instantiate));
    assert_eq!(kind(&[map("m", MapKind::Array, 4, 8)]), Ok(()));
}

#[test]
fn large_values_cost_fuel() {
    // 1 KiB values at the context: 128 words an update.
    let text = "r7 = r1\nr8 = 1000\nl:\nr6 = 0\n*(u64 *)(r10 - 8) = r6\nr1 = map[m] ll\nr2 = r10\nr2 += -8\nr3 = r7\nr4 = 0\n\
                call map_update_elem\nr8 += -1\nif r8 != 0 goto l\nr0 = 0\nexit";
    let run = |value_size, fuel| {
        let module = assemble(text, &[map("m", MapKind::Array, 4, value_size)]).unwrap();
        let module = translate_unverified(&module, &Env::base_helpers()).unwrap();
        run_unverified(&module, &mut [0; 16], fuel)
    };
    assert_eq!(run(8, 100_000), Ok(0));
    assert_eq!(run(1024, 100_000), Err(RawError::Fault(Fault::OutOfFuel)));
    assert_eq!(run(1024, 300_000), Ok(0));
}

#[test]
fn the_hash_tells_policies_apart() {
    let hash = |text: &str, decl: MapDecl| policy(Hook::Generic, text, &[decl]).hash();
    let m = map("m", MapKind::Array, 4, 8);
    let base = hash("r0 = 0\nexit", m.clone());
    assert_eq!(base, hash("r0 = 0\nexit", m.clone()));
    assert_ne!(base, hash("r0 = 1\nexit", m.clone()));
    assert_ne!(base, hash("r0 = 0\nexit", MapDecl { name: "n".into(), ..m }));
    assert_eq!(base.to_string().len(), 64);
    assert!(base.to_string().starts_with(&base.short()));
}

#[test]
fn lines_for_the_log_are_formatted_with_what_the_policy_can_reach() {
    let said = |text: &str| {
        let mut i = instance(Hook::Generic, text);
        let r0 = i.run_generic(&mut []).unwrap() as i64;
        (r0, i.policy().lines().unwrap().pop().map(|l| l.text()))
    };
    // "%d\0" and "%s\0" on the stack; the text behind %s is "abcdefg\0", also there.
    let call = |fmt: u32, size: i64, value: &str| {
        format!(
            "*(u32 *)(r10 - 8) = {fmt}\nr3 = 0x0067666564636261 ll\n*(u64 *)(r10 - 16) = r3\nr1 = r10\nr1 += -8\nr2 = {size}\n{value}\n\
             call trace_printk\nexit"
        )
    };
    let (number, text) = (0x6425, 0x7325);
    assert_eq!(said(&call(number, 4, "r3 = -7")), (2, Some("-7".into())));
    assert_eq!(said(&call(text, 4, "r3 = r10\nr3 += -16")), (7, Some("abcdefg".into())));
    assert_eq!(said(&call(text, 4, "r3 = 0")), (7, Some("(fault)".into())));
    assert_eq!(said(&call(text, 4, "r3 = -1")), (7, Some("(fault)".into())));
    // Without the NUL, of a size beyond bounds, and at no address.
    assert_eq!(said(&call(number, 2, "r3 = 0")), (-22, None));
    for size in [0, 257, -1] {
        assert_eq!(said(&call(number, size, "r3 = 0")), (-22, None), "{size}");
    }
    assert_eq!(said("r1 = 0\nr2 = 4\nr3 = 0\ncall trace_printk\nexit"), (-14, None));
}
