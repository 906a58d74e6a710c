use super::imports::Input;
use super::*;
use crate::error::ErrorKind;
use crate::isa::asm::assemble;
use crate::isa::{MapIdx, Pc};
use crate::map::{MapDecl, MapKind};
use crate::program::Program;
use crate::verify::{Access, CallFact, Env, Fact, Region, Ways};
use wasmparser::{Validator, WasmFeatures};

fn map(name: &str, kind: MapKind, value_size: u32, max_entries: u32) -> MapDecl {
    let init = if kind == MapKind::Global { vec![0; value_size as usize] } else { Vec::new() };
    MapDecl { name: name.into(), kind, key_size: 4, value_size, max_entries, init, ..MapDecl::default() }
}

fn raw(text: &str, maps: &[MapDecl]) -> UnverifiedModule {
    let program = assemble(text, maps).expect("assembles");
    translate(&program).expect("translates")
}

fn translate(program: &Program) -> Result<UnverifiedModule, crate::Error> {
    let module = translate_unverified(program, &Env::base_helpers())?;
    validate(module.bytes());
    Ok(module)
}

fn validate(wasm: &[u8]) {
    let features = WasmFeatures::WASM2 | WasmFeatures::THREADS | WasmFeatures::MULTI_MEMORY;
    Validator::new_with_features(features).validate_all(wasm).expect("the output is valid");
}

#[test]
fn offsets_lead_back_to_the_instruction() {
    let module = raw("r0 = 1\nr1 = 0\nr0 = *(u64 *)(r1 + 0)\nexit\nfn f:\nexit", &[]);
    let bytes = module.bytes();
    // i64.load of the private memory: opcode 0x29, align 0, offset 0.
    let at = bytes.windows(3).position(|w| w == [0x29, 0, 0]).expect("a load");
    let source = module.source_at(at).expect("inside the function");
    assert_eq!((source.func, source.pc, source.line), ("main", Pc(2), None));
    assert_eq!(module.source_at(8), None, "the type section is nobody's");
    assert_eq!(module.source_at(bytes.len()), None, "nor is the name section");
}

#[test]
fn the_same_program_gives_the_same_bytes() {
    let text = "r2 = 7\ncall fn f\nif r0 == 0 goto +1\nr0 = 2\nexit\nfn f:\nr0 = r2\nexit";
    assert_eq!(raw(text, &[]).bytes(), raw(text, &[]).bytes());
}

#[test]
fn helpers_on_offer_are_imported_in_order_and_others_refused() {
    let module = raw("call 7\ncall 5\ncall 7\nr0 = 0\nexit", &[]);
    assert_eq!(module.helpers(), [5, 7]);
    let program = assemble("r0 = 0\ncall 99\nexit", &[]).expect("assembles");
    let error = translate(&program).expect_err("not on offer");
    assert_eq!(
        (error.kind(), error.at()),
        (ErrorKind::NotFound, &crate::At::Insn { func: "main".into(), pc: Pc(1) })
    );
}

#[test]
fn maps_that_fit_no_memory_are_refused() {
    for (value_size, max_entries) in [(8, 0), (1 << 20, 1 << 12)] {
        let maps = [map("m", MapKind::Hash, value_size, max_entries)];
        let Ok(program) = assemble("r0 = 0\nexit", &maps) else { continue };
        let error = translate(&program).expect_err("no layout");
        assert_eq!((error.kind(), error.at()), (ErrorKind::BadMap, &crate::At::Map("m".into())));
    }
}

/// Nothing bounds what an unverified program would call.
#[test]
fn callbacks_are_for_verified_programs() {
    let text = "r2 = fn f ll\nr1 = 1\nr3 = 0\nr4 = 0\ncall loop\nexit\nfn f:\nr0 = 0\nexit";
    let program = assemble(text, &[]).expect("assembles");
    let error = translate_unverified(&program, &Env::kernel_like_helpers()).expect_err("not verified");
    assert_eq!(
        (error.kind(), error.at()),
        (ErrorKind::Unsupported, &crate::At::Insn { func: "main".into(), pc: Pc(5) })
    );
}

