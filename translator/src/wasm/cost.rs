//! [`weight`]: how many Wasm instructions one eBPF instruction runs at most, so that the bound that the verifier proves
//! becomes a bound on fuel. A test counts what the translator really emits and holds it against this table.

use crate::isa::{Endian, Imm64, Insn, Pc};
use crate::limits::{PERCPU_SLOTS, STACK_BYTES};
use crate::map::MapKind;
use crate::program::Program;
use crate::verify::helpers::{LOOP, TAIL_CALL, calls_back};

/// What a Wasm `call` counts as, in fuel: about what it costs beside an addition.
pub const CALL_COST: u64 = 16;

/// Most instructions of a memory access whose region only the pointer's tag tells.
const ACCESS: u64 = 24;
/// From the end of one block to the start of the next: a branch, and in irreducible regions a number left and looked up.
const EDGE: u64 = 6;
/// Instructions of one visit of a helper that calls back.
const LAP: u64 = 60;
/// Places of a hash that a walk looks at for one unit of fuel.
pub const PLACES_PER_FUEL: u64 = 8;
/// Most words that a helper charges for, of those that it copies to a ring buffer: a stack's.
pub const MAX_RING_WORDS: u64 = STACK_BYTES as u64 / 8;
/// Set-up of a function's frame.
pub(crate) const ENTRY: u64 = 4;

/// Most fuel that the instruction at `pc` takes, from its first Wasm instruction to the next one's. `joins` says that
/// another block starts behind it. Callees are not included, only entering them.
pub(crate) fn weight(program: &Program, pc: Pc, joins: bool) -> u64 {
    let own = match program.insn(pc) {
        None => 0,
        Some(insn) => of(program, insn),
    };
    own + if joins { EDGE } else { 0 }
}

fn of(program: &Program, insn: &Insn) -> u64 {
    match insn {
        Insn::Alu { .. } => 24,
        Insn::Neg { .. } | Insn::MovSx { .. } | Insn::LoadImm64 { .. } => 8,
        Insn::Endian { op: Endian::ToLe, .. } => 4,
        Insn::Endian { .. } => 40,
        Insn::Load { .. } | Insn::Store { .. } | Insn::Atomic { .. } => ACCESS,
        Insn::Jump { .. } => EDGE,
        Insn::JumpIf { .. } => 8 + EDGE,
        Insn::Exit => 2,
        Insn::CallLocal { .. } => 10 + CALL_COST + ENTRY,
        Insn::CallHelper { id } if calls_back(*id) => lap(program, *id),
        Insn::CallHelper { id: TAIL_CALL } => tail_call(program),
        Insn::CallHelper { .. } | Insn::CallReg { .. } => 12 + ACCESS + CALL_COST + copied_words(program),
    }
}

/// One visit of a helper that calls back: setting out or a lap, with a comparison for each function and map that it may
/// be about, and the places of a hash that the host looks at.
fn lap(program: &Program, id: u32) -> u64 {
    let addresses = |(_, insn): &(Pc, &Insn)| matches!(insn, Insn::LoadImm64 { imm: Imm64::Func(_), .. });
    let choices = program.iter().filter(addresses).count() + program.maps().len();
    let hashes = program.maps().iter().filter(|m| m.kind.is_hash());
    let places = hashes.filter_map(|m| Some(m.layout()?.places)).max();
    let walk = match id {
        LOOP => 0,
        _ => CALL_COST + u64::from(places.unwrap_or(0)).div_ceil(PLACES_PER_FUEL) + 1,
    };
    LAP + 4 * choices as u64 + CALL_COST + ENTRY + walk
}

/// A comparison for each slot and map, the call, the return from it, and the trampoline before the entry function.
fn tail_call(program: &Program) -> u64 {
    let slots = program.tails.iter().map(|t| 6 * t.slots.len() as u64 + 10).sum::<u64>();
    slots + 24 + 2 * (CALL_COST + ENTRY)
}

