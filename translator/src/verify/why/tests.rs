//! Explanations of programs in assembly: what they tell of paths, and advice for what policies in C seldom do.

use super::*;
use crate::isa::asm::assemble;
use crate::map::{MapDecl, MapKind};
use crate::verify::Env;
use std::sync::Arc;

fn map(name: &str, kind: MapKind, value_size: u32) -> MapDecl {
    MapDecl { name: name.into(), kind, key_size: 4, value_size, max_entries: 1, ..MapDecl::default() }
}

fn explain(text: &str, maps: &[MapDecl]) -> Explanation {
    let program = assemble(text, maps).unwrap();
    let env = Env { helpers: Env::kernel_like_helpers(), ..Env::generic(64) };
    let why = Verifier::new(Arc::new(env.clone())).explain(&program).expect("it is refused");
    let plain = Verifier::new(Arc::new(env)).verify(program).unwrap_err();
    assert_eq!((plain.kind(), plain.pc()), (why.rejection().kind(), why.rejection().pc()));
    why
}

/// The path in short: what holds after each turn.
fn turns_of(e: &Explanation) -> Vec<String> {
    let said = |s: &PathStep| match &s.kind {
        PathKind::Branch { condition, .. } => condition.clone(),
        PathKind::Loop { round, .. } => format!("round {round}"),
        PathKind::Call { callee } => format!("call {callee}"),
    };
    e.path().iter().map(said).collect()
}

#[test]
fn accepted_programs_need_no_explanation() {
    let program = assemble("r0 = 0\nexit", &[]).unwrap();
    assert!(Verifier::new(Arc::new(Env::generic(64))).explain(&program).is_none());
}

/// Of the jumps on the path, a diamond that has nothing to do with it is left out; the test of the index and the test around
/// the access stay.
#[test]
fn only_turns_that_matter_are_told() {
    let e = explain(
        "
        r2 = *(u32 *)(r1 + 0)
        r3 = *(u32 *)(r1 + 4)
        r4 = *(u32 *)(r1 + 8)
        if r2 > 64 goto out
        if r3 == 7 goto other
        r5 = 1
    other:
        if r4 == 0 goto out
        r1 += r2
        r0 = *(u8 *)(r1 + 0)
    out:
        r0 = 0
        exit",
        &[],
    );
    assert_eq!(e.rejection().kind().name(), "ctx-oob");
    assert_eq!(turns_of(&e), ["r2 <= 64", "r4 != 0"]);
    let origins: Vec<&str> = e.origins().iter().map(|o| o.text.as_str()).collect();
    assert_eq!(
        origins,
        [
            "r2 = 4 bytes of the context, offset 0: any 32-bit number",
            "r1 += r2: a pointer into the context, at offset [0, 64]"
        ]
    );
}

/// What a jump passes by is told when it is what is missing.
#[test]
fn the_turn_that_passes_by_the_value_is_told() {
    let e = explain(
        "
        r2 = *(u32 *)(r1 + 0)
        if r2 == 1 goto use
        if r2 == 2 goto skip
        r6 = 5
        goto use
    skip:
        r7 = 1
    use:
        r0 = r6
        exit",
        &[],
    );
    assert_eq!((e.rejection().kind().name(), e.rejection().reg()), ("uninit-register", Reg::new(6)));
    assert_eq!(turns_of(&e), ["r2 == 2"]);
}

/// Long paths are cut at the front, and say so.
#[test]
fn of_many_turns_the_last_are_told() {
    let tests: String = (0..20).map(|k| format!("if r2 == {k} goto out\n")).collect();
    let e = explain(
        &format!("r2 = *(u32 *)(r1 + 0)\n{tests}r1 += r2\nr0 = *(u8 *)(r1 + 0)\nout:\nr0 = 0\nexit"),
        &[],
    );
    assert_eq!((e.path().len(), e.left_out()), (MAX_TURNS, 20 - MAX_TURNS));
    assert_eq!(turns_of(&e).last().map(String::as_str), Some("r2 != 19"));
}

