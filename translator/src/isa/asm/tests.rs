//! Text and machine code against each other.

use super::*;
use crate::error::ErrorKind;
use crate::isa::ops::{Field, Form, Op, WideForm};
use crate::map::MapKind;
use proptest::prelude::*;

fn map(name: &str, kind: MapKind) -> MapDecl {
    let (key_size, value_size, max_entries) = (4, 64, 4);
    MapDecl { name: name.to_owned(), kind, key_size, value_size, max_entries, ..MapDecl::default() }
}

fn maps() -> Vec<MapDecl> {
    vec![
        map("counts", MapKind::Array),
        map(".rodata.str1.1", MapKind::Array),
        map("dup", MapKind::Hash),
        map("dup", MapKind::Array),
    ]
}

/// Each line as LLVM 19 assembles it.
const LLVM: &[(&str, &str)] = &[
    ("r8 = r3", "bf38000000000000"),
    ("w6 = w2", "bc26000000000000"),
    ("r4 = atomic_fetch_add((u64 *)(r1 + 0x0), r4)", "db41000001000000"),
    ("lock *(u64 *)(r1 + 0x0) |= r2", "db21000040000000"),
    ("r3 = xchg_64(r1 + 0x0, r3)", "db310000e1000000"),
    ("r0 = cmpxchg_64(r1 + 0x0, r0, r2)", "db210000f1000000"),
    ("w0 = cmpxchg32_32(r1 + 0, w0, w5)", "c3510000f1000000"),
    ("lock *(u32 *)(r1 + 0x0) &= w2", "c321000050000000"),
    ("r2 = (s8)r8", "bf82080000000000"),
    ("r7 = (s32)r8", "bf87200000000000"),
    ("w2 s/= w6", "3c62010000000000"),
    ("r2 = *(s16 *)(r1 + 0x6)", "8912060000000000"),
    ("r2 = bswap64 r2", "d702000040000000"),
    ("*(u8 *)(r1 + 0x0) = w7", "7371000000000000"),
    ("*(u64 *)(r1 + 0x20) = -0x1", "7a012000ffffffff"),
    ("if w8 s< 0x6 goto +0x0", "c608000006000000"),
    ("r1 = 0x1234567890abcdef ll", "1801000 0efcdab90 00000000 78563412"),
    ("w7 = -w7", "8407000000000000"),
    ("w1 s>>= 0x1f", "c40100001f000000"),
];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

