//! The translator's output: golden text for small programs, and the same results as the reference interpreter.

use ringfence_host::raw;
use ringfence_tests::random::{self, Shape};
use ringfence_tests::run;
use ringfence_translator::interp::Interp;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{
    Env, MapDecl, MapKind, Program, Translator, UnverifiedModule, translate_unverified,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wasmparser::{Validator, WasmFeatures};

/// Fuel of a run: far above what the programs need.
const FUEL: u64 = 100_000_000;

fn validate(wasm: &[u8]) {
    // What the host's engine allows, and no more.
    let features = (WasmFeatures::WASM2 | WasmFeatures::THREADS | WasmFeatures::MULTI_MEMORY)
        .difference(WasmFeatures::SIMD | WasmFeatures::REFERENCE_TYPES);
    Validator::new_with_features(features).validate_all(wasm).expect("the output is valid");
}

// ---- golden files

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/lower")
}

/// A golden case: comment lines `; raw`, `; ctx BYTES` and `; map NAME KIND KEY VALUE ENTRIES`, then the program.
struct Case {
    raw: bool,
    ctx: u32,
    maps: Vec<MapDecl>,
    text: String,
}

impl Case {
    fn read(path: &Path) -> Case {
        let text = std::fs::read_to_string(path).expect("readable");
        let mut case = Case { raw: false, ctx: 64, maps: Vec::new(), text };
        for line in case.text.lines().filter_map(|l| l.strip_prefix("; ")) {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["raw"] => case.raw = true,
                ["ctx", bytes] => case.ctx = bytes.parse().expect("a number"),
                ["map", name, kind, key, value, entries] => {
                    case.maps.push(map(name, kind, [key, value, entries]))
                }
                _ => {}
            }
        }
        case
    }

    fn translate(&self) -> Vec<u8> {
        let program = assemble(&self.text, &self.maps).expect("assembles");
        if self.raw {
            let module = translate_unverified(&program, &Env::base_helpers()).expect("translates");
            return module.bytes().to_vec();
        }
        verified(program, self.ctx).expect("the verifier accepts it")
    }
}

fn map(name: &str, kind: &str, sizes: [&str; 3]) -> MapDecl {
    let [key_size, value_size, max_entries] = sizes.map(|s| s.parse().expect("a number"));
    let kind = match kind {
        "array" => MapKind::Array,
        "hash" => MapKind::Hash,
        "global" => MapKind::Global,
        other => panic!("no kind {other}"),
    };
    let init = if kind == MapKind::Global { vec![0; value_size as usize] } else { Vec::new() };
    MapDecl { name: name.into(), kind, key_size, value_size, max_entries, init, ..MapDecl::default() }
}

/// The Wasm of a program that the verifier accepts over a buffer.
fn verified(program: Program, ctx: u32) -> Result<Vec<u8>, String> {
    let verified = Verifier::new(Arc::new(Env::generic(ctx))).verify(program).map_err(|r| r.to_string())?;
    let module = Translator::new().translate(&verified).map_err(|e| e.to_string())?;
    Ok(module.bytes().to_vec())
}

#[test]
fn golden() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(corpus())
        .expect("the corpus is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|p| p.extension().is_some_and(|e| e == "asm"))
        .collect();
    files.sort();
    assert!(files.len() >= 15, "{} programs", files.len());
    let bless = std::env::var_os("BLESS").is_some();
    let mut different = Vec::new();
    for asm in files {
        let wasm = Case::read(&asm).translate();
        validate(&wasm);
        let text = wasmprinter::print_bytes(&wasm).expect("prints");
        let golden = asm.with_extension("wat");
        if bless {
            std::fs::write(&golden, &text).expect("writable");
        } else if std::fs::read_to_string(&golden).ok().as_deref() != Some(&text) {
            different.push(format!("{}\n{text}", golden.display()));
        }
    }
    assert!(different.is_empty(), "differs (BLESS=1 rewrites):\n{}", different.join("\n"));
}

// ---- against the interpreter

/// r0 and the context afterwards.
type Outcome = (u64, Vec<u8>);

fn interpret(program: &Program, ctx: Vec<u8>) -> Outcome {
    let mut interp = Interp::new(program, ctx).budget(10_000_000);
    let r0 = interp.run().expect("the programs do not fault");
    (r0, interp.memory().ctx().to_vec())
}

fn run_raw(module: &UnverifiedModule, mut ctx: Vec<u8>) -> Outcome {
    let r0 = raw::run_unverified(module, &mut ctx, FUEL).expect("the programs do not fault");
    (r0, ctx)
}

/// Does the module have a dispatch block? Its variable is then among the names of the locals.
fn dispatches(wasm: &[u8]) -> bool {
    wasm.windows(6).any(|name| name == b"select")
}

fn random_program(seed: u64, shape: Shape) -> (String, Program) {
    let text = random::program(seed, shape);
    let program = assemble(&text, &random::maps()).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
    (text, program)
}

#[test]
fn unverified_programs_compute_what_the_interpreter_computes() {
    let mut irreducible = 0;
    for seed in 0..1300 {
        let (text, program) = random_program(seed, Shape::Any);
        let ctx = random::context(seed);
        let module = translate_unverified(&program, &Env::base_helpers()).expect("translates");
        validate(module.bytes());
        irreducible += u32::from(dispatches(module.bytes()));
        let (want, got) = (interpret(&program, ctx.clone()), run_raw(&module, ctx));
        assert_eq!(got, want, "seed {seed}\n{text}");
    }
    assert!(irreducible >= 300, "only {irreducible} of 1300 programs jump into loops");
}

#[test]
fn verified_programs_compute_what_the_interpreter_computes() {
    let mut accepted = 0;
    for seed in 0..700 {
        let (text, program) = random_program(seed, Shape::Forward);
        let mut ctx = random::context(seed);
        let want = interpret(&program, ctx.clone());
        let env = Arc::new(Env::generic(ctx.len() as u32));
        let Ok(proved) = Verifier::new(env).verify(program) else { continue };
        accepted += 1;
        let module = Translator::new().translate(&proved).expect("translates");
        validate(module.bytes());
        let r0 = run::verified(module, &mut ctx, FUEL).expect("verified programs do not fault");
        assert_eq!((r0, ctx), want, "seed {seed}\n{text}");
    }
    println!("{accepted} of 700 random programs accepted");
    assert!(accepted >= 500, "the verifier accepts only {accepted} of 700");
}
