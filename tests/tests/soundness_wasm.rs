//! Accepted programs on the host's real path: translated, compiled and run by [`Instance`], they leave the same r0, context
//! and maps as the reference interpreter, and no access leaves the region that was proved
//! ([`Translator::check_regions`] makes that a trap).
//!
//! Seeded; `RINGFENCE_WASM_PROGRAMS=N` and `RINGFENCE_WASM_SEED=N` change it.

use ringfence_host::maps::{DEFAULT_MAP_BYTES, Owner};
use ringfence_host::{Engine, Instance, Limits, MapRegistry, MapSet, PolicyModule, ScopeRules};
use ringfence_soak::kernel::World;
use ringfence_soak::mutate::mutate;
use ringfence_soak::oracle::{fill_maps, interp, random_context};
use ringfence_soak::{Random, Shape, generate, maps};
use ringfence_translator::interp::FaultKind;
use ringfence_translator::isa::Insn;
use ringfence_translator::verify::{ReturnRule, Verifier};
use ringfence_translator::{Env, MapKind, Program, Translator, Verified};
use std::sync::Arc;

const CTX_BYTES: u32 = 64;
/// Steps of a run; Wasm gets fuel for some more.
const STEPS: u64 = 200_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

/// No results that differ between runs.
fn shape() -> Shape {
    Shape {
        helpers: vec![],
        callbacks: false,
        records: false,
        locks: false,
        stale_values: false,
        long_loops: 0,
        ..Shape::generic()
    }
}

/// Random numbers differ, and a value that outlives its key may belong to another key by then.
fn comparable(program: &Program, mutant: bool) -> bool {
    program.iter().all(|(_, i)| match i {
        Insn::CallHelper { id } => *id == 1 || (matches!(id, 2 | 3) && !mutant),
        _ => true,
    })
}

/// The interpreter's end of a run that begins in a random world; `None` if the run is too long.
fn reference(program: &Program, r: &mut Random) -> Option<(World, u64, World)> {
    let mut run = interp(program, random_context(CTX_BYTES, r), &[], 1).budget(STEPS);
    fill_maps(&mut run, r);
    let start = World::new(run.memory().ctx(), run.memory().maps());
    match run.run() {
        Ok(r0) => Some((start, r0, World::new(run.memory().ctx(), run.memory().maps()))),
        Err(f) if f.kind == FaultKind::Budget => None,
        Err(f) => panic!("{f}\n{}", program.disassemble()),
    }
}

fn fill(set: &MapSet, world: &World) {
    for (map, content) in set.iter().zip(&world.maps) {
        if map.decl().kind == MapKind::Hash {
            let keys: Vec<Vec<u8>> = map.entries().map(|(k, _)| k).collect();
            keys.iter().for_each(|k| map.delete(k).expect("a key that is there"));
        }
        content.iter().for_each(|(k, v)| map.update(k, v, 0).expect("room for the value"));
    }
}

fn left(ctx: Vec<u8>, set: &MapSet) -> World {
    let content = |m: &Arc<ringfence_host::Map>| {
        let mut entries: Vec<_> = if m.decl().read_only { vec![] } else { m.entries().collect() };
        entries.sort();
        entries
    };
    World { ctx, maps: set.iter().map(content).collect() }
}

/// Runs the program three times; what differs, in words.
fn compare(verified: &Verified, r: &mut Random) -> Result<u32, String> {
    let engine = Engine::global().expect("an engine");
    let module = Translator::new().check_regions().translate(verified).map_err(|e| e.to_string())?;
    let policy = PolicyModule::compile(engine, module).map_err(|e| e.to_string())?;
    let owner = Owner { policy: policy.name().to_owned(), communicator: 0 };
    let registry = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
    let set = registry.resolve(policy.maps(), &ScopeRules::default(), &owner).map_err(|e| e.to_string())?;
    // The checks take fuel that no proof counts.
    let limits = Limits { fuel: Some(100 * STEPS) };
    let mut instance = Instance::new(&policy, &set, limits).map_err(|e| e.to_string())?;
    let mut runs = 0;
    for _ in 0..3 {
        let Some((start, r0, end)) = reference(verified.program(), r) else { continue };
        fill(&set, &start);
        let mut ctx = start.ctx.clone();
        let got = instance.run_generic(&mut ctx).map_err(|f| format!("the module faults: {f}"))?;
        if got != r0 {
            return Err(format!("r0 is {got:#x}, in the interpreter {r0:#x}; context {:x?}", start.ctx));
        }
        let wasm = left(ctx, &set);
        if wasm != end {
            return Err(format!("start {start:x?}\nwasm {wasm:x?}\ninterpreter {end:x?}"));
        }
        runs += 1;
    }
    Ok(runs)
}

#[test]
fn wasm_leaves_what_the_interpreter_leaves() {
    let (programs, seed) = (setting("RINGFENCE_WASM_PROGRAMS", 1000), setting("RINGFENCE_WASM_SEED", 1));
    let env = Env { ret: ReturnRule::Scalar, insn_budget: 20_000, ..Env::generic(CTX_BYTES) };
    let verifier = Verifier::new(Arc::new(env));
    let (mut r, shape, maps) = (Random::new(seed), shape(), maps()[..5].to_vec());
    let (mut accepted, mut runs) = (0, 0);
    for n in 0..programs {
        let mut code = generate(&mut r, &shape);
        let mutant = r.chance(50);
        if mutant {
            mutate(&mut code, &mut r);
        }
        let Ok(program) = code.program(&maps) else { continue };
        if !comparable(&program, mutant) {
            continue;
        }
        let Ok(verified) = verifier.verify(program) else { continue };
        accepted += 1;
        match compare(&verified, &mut r) {
            Ok(k) => runs += k,
            Err(why) => panic!("seed {seed}, program {n}: {why}\n{}", verified.program().disassemble()),
        }
    }
    println!("{accepted} of {programs} programs accepted, {runs} runs compared");
    assert!(accepted * 3 > programs && u64::from(runs) > accepted, "{accepted} of {programs}, {runs} runs");
}
