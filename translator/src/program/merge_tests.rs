//! Programs joined: every reference is moved, maps are shared or kept apart, and what does not fit changes nothing. That joined programs
//! behave like one object is for `tests/tests/tail_links.rs`.

use super::*;
use crate::isa::asm::assemble;
use crate::isa::{Imm64, Insn};
use crate::limits::{MAX_LINE_BYTES, MAX_MAPS, MAX_PROGRAM_SLOTS};
use crate::map::MapKind;

fn map(name: &str, kind: MapKind, value_size: u32, max_entries: u32) -> MapDecl {
    MapDecl { name: name.to_owned(), kind, key_size: 4, value_size, max_entries, ..MapDecl::default() }
}

fn jump() -> MapDecl {
    map("jump", MapKind::ProgArray, 4, 4)
}

fn data(first: u8) -> MapDecl {
    MapDecl { init: vec![first; 8], ..map(".data", MapKind::Global, 8, 1) }
}

fn program(text: &str, maps: &[MapDecl]) -> Program {
    assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// One with an instruction of each kind that refers to something.
const EACH: &str = "fn start:\nr1 = map[own] ll\nr2 = map[.data][0] + 4 ll\nr3 = fn help ll\nr4 = 0x1122334455667788 ll\n\
                    if r1 == 0 goto out\ngoto out\nout:\ncall fn help\nr0 = r1\nexit\nfn help:\nw0 = 1\nexit";

fn names(program: &Program) -> Vec<&str> {
    program.funcs().iter().map(|f| f.name.as_str()).collect()
}

fn map_names(program: &Program) -> Vec<&str> {
    program.maps().iter().map(|m| m.name.as_str()).collect()
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, kind: ErrorKind, text: &str) {
    let e = result.err().expect(text);
    assert_eq!((e.kind(), e.stage()), (kind, Stage::Link), "{e}");
    assert_eq!(e.to_string(), text);
}

#[test]
fn every_reference_is_moved() {
    let (own, entry_data) = (map("own", MapKind::Hash, 8, 4), data(1));
    let mut joined = program(
        "fn entry:\nr1 = map[.data][0] + 0 ll\nr2 = map[own] ll\nr0 = 0\nexit",
        &[entry_data, own.clone()],
    );
    let target = program(EACH, &[own, data(2)]);
    let at = joined.append("t", &target).unwrap();
    assert_eq!(at, Pc(6));
    assert_eq!(names(&joined), ["entry", "t.start", "t.help"]);
    assert_eq!(map_names(&joined), [".data", "own", ".data@t"]);
    assert_eq!((&joined.maps()[0].init, &joined.maps()[2].init), (&vec![1; 8], &vec![2; 8]));
    let moved: Vec<(Pc, Insn)> = joined.iter().skip(4).map(|(pc, insn)| (pc, *insn)).collect();
    let help = joined.funcs()[2].start;
    assert_eq!(moved[0].0, at);
    let wide = |i: usize| match moved[i].1 {
        Insn::LoadImm64 { imm, .. } => imm,
        other => panic!("{other:?}"),
    };
    assert_eq!(wide(0), Imm64::Map(MapIdx(1)), "the shared hash");
    assert_eq!(wide(1), Imm64::MapValue { map: MapIdx(2), offset: 4 }, "its own data");
    assert_eq!((wide(2), wide(3)), (Imm64::Func(help), Imm64::Value(0x1122_3344_5566_7788)));
    let out = moved[6].0;
    assert!(matches!(moved[4].1, Insn::JumpIf { target, .. } if target == out), "{moved:?}");
    assert!(matches!(moved[5].1, Insn::Jump { target } if target == out));
    assert!(matches!(moved[6].1, Insn::CallLocal { target } if target == help));
    // What refers to nothing is as it was.
    let plain =
        |p: &Program, from: u32| p.iter().filter(|(pc, _)| pc.0 >= from).map(|(_, i)| *i).collect::<Vec<_>>();
    assert_eq!(plain(&joined, out.0 + 1), plain(&target, out.0 + 1 - at.0));
    assert_eq!(joined.len(), 6 + target.len());
}

#[test]
fn lines_move_along_and_stay_within_the_limit() {
    let line = |file: &str, bytes: usize| SourceLine { file: file.into(), line: 7, text: "x".repeat(bytes) };
    let mut joined = program("fn entry:\nr0 = 0\nexit", &[]);
    joined.lines = vec![(Pc(0), line("a.c", 1))];
    let mut target = program("fn start:\nr0 = 0\nr0 = 1\nexit", &[]);
    target.lines =
        vec![(Pc(0), line("b.c", 1)), (Pc(1), line("c.c", MAX_LINE_BYTES - 11)), (Pc(2), line("d.c", 1))];
    joined.append("t", &target).unwrap();
    let file = |pc| joined.line_at(Pc(pc)).map(|l| l.file.as_str());
    // 4 + 4 + MAX - 8: full.
    assert_eq!(
        (file(0), file(1), file(2), file(3), file(4)),
        (Some("a.c"), Some("a.c"), Some("b.c"), Some("c.c"), Some("c.c"))
    );
    assert_eq!(joined.lines.len(), 3);
}

#[test]
fn slots_are_filled_from_both_sides_and_each_once() {
    let call = "r2 = map[jump] ll\nr3 = 0\ncall tail_call\nr0 = 0\nexit\n";
    let entry = program(&format!("fn entry:\n{call}fn own:\nr0 = 1\nexit"), &[jump()]);
    let mut joined = entry.with_targets("jump", &[Some("own")]).unwrap();
    let target = program(&format!("fn start:\n{call}fn two:\nr0 = 2\nexit"), &[jump()]);
    let target = target.with_targets("jump", &[None, None, Some("two")]).unwrap();
    let at = joined.append("t", &target).unwrap();
    joined.fill_slot("jump", 1, at).unwrap();
    joined.fill_slot("jump", 3, Pc(0)).unwrap();
    let held: Vec<_> =
        joined.tail_targets(MapIdx(0)).map(|(slot, pc)| (slot, joined.func_at(pc).name.clone())).collect();
    assert_eq!(
        held,
        [(0, "own"), (1, "t.start"), (2, "t.two"), (3, "entry")].map(|(s, n)| (s, n.to_owned()))
    );
    assert_eq!(joined.tails.len(), 1, "one array, one table");
    assert_eq!(joined.roots().len(), 4);
    assert_eq!(joined.tail_target(MapIdx(0), 2), Some(joined.funcs()[3].start));
    assert_eq!(joined.tail_target(MapIdx(0), 4), None);

    let already = "map jump: slot 2 holds t.two already; give the new one another slot, or empty this one";
    refused(joined.fill_slot("jump", 2, at), ErrorKind::BadMap, already);
    refused(joined.fill_slot("jump", 4, at), ErrorKind::BadMap, "map jump: has no slot 4: max_entries is 4");
    refused(
        joined.fill_slot("jmp", 0, at),
        ErrorKind::NotFound,
        "map jmp: the program does not use such a map",
    );
    let inside = at.plus(2);
    let text = format!("map jump: no function begins at slot {inside} of the program");
    refused(joined.fill_slot("jump", 4 - 1, inside), ErrorKind::BadJump, &text);
    let both = "map jump: slot 2 holds t.two, and u puts two there; a slot has room for one: change one of the objects";
    refused(joined.append("u", &target), ErrorKind::BadMap, both);
}

/// The table of slots is as long as what it holds, not as the array.
#[test]
fn a_far_slot_costs_no_memory() {
    let far = MapDecl { max_entries: 1 << 28, ..jump() };
    let mut program = program("fn entry:\nr2 = map[jump] ll\nr3 = 1\ncall tail_call\nr0 = 0\nexit", &[far]);
    program.fill_slot("jump", (1 << 28) - 1, Pc(0)).unwrap();
    assert_eq!(program.tail_targets(MapIdx(0)).collect::<Vec<_>>(), [((1 << 28) - 1, Pc(0))]);
    let none = MapDecl { max_entries: 0, ..jump() };
    let mut empty = Program::with_maps("f", &[0x95, 0, 0, 0, 0, 0, 0, 0], vec![none]).unwrap();
    refused(
        empty.fill_slot("jump", 0, Pc(0)),
        ErrorKind::BadMap,
        "map jump: has no slot 0: max_entries is 0",
    );
}

#[test]
fn a_refused_program_changes_nothing() {
    let text = "fn entry:\nr1 = map[m] ll\nr2 = map[.data][0] + 0 ll\nr0 = 0\nexit";
    let mut joined = program(text, &[map("m", MapKind::Array, 8, 4), data(1)]);
    joined.append("t", &joined.clone()).unwrap();
    let before = format!("{joined:?}");
    let shapes = "map m: u declares it as hash(key 4, value 8, 4 entries), and a program that it is linked with as array(key 4, value \
                  8, 4 entries); make them equal, or rename one";
    let hash = program(text, &[map("m", MapKind::Hash, 8, 4), data(1)]);
    refused(joined.append("u", &hash), ErrorKind::BadMap, shapes);
    let taken = "map .data@t: there is such a map already; give t another name";
    refused(joined.append("t", &joined.clone()), ErrorKind::BadMap, taken);
    refused(
        joined.fill_slot("m", 0, Pc(0)),
        ErrorKind::BadMap,
        "map m: is of kind array; only program arrays hold programs",
    );
    assert_eq!(format!("{joined:?}"), before);
    // Another name will do.
    joined.append("u", &program(text, &[map("m", MapKind::Array, 8, 4), data(1)])).unwrap();
    assert_eq!(map_names(&joined), ["m", ".data", ".data@t", ".data@u"]);
}

#[test]
fn limits_are_those_of_one_program() {
    let many = |first: usize, n: usize| {
        let maps: Vec<MapDecl> =
            (first..first + n).map(|i| map(&format!("m{i}"), MapKind::Array, 8, 1)).collect();
        Program::with_maps("many", &[0x95, 0, 0, 0, 0, 0, 0, 0], maps).unwrap()
    };
    let mut joined = many(0, MAX_MAPS - 1);
    joined.append("t", &many(0, MAX_MAPS)).unwrap();
    let text = "object: with those of u the program uses 65 maps, the limit is 64; link fewer programs into one another, or share maps by name";
    refused(joined.append("u", &many(MAX_MAPS, 1)), ErrorKind::TooLarge, text);

    let long = |slots: usize| {
        let mut code = [0xb7, 0, 0, 0, 0, 0, 0, 0].repeat(slots - 1);
        code.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
        Program::from_code("long", &code).unwrap()
    };
    let mut joined = long(MAX_PROGRAM_SLOTS - 2);
    joined.append("t", &long(2)).unwrap();
    let text = "object: with the 1 slots of u the program has 1048577, the limit is 1048576; link fewer programs into one another";
    refused(joined.append("u", &long(1)), ErrorKind::TooLarge, text);
}

#[test]
fn what_only_one_object_describes_is_described() {
    let of = |ty: Option<u32>| {
        let described = ty.map(|n| std::sync::Arc::new(crate::types::TypeDesc::bytes(n)));
        let m = MapDecl { value_type: described, ..map("m", MapKind::Array, 8, 1) };
        program("fn f:\nr1 = map[m] ll\nr0 = 0\nexit", &[m])
    };
    for (first, second) in [(Some(8), None), (None, Some(8)), (Some(8), Some(4))] {
        let mut joined = of(first);
        joined.append("t", &of(second)).unwrap();
        assert_eq!(joined.maps()[0].value_type.as_ref().map(|t| t.size), Some(8));
    }
}
