//! The instruction set, end to end: text -> machine code -> interpreter -> r0, over the corpus in `tests/corpus/isa`,
//! with rbpf as a second opinion; and the public suite bpf_conformance, where `RINGFENCE_CONFORMANCE_DIR` names a copy.

use ringfence_translator::interp::Interp;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::isa::ops::{Field, Form, Op};
use ringfence_translator::isa::{AluOp, Endian, Imm64, Insn, MapIdx, Pc};
use ringfence_translator::{ErrorKind, MapDecl, MapKind, Program};
use std::collections::{BTreeSet, HashSet};
use std::panic::catch_unwind;

/// A line of the corpus.
struct Case {
    place: String,
    mem: Vec<u8>,
    text: String,
    expect: u64,
    /// Why rbpf is known to be wrong.
    rbpf_wrong: Option<String>,
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd number of digits: {text}");
    let digit = |c: u8| (c as char).to_digit(16).unwrap_or_else(|| panic!("no hex: {text}")) as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn parse_u64(text: &str) -> u64 {
    let digits = text.strip_prefix("0x").unwrap_or_else(|| panic!("result {text} is not 0x..."));
    u64::from_str_radix(digits, 16).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn case(place: String, line: &str) -> Case {
    let (code, result) = line.rsplit_once(" => ").unwrap_or_else(|| panic!("{place}: no ` => `"));
    let (mem, code) = match code.strip_prefix("mem ").and_then(|rest| rest.split_once(": ")) {
        Some((mem, code)) => (hex(mem), code),
        None => (Vec::new(), code),
    };
    let (result, why) = match result.split_once(" ! ") {
        Some((result, why)) => (result, Some(why.to_owned())),
        None => (result, None),
    };
    let text = code.split(" | ").map(str::trim).collect::<Vec<_>>().join("\n");
    Case { place, mem, text, expect: parse_u64(result), rbpf_wrong: why }
}

fn corpus() -> Vec<Case> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/isa");
    let mut files: Vec<_> = std::fs::read_dir(dir).expect(dir).map(|e| e.expect("entry").path()).collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "data")) {
        let text = std::fs::read_to_string(file).expect("corpus file");
        let name = file.file_name().expect("name").to_string_lossy();
        let lines = (1..).zip(text.lines()).filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
        cases.extend(lines.map(|(n, line)| case(format!("{name}:{n}"), line)));
    }
    cases
}