/// Words that a helper may charge for: it copies a key and a value, or bytes of a stack; a new entry of a per-CPU hash has a
/// value in each slot.
fn copied_words(program: &Program) -> u64 {
    let of_map = |m: &crate::map::MapDecl| {
        let slots = if m.kind == MapKind::PercpuHash { PERCPU_SLOTS } else { 1 };
        u64::from(m.key_size) + u64::from(slots) * u64::from(m.value_size).next_multiple_of(8)
    };
    let most = program.maps().iter().map(of_map).max().unwrap_or(0);
    most.max(STACK_BYTES.into()).div_ceil(8)
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use super::*;
    use crate::isa::asm::assemble;
    use crate::map::MapDecl;
    use crate::verify::Env;
    use crate::wasm::translate_unverified;
    use std::collections::BTreeMap;
    use wasmparser::{Operator, Parser, Payload};

    /// What wasmtime charges: nothing for what makes no code, [`CALL_COST`] for a call.
    fn fuel(op: &Operator<'_>) -> u64 {
        match op {
            Operator::Nop | Operator::Drop | Operator::Block { .. } | Operator::Loop { .. } => 0,
            Operator::Unreachable | Operator::Return | Operator::Else | Operator::End => 0,
            Operator::Call { .. } => CALL_COST,
            _ => 1,
        }
    }

    /// Fuel of all code of each instruction, the arms that exclude each other included, of unverified programs: they
    /// are where every access goes by the tag.
    fn emitted(text: &str, maps: &[MapDecl]) -> (Program, BTreeMap<u32, u64>) {
        let program = assemble(text, maps).expect("assembles");
        let module = translate_unverified(&program, &Env::base_helpers()).expect("translates");
        let by_pc = fuel_by_pc(module.bytes(), |at| module.source_at(at).map(|s| s.pc.0));
        (program, by_pc)
    }

    /// Fuel of all code of each instruction, which `source` tells.
    fn fuel_by_pc(wasm: &[u8], source: impl Fn(usize) -> Option<u32>) -> BTreeMap<u32, u64> {
        let mut by_pc = BTreeMap::new();
        for payload in Parser::new(0).parse_all(wasm) {
            let Ok(Payload::CodeSectionEntry(body)) = payload else { continue };
            for op in body.get_operators_reader().unwrap().into_iter_with_offsets() {
                let (op, at) = op.unwrap();
                if let Some(pc) = source(at) {
                    *by_pc.entry(pc).or_default() += fuel(&op);
                }
            }
        }
        by_pc
    }

    #[test]
    fn no_instruction_takes_more_fuel_than_its_weight() {
        let widths = [("r", "u64"), ("w", "u32")];
        let mut text = String::from("r0 = 0\nr2 = 1\nr3 = 1\n");
        for (w, _) in widths {
            for op in
                ["+=", "-=", "*=", "/=", "s/=", "%=", "s%=", "|=", "&=", "^=", "<<=", ">>=", "s>>=", "="]
            {
                for src in [format!("{w}3"), "7".into(), "-7".into(), "-1".into()] {
                    let shift = op.contains("<<") || op.contains(">>");
                    if !(shift && src.starts_with('-')) {
                        text += &format!("{w}2 {op} {src}\n");
                    }
                }
            }
            for form in ["(s8)", "(s16)"] {
                text += &format!("{w}2 = {form}{w}3\n");
            }
            text += &format!("{w}2 = -{w}2\n");
            for cond in ["==", "!=", "&", "<", "<=", ">", ">=", "s<", "s<=", "s>", "s>="] {
                text += &format!("if {w}2 {cond} {w}3 goto +0\nif {w}2 {cond} 9 goto +0\n");
            }
        }
        text += "r2 = (s32)r3\n";
        for form in ["be16", "be32", "be64", "le16", "le32", "le64", "bswap16", "bswap32", "bswap64"] {
            text += &format!("r2 = {form} r2\n");
        }
        for form in ["u8", "u16", "u32", "u64"] {
            text += &format!("r2 = *({form} *)(r1 + 8)\n*({form} *)(r1 + 8) = r3\n*({form} *)(r1 + 8) = 5\n");
        }
        for form in ["s8", "s16", "s32"] {
            text += &format!("r2 = *({form} *)(r1 + 8)\n");
        }
        for form in ["u64", "u32"] {
            let w = if form == "u64" { "r" } else { "w" };
            for op in ["+=", "|=", "&=", "^="] {
                text += &format!("lock *({form} *)(r1 + 8) {op} {w}3\n");
            }
        }
        text += "r0 = cmpxchg_64(r1 + 8, r0, r3)\nw0 = cmpxchg32_32(r1 + 8, w0, w3)\n";
        text += "call 5\ncall 7\ncall fn f\nr0 = 0x123456789 ll\nexit\nfn f:\nr0 = 1\nexit";
        let (program, by_pc) = emitted(&text, &[]);
        assert!(by_pc.len() >= 150, "{}", by_pc.len());
        for (pc, fuel) in by_pc {
            let most = weight(&program, Pc(pc), true);
            assert!(fuel <= most, "{:?}: {fuel}, not {most} at most", program.insn(Pc(pc)));
        }
    }

    /// A visit of a helper that calls back runs at most all the code of its instruction once: each lap comes back to the start of its
    /// Wasm loop.
    #[test]
    fn no_lap_takes_more_fuel_than_its_weight() {
        let map = |name: &str, kind| MapDecl {
            name: name.into(),
            kind,
            key_size: 4,
            value_size: 24,
            max_entries: 4,
            ..MapDecl::default()
        };
        let maps = [map("a", MapKind::Array), map("h", MapKind::Hash), map("b", MapKind::Array)];
        let text = "r6 = r1\nr7 = fn f ll\nif r1 == 0 goto +2\nr7 = fn g ll\nr1 = 3\nr2 = r7\nr3 = 0\nr4 = 0\ncall loop\n\
                    r1 = map[a] ll\nif r7 == r6 goto +2\nr1 = map[h] ll\nr2 = r7\nr3 = 0\nr4 = 0\ncall for_each_map_elem\n\
                    r1 = 3\nr2 = fn f ll\nr3 = 0\nr4 = 0\ncall loop\nr0 = 0\nexit\n\
                    fn f:\nr1 = map[a] ll\nr2 = fn h ll\nr3 = 0\nr4 = 0\ncall for_each_map_elem\nr0 = 0\nexit\n\
                    fn g:\nr1 = map[h] ll\nr2 = fn h ll\nr3 = 0\nr4 = 0\ncall for_each_map_elem\nr0 = 0\nexit\n\
                    fn h:\nr0 = 0\nexit";
        let text = text.replace("if r7 == r6 goto", "if r6 == 0 goto");
        let program = assemble(&text, &maps).expect("assembles");
        let env = Env { helpers: Env::kernel_like_helpers(), ..Env::generic(64) };
        let verified = crate::verify::Verifier::new(env.into()).verify(program.clone()).expect("is accepted");
        let module = crate::Translator::new().translate(&verified).expect("translates");
        let laps = |pc: &u32| matches!(program.insn(Pc(*pc)), Some(Insn::CallHelper { .. }));
        let costs = fuel_by_pc(module.bytes(), |at| module.source_at(at).map(|s| s.pc.0));
        let costs: Vec<(u32, u64)> = costs.into_iter().filter(|(pc, _)| laps(pc)).collect();
        assert_eq!(costs.len(), 5);
        for (pc, fuel) in costs {
            let most = weight(&program, Pc(pc), false);
            assert!(fuel <= most, "slot {pc}: {fuel}, not {most} at most");
        }
    }

    /// With maps, the code of an access has an arm for each region, of which one runs: what is left when maps
    /// are added is the length of an arm.
    #[test]
    fn one_arm_of_an_access_stays_within_the_weight() {
        let map = |i: usize| MapDecl {
            name: format!("m{i}"),
            kind: MapKind::Array,
            key_size: 4,
            value_size: 8,
            max_entries: 4,
            ..MapDecl::default()
        };
        let text = "r0 = 1\nw0 = cmpxchg32_32(r1 + 8, w0, w0)\nexit";
        let of = |maps: usize| {
            let maps: Vec<MapDecl> = (0..maps).map(map).collect();
            emitted(text, &maps).1[&1]
        };
        let (one, two, three) = (of(1), of(2), of(3));
        let arm = three - two;
        assert_eq!(two - one, arm);
        let run = one - arm;
        assert!(run <= ACCESS, "{run} of an access of one arm, {arm} an arm");
    }
}
