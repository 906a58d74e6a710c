//! Faults, frames and map helpers; arithmetic is tested in `isa::semantics` and by the corpora in `tests/`.

use super::*;
use crate::isa::asm::assemble;
use crate::map::{MapDecl, MapKind};

fn map(name: &str, kind: MapKind) -> MapDecl {
    let (key_size, value_size, max_entries) = (4, 12, 2);
    MapDecl { name: name.to_owned(), kind, key_size, value_size, max_entries, ..MapDecl::default() }
}

fn maps() -> Vec<MapDecl> {
    let data =
        MapDecl { value_size: 8, max_entries: 1, init: vec![7, 0, 0, 0, 9], ..map(".data", MapKind::Global) };
    let rodata = MapDecl { name: ".rodata".to_owned(), read_only: true, ..data.clone() };
    vec![map("a", MapKind::Array), map("h", MapKind::Hash), data, rodata]
}

#[track_caller]
fn run(text: &str) -> std::result::Result<u64, Fault> {
    let program = assemble(text, &maps()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Interp::new(&program, vec![1, 2, 3, 4]).budget(1000).run()
}

#[test]
fn faults() {
    let oob = |addr, len| FaultKind::OutOfBounds { addr, len };
    let (ctx, stack) = (CTX_PTR, 1 << 32 | u64::from(STACK_TOP));
    for (text, pc, kind) in [
        ("r0 = *(u32 *)(r1 + 1)\nexit", 0, oob(ctx + 1, 4)),
        ("r0 = *(u8 *)(r1 - 1)\nexit", 0, oob(ctx - 1, 1)),
        ("r0 = *(u8 *)(r10 + 0)\nexit", 0, oob(stack, 1)),
        ("*(u64 *)(r10 - 513) = 0\nexit", 0, oob(stack - 513, 8)),
        ("r0 = *(u8 *)(r3 + 0)\nexit", 0, oob(0, 1)),
        ("r1 = map[a][0] + 8 ll\nr0 = *(u64 *)(r1 + 0)\nexit", 2, oob(2 << 32 | 8, 8)),
        ("r1 = map[a][0] + 8 ll\nr0 = *(u32 *)(r1 + 24)\nexit", 2, oob(2 << 32 | 32, 4)),
        ("r1 = map[a] ll\nr0 = *(u8 *)(r1 + 0)\nexit", 2, oob(0x4000_0000 << 32, 1)),
        ("r1 = map[.rodata][0] + 0 ll\n*(u8 *)(r1 + 0) = 1\nexit", 2, FaultKind::ReadOnly(MapIdx(3))),
        ("lock *(u32 *)(r10 - 6) += r1\nexit", 0, FaultKind::Misaligned { addr: stack - 6 }),
        ("a:\ngoto a", 0, FaultKind::Budget),
        ("r0 = 1", 1, FaultKind::FallsThrough),
        ("call fn f\nf:\nr0 = 1\nexit", 1, FaultKind::FallsThrough),
        ("fn f:\ncall fn f\nexit", 0, FaultKind::CallDepth),
        ("call 77\nexit", 0, FaultKind::UnknownHelper(77)),
        ("call map_lookup_elem\nexit", 0, FaultKind::NotMap(ctx)),
    ] {
        assert_eq!(run(text), Err(Fault { pc: Pc(pc), kind }), "{text}");
    }
}

#[test]
fn frames_are_apart_and_a_caller_s_is_shared() {
    let text = "
        *(u64 *)(r10 - 8) = 40
        r6 = 2
        r1 = r10
        r1 += -8
        call fn callee
        r0 = *(u64 *)(r10 - 8)
        r0 += r6
        exit
    callee:
        *(u64 *)(r10 - 8) = 1
        r6 = *(u64 *)(r1 + 0)
        r6 += 1
        *(u64 *)(r1 + 0) = r6
        exit";
    assert_eq!(run(text), Ok(43));
}

/// Runs `call`s of a map helper with key `r7` and value `r8` on the stack, and gives r0 of the last.
fn on_map(name: &str, steps: &[(&str, u32, u64)]) -> u64 {
    let mut text = String::new();
    for (helper, key, flags) in steps {
        text += &format!(
            "*(u32 *)(r10 - 4) = {key}\n*(u64 *)(r10 - 16) = {key}\n*(u32 *)(r10 - 8) = 5\nr2 = r10\nr2 += -4\nr3 = r10\n\
             r3 += -16\nr1 = map[{name}] ll\nr4 = {flags}\ncall {helper}\n"
        );
    }
    run(&(text + "exit")).expect("runs")
}

#[test]
fn map_helpers_have_kernel_semantics() {
    const LOOK: &str = "map_lookup_elem";
    const SET: &str = "map_update_elem";
    const DEL: &str = "map_delete_elem";
    let errno = |n: i64| -n as u64;
    assert_eq!(on_map("a", &[(LOOK, 1, 0)]), 2 << 32 | 16);
    assert_eq!(on_map("a", &[(LOOK, 2, 0)]), 0);
    assert_eq!(on_map("a", &[(SET, 1, 2)]), 0);
    assert_eq!(on_map("a", &[(SET, 1, 1)]), errno(17));
    assert_eq!(on_map("a", &[(SET, 2, 0)]), errno(7));
    assert_eq!(on_map("a", &[(SET, 1, 3)]), errno(22));
    assert_eq!(on_map("a", &[(DEL, 1, 0)]), errno(22));
    assert_eq!(on_map("h", &[(LOOK, 9, 0)]), 0);
    assert_eq!(on_map("h", &[(SET, 9, 2)]), errno(2));
    assert_eq!(on_map("h", &[(SET, 9, 0), (SET, 9, 1)]), errno(17));
    assert_eq!(on_map("h", &[(SET, 9, 0), (SET, 8, 1), (SET, 7, 0)]), errno(7));
    assert_eq!(on_map("h", &[(SET, 9, 0), (SET, 8, 1), (LOOK, 8, 0)]), 3 << 32 | 16);
    assert_eq!(on_map("h", &[(SET, 9, 0), (SET, 8, 1), (DEL, 9, 0), (SET, 7, 0), (LOOK, 7, 0)]), 3 << 32);
    assert_eq!(on_map("h", &[(DEL, 9, 0)]), errno(2));
    assert_eq!(on_map("h", &[(SET, 9, 4)]), errno(22));
}

#[test]
fn contents_stay_and_can_be_read() {
    let text = "r1 = map[.data][0] + 4 ll\nr0 = *(u32 *)(r1 + 0)\nr0 += 1\n*(u32 *)(r1 + 0) = r0\nexit";
    let program = assemble(text, &maps()).expect("assembles");
    let mut interp = Interp::new(&program, vec![]);
    assert_eq!((interp.run(), interp.run()), (Ok(10), Ok(11)));
    assert_eq!(interp.memory().maps()[2].value(&[0; 4]), Some(&[7, 0, 0, 0, 11, 0, 0, 0][..]));
}

#[test]
fn hooks_see_each_step_and_helpers_get_arguments() {
    let text = "r1 = 5\nr2 = 6\ncall 7\nr0 += 1\nexit";
    let program = assemble(text, &[]).expect("assembles");
    let mut interp =
        Interp::new(&program, vec![]).helpers(|id, args, _| (id == 7).then(|| args[0] * args[1]));
    let mut seen = Vec::new();
    assert_eq!(interp.run_hooked(|pc, regs, memory| seen.push((pc.0, regs[0], memory.frames()))), Ok(31));
    assert_eq!(seen, [(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 30, 1), (4, 31, 1)]);
}