#[test]
fn agrees_with_llvm() {
    for (text, bytes) in LLVM {
        let program = assemble(&format!("{text}\nexit"), &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(program.encode()[..program.encode().len() - 8], hex(bytes), "{text}");
    }
}

#[test]
fn errors_name_the_line() {
    for (text, line, words) in [
        ("r1 = 5\nr1 = = 5", 2, "expected a number"),
        ("r1 = 0xffffffff", 1, "does not fit into a 32-bit immediate"),
        ("r1 = w2", 1, "differ in width"),
        ("r11 = 1", 1, "no instruction has this form"),
        ("goto nowhere", 1, "no label nowhere"),
        ("a:\n\na:\nexit", 3, "defined twice"),
        ("call bpf_frobnicate", 1, "no helper bpf_frobnicate"),
        ("r1 = map[none] ll", 1, "no map none"),
        ("r1 = *(s64 *)(r2 + 0)", 1, "no instruction"),
        ("r1 = *(u64 *)(r2 + 40000)", 1, "does not fit into 16 bits"),
        ("r1 = bswap8 r1", 1, "no byte order bswap8"),
        ("r1 = @", 1, "unexpected '@'"),
        ("r2 = atomic_fetch_add((u64 *)(r1 + 0), r3)", 1, "register of the operand"),
    ] {
        let error = assemble(text, &[]).expect_err(text);
        assert_eq!(error.line(), line, "{text}: {error}");
        assert!(error.message().contains(words), "{text}: {error}");
    }
    let error = assemble("exit\n; far\ngoto +7", &[]).expect_err("past the end");
    assert_eq!((error.line(), error.link_error().map(Error::kind)), (3, Some(ErrorKind::BadJump)));
}

#[test]
fn names_become_functions() {
    let text = "fn tune:\n r1 = fn each ll ; callback\n call fn sub\n exit\nsub: # label\n r0 = 1\n exit\nfn each:\n r0 = 0\n exit";
    let program = assemble(text, &[]).expect("assembles");
    let funcs: Vec<_> = program.funcs().iter().map(|f| (f.name.as_str(), f.start.0, f.end.0)).collect();
    assert_eq!(funcs, [("tune", 0, 4), ("sub", 4, 6), ("each", 6, 8)]);
    assert_eq!(
        program.disassemble(),
        "fn tune:\n     0:  r1 = fn each ll\n     2:  call fn sub\n     3:  exit\nfn sub:\n     4:  r0 = 1\n     5:  exit\n\
         fn each:\n     6:  r0 = 0\n     7:  exit\n"
    );
}

/// A slot of a row, with operands drawn from `bits`, for a program whose last slot is a function of its own.
fn slot(op: &Op, bits: u64, pc: u32, starts: &[u32], last: u32) -> [Option<Slot>; 2] {
    let pick = |field, value: i64| match field {
        Field::Unused => 0,
        Field::Used => value,
        Field::Is(n) => n.into(),
    };
    let jump_to = starts[bits as usize % starts.len()];
    let (mut off, mut imm) = (i64::from((bits >> 8) as i16), i64::from((bits >> 24) as i32));
    let mut high = (bits >> 16) as i32;
    let distance = |target: u32| i64::from(target) - i64::from(pc) - 1;
    match op.form() {
        Form::Jump { .. } | Form::JumpIf { .. } => off = distance(jump_to),
        Form::CallLocal => imm = distance(last),
        Form::Wide(WideForm::Map) => (imm, high) = ((bits % 4) as i64, 0),
        Form::Wide(WideForm::MapValue) => (imm, high) = ([0, 1, 3][bits as usize % 3], (bits >> 60) as i32),
        Form::Wide(WideForm::Func) => (imm, high) = (distance(last), 0),
        _ => {}
    }
    let slot = Slot {
        code: op.code(),
        dst: pick(op.dst, (bits % 11) as i64) as u8,
        src: pick(op.src, (bits / 11 % 11) as i64) as u8,
        off: pick(op.off, off) as i16,
        imm: pick(op.imm, imm) as i32,
    };
    let second = matches!(op.form(), Form::Wide(_)).then_some(Slot { imm: high, ..Slot::default() });
    [Some(slot), second]
}

/// Code of those rows, and an `exit` that calls and callbacks name.
fn code(rows: &[(usize, u64)]) -> Vec<u8> {
    // One row per form, so that encoding is exact; `gotol` is not the short form of a jump.
    let ops: Vec<&Op> = Op::all()
        .filter(|op| Op::for_form(op.form()).is_some_and(|first| std::ptr::eq(first, *op)))
        .filter(|op| op.form() != Form::Jump { long: true })
        .collect();
    let picked: Vec<_> = rows.iter().map(|(i, bits)| (ops[i % ops.len()], *bits)).collect();
    let mut starts = Vec::new();
    let mut last = 0;
    for (op, _) in &picked {
        starts.push(last);
        last += if matches!(op.form(), Form::Wide(_)) { 2 } else { 1 };
    }
    let slots = picked.iter().zip(&starts).flat_map(|((op, bits), pc)| slot(op, *bits, *pc, &starts, last));
    let exit = Slot { code: 0x95, ..Slot::default() };
    slots.flatten().chain([exit]).flat_map(Slot::bytes).collect()
}

proptest! {
    #[test]
    fn bytes_and_text_round_trip(rows in prop::collection::vec((any::<usize>(), any::<u64>()), 1..120)) {
        let code = code(&rows);
        let program = Program::with_maps("main", &code, maps()).expect("links");
        prop_assert_eq!(program.encode(), code);
        let text = program.disassemble();
        let again = assemble(&text, &maps()).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(&program.insns, &again.insns, "{}", text);
        prop_assert_eq!(&program.funcs, &again.funcs);
    }

    /// Random bytes decode or are refused, and what decodes encodes to an equal program.
    #[test]
    fn any_bytes_are_refused_or_stable(code in prop::collection::vec(any::<[u8; 8]>(), 1..8)) {
        if let Ok(program) = Program::with_maps("main", &code.concat(), maps()) {
            let again = Program::with_maps("main", &program.encode(), maps()).expect("links again");
            prop_assert_eq!(&program.insns, &again.insns);
        }
    }

    #[test]
    fn any_text_is_refused_or_a_program(text in "[a-z0-9 =+*()\\[\\];:\\n-]{0,80}") {
        _ = assemble(&text, &[]);
    }
}