/// The loops that helpers become are valid Wasm, whether function and map are known or not.
#[test]
fn callbacks_become_loops() {
    let maps = [map("a", MapKind::Array, 8, 4), map("h", MapKind::Hash, 24, 100)];
    let two_ways =
        "r2 = fn f ll\nr5 = map[a] ll\nif r1 == 0 goto +4\nr2 = fn g ll\nr5 = map[h] ll\nr1 = r5\n";
    let ends = "r3 = 0\nr4 = 0\ncall for_each_map_elem\nr1 = 3\nr2 = fn f ll\nr3 = 0\nr4 = 0\ncall loop\nr0 = 0\nexit\n\
                fn f:\nr1 = 5\nr2 = fn g ll\nr3 = 0\nr4 = 0\ncall loop\nr0 = 0\nexit\nfn g:\nr0 = 1\nexit";
    let one_way = "r2 = fn f ll\nr1 = map[h] ll\n";
    for (start, walks) in [(one_way, 1), (two_ways, 1), ("r2 = fn f ll\nr1 = map[a] ll\n", 0)] {
        let program = assemble(&format!("{start}{ends}"), &maps).expect("assembles");
        let env = Env { helpers: Env::kernel_like_helpers(), ..Env::generic(64) };
        let verified = crate::verify::Verifier::new(env.into()).verify(program).expect("is accepted");
        let module = Translator::new().translate(&verified).expect("translates");
        validate(module.bytes());
        let count = |name: &str| module.bytes().windows(name.len()).filter(|w| *w == name.as_bytes()).count();
        assert_eq!(count("walk_h"), walks, "{start}");
    }
}

#[test]
fn many_blocks_and_deep_nests_translate() {
    let n = 10_000;
    // Loops one after the other (each nests what follows), and ifs inside ifs.
    let loops: String = (0..n).map(|i| format!("l{i}:\nr0 += 1\nif r0 < {i} goto l{i}\n")).collect();
    raw(&format!("r0 = 0\n{loops}exit"), &[]);
    let open: String = (0..n).map(|i| format!("if r1 == {i} goto a{i}\n")).collect();
    let close: String = (0..n).map(|i| format!("a{i}:\nr0 += {i}\n")).collect();
    raw(&format!("r0 = 0\n{open}exit\n{close}exit"), &[]);
    let nest: String = (0..n).map(|i| format!("h{i}:\n")).collect();
    let back: String = (0..n).rev().map(|i| format!("r0 += 1\nif r0 < {i} goto h{i}\n")).collect();
    raw(&format!("r0 = 0\n{}{back}exit", nest.replace('\n', "\nr1 += 1\n")), &[]);
}

#[test]
fn every_access_may_go_to_every_map() {
    let maps =
        [map("a", MapKind::Array, 8, 4), map("h", MapKind::Hash, 24, 100), map("g", MapKind::Global, 8, 1)];
    let text = "r3 = map[a] ll\nr4 = map[g][0] + 4 ll\nr0 = *(u32 *)(r4 + 0)\n*(u8 *)(r4 - 1) = r0\n\
                lock *(u64 *)(r4 + 8) += r0\nr5 = *(s8 *)(r10 - 8)\nexit";
    let module = raw(text, &maps);
    assert_eq!(module.maps(), maps);
}