/// A value keeps its history through the stack and through a call.
#[test]
fn origins_reach_through_spills_and_calls() {
    let e = explain(
        "
        r6 = r1
        r2 = *(u16 *)(r1 + 0)
        *(u64 *)(r10 - 8) = r2
        r2 = 0
        r2 = *(u64 *)(r10 - 8)
        call fn read
        exit
    fn read:
        r2 += 3
        r1 += r2
        r0 = *(u8 *)(r1 + 0)
        exit",
        &[],
    );
    assert_eq!(turns_of(&e), ["call read"]);
    let origins: Vec<&str> = e.origins().iter().map(|o| o.text.as_str()).collect();
    assert_eq!(
        origins,
        [
            "r2 = 2 bytes of the context, offset 0: any 16-bit number",
            "r2 += 3: a number in [3, 65538]",
            "r1 += r2: a pointer into the context, at offset [3, 65538]",
        ]
    );
}

#[test]
fn a_record_that_is_not_given_back() {
    let events = [map("events", MapKind::RingBuf, 0)];
    let leak = "
        r6 = *(u32 *)(r1 + 0)
        r1 = map[events] ll
        r2 = 16
        r3 = 0
        call 131
        if r0 == 0 goto out
        if r6 == 9 goto out
        r1 = r0
        r2 = 0
        call 132
    out:
        r0 = 0
        exit";
    let e = explain(leak, &events);
    assert_eq!(e.rejection().kind().name(), "reference");
    assert!(turns_of(&e).contains(&"r6 == 9".to_string()), "{:?}", turns_of(&e));
    assert!(e.hint().unwrap().contains("neither submitted nor discarded on this path"), "{:?}", e.hint());
    let twice = "
        r1 = map[events] ll
        r2 = 16
        r3 = 0
        call 131
        if r0 == 0 goto out
        r6 = r0
        r1 = r0
        r2 = 0
        call 132
        r0 = *(u32 *)(r6 + 0)
    out:
        r0 = 0
        exit";
    let e = explain(twice, &events);
    assert_eq!(e.rejection().kind().name(), "uninit-register", "{}", e.rejection());
    assert!(e.hint().unwrap().contains("was submitted, and is gone"), "{:?}", e.hint());
    let unchecked = "r1 = map[events] ll\nr2 = 16\nr3 = 0\ncall 131\n*(u32 *)(r0 + 0) = 1\nr0 = 0\nexit";
    let e = explain(unchecked, &events);
    assert!(e.hint().unwrap().contains("ringbuf_reserve gives NULL while events is full"), "{:?}", e.hint());
}

/// Where a step lies in no source line, places are instructions, and there is no example to write into.
#[test]
fn programs_without_lines_are_explained() {
    let e = explain("r2 = *(u32 *)(r1 + 0)\nr1 += r2\nr0 = *(u8 *)(r1 + 0)\nexit", &[]);
    assert!(e.hint().is_some() && e.path().is_empty());
    assert!(e.origins().iter().all(|o| o.site.source.is_none() && o.site.func == "main"));
    assert!(e.registers().iter().any(|(name, v)| name == "R1" && v.starts_with("ctx(")));
    assert!(matches!(e.rejection().kind(), K::CtxOob));
}

/// What all paths together break is refused after the search: no path is told, but advice is.
#[test]
fn a_refusal_after_the_search_has_advice() {
    let program = assemble("r1 = 0\nagain:\nr1 += 1\nif r1 < 100000 goto again\nr0 = 0\nexit", &[]).unwrap();
    let env = Env { run_budget: 1000, ..Env::generic(64) };
    let e = Verifier::new(Arc::new(env)).explain(&program).expect("it is refused");
    assert_eq!(e.rejection().kind(), K::UnboundedLoop, "{}", e.rejection());
    assert!(e.path().is_empty() && e.registers().is_empty());
    let hint = e.hint().unwrap();
    assert!(hint.contains("the test at instruction 2") && hint.contains("rounds few enough"), "{hint}");
}
