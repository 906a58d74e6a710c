//! The translator's output: golden text for small programs, and the same results as the reference interpreter.

use nccl_ringfence::raw;
use ringfence_tests::random::{self, Shape};
use ringfence_translator::interp::Interp;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::{Env, MapDecl, MapKind, Program, UnverifiedModule, translate_unverified};
use std::path::{Path, PathBuf};
use wasmparser::{Operator, Parser, Payload, Validator, WasmFeatures};

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
        let module = translate_unverified(&program, &Env::base_helpers()).expect("translates");
        module.bytes().to_vec()
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
    MapDecl { name: name.into(), kind, key_size, value_size, max_entries, flags: 0, read_only: false, init }
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
        let case = Case::read(&asm);
        if !case.raw {
            continue;
        }
        let wasm = case.translate();
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

/// Does the module hold a `br_table`? Without maps only a dispatch block makes one.
fn dispatches(wasm: &[u8]) -> bool {
    let bodies = Parser::new(0).parse_all(wasm).filter_map(|payload| match payload.expect("parses") {
        Payload::CodeSectionEntry(body) => Some(body),
        _ => None,
    });
    let mut ops = bodies.flat_map(|b| b.get_operators_reader().expect("operators"));
    ops.any(|op| matches!(op.expect("an operator"), Operator::BrTable { .. }))
}

fn random_program(seed: u64, shape: Shape) -> (String, Program) {
    let text = random::program(seed, shape);
    let program = assemble(&text, &[]).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
    (text, program)
}

#[test]
fn unverified_programs_compute_what_the_interpreter_computes() {
    let mut irreducible = 0;
    for seed in 0..1500 {
        let (text, program) = random_program(seed, Shape::Any);
        let ctx = random::context(seed);
        let module = translate_unverified(&program, &Env::base_helpers()).expect("translates");
        validate(module.bytes());
        irreducible += u32::from(dispatches(module.bytes()));
        let (want, got) = (interpret(&program, ctx.clone()), run_raw(&module, ctx));
        assert_eq!(got, want, "seed {seed}\n{text}");
    }
    assert!(irreducible >= 300, "only {irreducible} of 1500 programs jump into loops");
}