/// Facts are believed, but never to the point of leaving the sandbox: whatever they say, the output is valid, hence
/// names no memory but the program's own, and every address in it is checked by the engine.
#[test]
fn wrong_facts_cannot_widen_the_sandbox() {
    let maps = [
        map("a", MapKind::Array, 8, 4),
        map("h", MapKind::Hash, 24, 100),
        map("g", MapKind::Global, 8, 1),
        map("p", MapKind::ProgArray, 4, 4),
    ];
    let text = "fn main:\nr6 = map[a] ll\n*(u32 *)(r10 - 4) = 3\nr1 = map[a] ll\nr2 = r10\nr2 += -4\ncall 1\n\
                if r0 == 0 goto out\nr1 = *(u64 *)(r0 + 8)\n*(u16 *)(r0 - 32768) = r1\n\
                lock *(u32 *)(r0 + 32767) += r1\nback:\nr3 = atomic_fetch_add((u64 *)(r10 - 16), r3)\n\
                if w3 < 9 goto back\ncall 2\ncall fn f\n\
                r2 = fn f ll\ncall loop\nr2 = fn main ll\ncall for_each_map_elem\nr2 = map[p] ll\ncall tail_call\nout:\nr0 = *(s8 *)(r0 + 0)\nexit\n\
                fn f:\n*(u8 *)(r10 - 1) = 1\nif r1 & r2 goto +1\nr0 = *(u32 *)(r10 - 512)\nexit";
    let plain = assemble(text, &maps).expect("assembles");
    let tails = plain.clone().with_targets("p", &[Some("f"), None, Some("main")]).expect("are there");
    let helpers = Env::base_helpers();
    let mut seed = 0xFAC7;
    for program in [plain, tails].iter().cycle().take(3000) {
        let facts: Vec<Option<Fact>> = (0..program.len()).map(|_| random_fact(&mut seed)).collect();
        let check_regions = (seed & 1 == 0).then_some(64);
        let input = Input { program, facts: Some(&facts), helpers: &helpers, check_regions, ctx_size: 0 };
        let bytes = module::output_bytes(&input).expect("translates");
        validate(&bytes);
    }
}

/// With checks of regions, each access has one trap more.
#[test]
fn checks_of_regions_come_with_each_access() {
    let maps = [map("h", MapKind::Hash, 24, 100), map("g", MapKind::Global, 8, 1)];
    let text = "r0 = *(u64 *)(r1 + 8)\n*(u32 *)(r10 - 4) = 3\nr1 = map[h] ll\nr2 = r10\nr2 += -4\ncall 1\n\
                if r0 == 0 goto out\nr1 = 1\nlock *(u64 *)(r0 + 8) += r1\nout:\nr1 = map[g][0] + 0 ll\n\
                r0 = *(s8 *)(r1 + 7)\nexit";
    let program = assemble(text, &maps).expect("assembles");
    let env = std::sync::Arc::new(Env::generic(16));
    let verified = crate::verify::Verifier::new(env).verify(program).expect("safe");
    let traps = |t: Translator| {
        let module = t.translate(&verified).expect("translates");
        validate(module.bytes());
        let text = wasmprinter::print_bytes(module.bytes()).expect("prints");
        text.matches("unreachable").count()
    };
    #[cfg(feature = "interp")]
    assert_eq!(traps(Translator::new().check_regions()), traps(Translator::new()) + 4);
    assert_eq!(traps(Translator::new()), 0);
}

fn random_fact(seed: &mut u64) -> Option<Fact> {
    let mut below = |n: u64| {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 16) % n
    };
    if below(12) == 0 {
        return None;
    }
    let mut access = || {
        let region = match below(6) {
            0 => Region::Ctx,
            1 => Region::Stack,
            2 => Region::Mixed,
            3 => Region::Key,
            _ => Region::Map(MapIdx(below(5) as u16)),
        };
        let offset = match below(4) {
            0 => None,
            1 => Some(below(1 << 32) as u32 as i32),
            _ => Some(below(1200) as i32 - 600),
        };
        Some(Access { region, offset })
    };
    let (place, key, value) = (access(), access(), access());
    let map = Some(MapIdx(below(5) as u16)).filter(|_| below(4) > 0);
    let callback = Some(Pc(below(60) as u32)).filter(|_| below(3) > 0);
    let call = Some(CallFact { map, key, value, callback });
    Some(Fact { access: place, call, ways: Ways { taken: below(4) > 0, fallthrough: below(4) > 0 } })
}