fn maps() -> Vec<MapDecl> {
    vec![MapDecl {
        name: "counts".to_owned(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 4,
        ..MapDecl::default()
    }]
}

fn weigh(a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    a + 2 * b + 3 * c + 4 * d + 5 * e
}

fn program(case: &Case) -> Program {
    assemble(&case.text, &maps()).unwrap_or_else(|e| panic!("{}: {e}\n{}", case.place, case.text))
}

#[test]
fn corpus_gives_the_results_of_the_model() {
    for case in corpus() {
        let program = program(&case);
        let mut interp = Interp::new(&program, case.mem.clone())
            .helpers(|id, [a, b, c, d, e], _| (id == 100).then(|| weigh(a, b, c, d, e)));
        let r0 = interp.run().unwrap_or_else(|e| panic!("{}: {e}\n{}", case.place, program.disassemble()));
        assert_eq!(r0, case.expect, "{}: {r0:#x}\n{}", case.place, program.disassemble());
    }
}

#[test]
fn corpus_covers_every_form() {
    let mut seen: HashSet<Form> = HashSet::new();
    for case in corpus() {
        seen.extend(program(&case).iter().map(|(_, insn)| Form::of(insn)));
        // `Insn` does not tell `gotol` from `ja`; the assembler writes the opcode that the text says.
        seen.extend(case.text.contains("gotol").then_some(Form::Jump { long: true }));
    }
    let all = Op::all().map(Op::form).filter(|form| !matches!(form, Form::Refused(_)));
    let missing: Vec<String> = all.filter(|form| !seen.contains(form)).map(|form| form.to_string()).collect();
    assert!(missing.is_empty(), "not covered: {missing:?}");
}

/// What rbpf makes of a program; text if it refuses, fails or panics.
fn rbpf_result(code: &[u8], mem: &[u8]) -> Result<u64, String> {
    let run = || {
        let mut vm = rbpf::EbpfVmRaw::new(Some(code)).map_err(|e| e.to_string())?;
        vm.register_helper(100, weigh).map_err(|e| e.to_string())?;
        let mut mem = mem.to_vec();
        vm.execute_program(&mut mem).map_err(|e| e.to_string())
    };
    catch_unwind(run).unwrap_or_else(|_| Err("panic".to_owned()))
}

/// rbpf agrees but where the corpus says that it is wrong; and there it is, so that no excuse outlives its reason
/// (in builds with overflow checks, which some of its faults need).
#[test]
fn rbpf_agrees_on_the_corpus() {
    let mut agreed = 0;
    for case in corpus() {
        let program = program(&case);
        let theirs = rbpf_result(&program.encode(), &case.mem);
        match &case.rbpf_wrong {
            Some(_) if !cfg!(debug_assertions) => {}
            Some(why) => {
                assert_ne!(theirs, Ok(case.expect), "{}: rbpf is right now, though: {why}", case.place)
            }
            None => assert_eq!(theirs, Ok(case.expect), "{}\n{}", case.place, program.disassemble()),
        }
        agreed += u32::from(case.rbpf_wrong.is_none());
    }
    assert!(agreed > 90, "only {agreed} cases have a second opinion");
}

/// rbpf's name of a form; `None` for what it does not know or takes for something else.
fn rbpf_name(form: Form) -> Option<String> {
    let plain = || form.to_string().trim_end_matches("_imm").trim_end_matches("_reg").to_owned();
    match form {
        Form::Alu { op: AluOp::SDiv | AluOp::SMod, .. }
        | Form::MovSx { .. }
        | Form::Endian { op: Endian::Swap, .. } => None,
        Form::Load { sign: true, .. } | Form::Atomic { .. } | Form::Jump { long: true } => None,
        Form::CallReg | Form::CallLocal | Form::Refused(_) => None,
        Form::JumpIf { .. } => Some(plain().replace("64", "")),
        Form::Endian { op, .. } => Some(op.symbol().to_owned()),
        Form::Wide(_) => Some("lddw".to_owned()),
        Form::Alu { .. } | Form::Neg { .. } | Form::Load { sign: false, .. } => Some(plain()),
        Form::Store { .. } | Form::Jump { long: false } | Form::CallHelper | Form::Exit => Some(plain()),
    }
}

#[test]
fn rbpf_names_the_same_opcodes() {
    let mut compared = 0;
    for op in Op::all() {
        let Some(name) = rbpf_name(op.form()) else { continue };
        let imm = if let Field::Is(bits) = op.imm() { bits } else { 0 };
        let mut code = vec![op.code(), 0x01, 0, 0];
        code.extend(imm.to_le_bytes());
        code.extend([0; 8]);
        let theirs = rbpf::disassembler::to_insn_vec(&code[..if name == "lddw" { 16 } else { 8 }]);
        assert_eq!(theirs[0].name, name, "opcode {:#04x}", op.code());
        compared += 1;
    }
    assert_eq!(compared, 121);
}

#[test]
fn maps_by_index_mean_the_same() {
    let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
    let lddw = |src: u8, high: u8| {
        [[0x18, src << 4 | 3, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, high, 0, 0, 0], exit].concat()
    };
    let imm = |src, high| {
        let program = Program::with_maps("main", &lddw(src, high), maps()).expect("links");
        match program.insn(Pc(0)) {
            Some(Insn::LoadImm64 { imm, .. }) => *imm,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((imm(1, 0), imm(5, 0)), (Imm64::Map(MapIdx(0)), Imm64::Map(MapIdx(0))));
    let value = Imm64::MapValue { map: MapIdx(0), offset: 6 };
    assert_eq!((imm(2, 6), imm(6, 6)), (value, value));
}

/// Lines of a file of bpf_conformance; `None` (and a word about it) if it is not at hand.
fn conformance(file: &str) -> Option<Vec<serde_json::Value>> {
    let Ok(dir) = std::env::var("RINGFENCE_CONFORMANCE_DIR") else {
        eprintln!("SKIPPED: RINGFENCE_CONFORMANCE_DIR is not set, {file} was not run");
        return None;
    };
    let path = format!("{dir}/{file}");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    Some(text.lines().map(|line| serde_json::from_str(line).expect("json")).collect())
}

fn text<'a>(row: &'a serde_json::Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_else(|| panic!("no {field} in {row}"))
}

#[test]
fn conformance_positive() {
    let Some(rows) = conformance("bpf_conformance.jsonl") else { return };
    let mut wrong = BTreeSet::new();
    for row in &rows {
        let (name, code) = (text(row, "name"), hex(text(row, "code")));
        let program = Program::from_code(name, &code).unwrap_or_else(|e| panic!("{name}: {e}"));
        let again = assemble(&program.disassemble(), &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(again.iter().eq(program.iter()), "{name}: text differs\n{}", program.disassemble());
        assert_eq!(text(row, "expect"), "value", "{name}");
        // Helper 5 is `unwind` there: it gives back its argument, and only 0 would end the program.
        let mut interp =
            Interp::new(&program, hex(text(row, "mem"))).helpers(|id, args, _| (id == 5).then_some(args[0]));
        let r0 = interp.run();
        if r0 != Ok(parse_u64(text(row, "result"))) {
            wrong.insert(format!("{name}: {r0:x?}, expected {}", text(row, "result")));
        }
    }
    println!("bpf_conformance: {} of {} right", rows.len() - wrong.len(), rows.len());
    assert!(wrong.is_empty() && rows.len() == 313, "{} rows, wrong: {wrong:#?}", rows.len());
}

#[test]
fn conformance_negative() {
    let Some(rows) = conformance("bpf_conformance_negative.jsonl") else { return };
    for row in &rows {
        let (name, code) = (text(row, "name"), hex(text(row, "code")));
        let error = Program::from_code(name, &code).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::BadInsn, "{name}: {error}");
        assert!(error.message().contains("expected"), "{name}: {error}");
    }
    println!("bpf_conformance: {} of {} bad encodings refused", rows.len(), rows.len());
    assert_eq!(rows.len(), 45);
}
