//! [`Program::link`]: from relocated code to a [`Program`], with every jump, call and map reference checked.

use super::{Func, Program, SourceLine, TailTargets};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::decode::{Slot, decode};
use crate::isa::{Imm64, Insn, MapIdx, Pc};
use crate::limits::{MAX_MAPS, MAX_PROGRAM_SLOTS};
use crate::map::{MapDecl, MapKind};
use std::collections::BTreeSet;
use std::ops::Bound;

/// Code with its relocations done, as the loader hands it over:
///
/// - `lddw` with src 1: imm is the index of a map; with src 2 also a byte offset in the second imm; with src 4:
///   imm is the distance in slots of a function from the slot after the first half.
/// - `call` with src 1: imm is the distance in slots from the next instruction; with src 0: a helper's number.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkInput {
    /// Name of the entry function.
    pub(crate) name: String,
    /// ELF section; empty for raw code.
    pub(crate) section: String,
    /// Slots, little-endian.
    pub(crate) code: Vec<u8>,
    /// Functions in order, without gaps, the entry first; empty if not known. Targets of calls are added.
    pub(crate) funcs: Vec<Func>,
    /// Maps, in the order of their indices.
    pub(crate) maps: Vec<MapDecl>,
    /// (first slot, line) in any order.
    pub(crate) lines: Vec<(Pc, SourceLine)>,
    /// Functions in the slots of program arrays.
    pub(crate) tails: Vec<TailTargets>,
}

impl Program {
    /// Decodes and checks. Whether execution can run past a function's end is the verifier's to say.
    pub(crate) fn link(input: LinkInput) -> Result<Program, Error> {
        let LinkInput { name, section, code, funcs, maps, mut lines, tails } = input;
        if maps.len() > MAX_MAPS {
            let message = format!("program uses {} maps, the limit is {MAX_MAPS}", maps.len());
            return Err(Error::new(Stage::Link, ErrorKind::TooLarge, At::File, message));
        }
        let slots = slots(&name, &code)?;
        let funcs = known_funcs(&name, funcs, slots.len())?;
        lines.sort_by_key(|(pc, _)| *pc);
        let mut program = Program { name, section, insns: Vec::new(), funcs, maps, lines, tails };
        program.decode_all(&slots)?;
        program.split_at_call_targets()?;
        program.check_targets()?;
        program.check_maps()?;
        program.check_tails()?;
        Ok(program)
    }

    /// Slots of program arrays hold functions.
    pub(crate) fn check_tails(&self) -> Result<(), Error> {
        for tails in &self.tails {
            let last = tails.slots.last_key_value().map(|(slot, _)| *slot);
            let fits =
                |m: &MapDecl| m.kind == MapKind::ProgArray && last.is_none_or(|slot| slot < m.max_entries);
            let starts = |pc: &Pc| self.funcs.binary_search_by_key(pc, |f| f.start).is_ok();
            let map = self.maps.get(usize::from(tails.map.0));
            if !map.is_some_and(fits) || !tails.slots.values().all(starts) {
                let name = map.map_or(String::new(), |m| m.name.clone());
                let text = "functions for slots that a program array of this size does not have";
                return Err(Error::new(Stage::Link, ErrorKind::BadMap, At::Map(name), text));
            }
        }
        Ok(())
    }

    fn error(&self, stage: Stage, kind: ErrorKind, pc: Pc, message: String) -> Error {
        Error::new(stage, kind, At::Insn { func: self.func_at(pc).name.clone(), pc }, message)
    }

    fn decode_all(&mut self, slots: &[Slot]) -> Result<(), Error> {
        self.insns.reserve_exact(slots.len());
        while let Some(slot) = slots.get(self.insns.len()) {
            let pc = Pc(self.insns.len() as u32);
            let insn = decode(pc, *slot, slots.get(pc.index() + 1).copied())
                .map_err(|bad| self.error(Stage::Decode, bad.kind, pc, bad.message))?;
            self.insns.push(Some(insn));
            if insn.slots() == 2 {
                self.insns.push(None);
            }
        }
        Ok(())
    }

    /// Is there an instruction that starts at `pc`? The second half of `lddw` is none.
    fn starts_insn(&self, pc: Pc) -> bool {
        self.insn(pc).is_some()
    }

    /// Makes every target of a call or callback the start of a function.
    fn split_at_call_targets(&mut self) -> Result<(), Error> {
        let mut starts: BTreeSet<Pc> = BTreeSet::new();
        for (pc, insn) in self.iter() {
            let (what, target) = match *insn {
                Insn::CallLocal { target } => ("call", target),
                Insn::LoadImm64 { imm: Imm64::Func(target), .. } => ("function address", target),
                _ => continue,
            };
            self.check_lands(pc, what, target)?;
            starts.insert(target);
        }
        if let Some(func) = self.funcs.iter().find(|f| !self.starts_insn(f.start)) {
            let message = format!("function {} starts inside an instruction", func.name);
            return Err(self.error(Stage::Link, ErrorKind::BadJump, func.start, message));
        }
        self.funcs = split(std::mem::take(&mut self.funcs), &starts);
        Ok(())
    }

    fn check_lands(&self, pc: Pc, what: &str, target: Pc) -> Result<(), Error> {
        let message = if target.index() >= self.len() {
            format!("{what} to slot {target}, past the end of the program ({} slots)", self.len())
        } else if !self.starts_insn(target) {
            format!("{what} to slot {target}, the second half of a lddw")
        } else {
            return Ok(());
        };
        Err(self.error(Stage::Link, ErrorKind::BadJump, pc, message))
    }

    /// Jumps stay inside their function.
    fn check_targets(&self) -> Result<(), Error> {
        for func in &self.funcs {
            for pc in (func.start.0..func.end.0).map(Pc) {
                let Some(Insn::Jump { target } | Insn::JumpIf { target, .. }) = self.insn(pc) else {
                    continue;
                };
                self.check_lands(pc, "jump", *target)?;
                if *target < func.start || *target >= func.end {
                    let (name, start, end) = (&func.name, func.start, func.end);
                    let message = format!(
                        "jump to slot {target}, outside its function {name} (slots {start} to {end})"
                    );
                    return Err(self.error(Stage::Link, ErrorKind::BadJump, pc, message));
                }
            }
        }
        Ok(())
    }

    fn check_maps(&self) -> Result<(), Error> {
        for (pc, insn) in self.iter() {
            let checked = match *insn {
                Insn::LoadImm64 { imm: Imm64::Map(map), .. } => self.map(map).map(|_| ()),
                Insn::LoadImm64 { imm: Imm64::MapValue { map, offset }, .. } => {
                    self.check_map_value(map, offset)
                }
                _ => Ok(()),
            };
            checked.map_err(|message| self.error(Stage::Link, ErrorKind::BadMap, pc, message))?;
        }
        Ok(())
    }

    fn map(&self, map: MapIdx) -> Result<&MapDecl, String> {
        let count = self.maps.len();
        self.maps
            .get(usize::from(map.0))
            .ok_or_else(|| format!("lddw names map {}, but the program has {count} maps", map.0))
    }

    fn check_map_value(&self, map: MapIdx, offset: u32) -> Result<(), String> {
        let decl = self.map(map)?;
        match decl.kind {
            MapKind::Array | MapKind::Global if offset < decl.value_size => Ok(()),
            MapKind::Array | MapKind::Global => Err(format!(
                "lddw wants byte {offset} of a value of map {}, which has {} bytes",
                decl.name, decl.value_size
            )),
            kind => Err(format!(
                "lddw wants the address of a value of map {}, a {}; only arrays have one",
                decl.name,
                kind.name()
            )),
        }
    }
}

fn slots(name: &str, code: &[u8]) -> Result<Vec<Slot>, Error> {
    let fail = |kind, message| {
        Error::new(Stage::Decode, kind, At::Insn { func: name.to_owned(), pc: Pc(0) }, message)
    };
    let (slots, rest) = code.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(fail(
            ErrorKind::BadInsn,
            format!("code has {} bytes, expected a multiple of 8", code.len()),
        ));
    }
    if slots.is_empty() {
        return Err(fail(ErrorKind::BadInsn, "code is empty, expected at least an exit".to_owned()));
    }
    if slots.len() > MAX_PROGRAM_SLOTS {
        let message = format!("code has {} slots, the limit is {MAX_PROGRAM_SLOTS}", slots.len());
        return Err(fail(ErrorKind::TooLarge, message));
    }
    Ok(slots.iter().copied().map(Slot::parse).collect())
}

/// Cuts functions where others start. One pass: a hostile program has as many starts as slots.
fn split(funcs: Vec<Func>, starts: &BTreeSet<Pc>) -> Vec<Func> {
    let mut all = Vec::with_capacity(funcs.len() + starts.len());
    for Func { mut name, mut start, end, global } in funcs {
        for &cut in starts.range((Bound::Excluded(start), Bound::Excluded(end))) {
            all.push(Func { name, start, end: cut, global });
            (name, start) = (format!("func_{cut}"), cut);
        }
        all.push(Func { name, start, end, global });
    }
    all
}

/// The functions given, or one for the whole; they must cover all slots in order.
fn known_funcs(name: &str, funcs: Vec<Func>, slots: usize) -> Result<Vec<Func>, Error> {
    let whole = Func::new(name.to_owned(), Pc(0), Pc(slots as u32));
    if funcs.is_empty() {
        return Ok(vec![whole]);
    }
    let mut at = whole.start;
    for func in &funcs {
        if func.start != at || func.end <= at || func.end > whole.end {
            let (start, end) = (func.start, func.end);
            let message = format!(
                "function covers slots {start} to {end}, expected a start at {at} and an end after it"
            );
            let at = At::Insn { func: func.name.clone(), pc: func.start };
            return Err(Error::new(Stage::Link, ErrorKind::Malformed, at, message));
        }
        at = func.end;
    }
    if at != whole.end {
        let message = format!("functions end at slot {at}, the code at slot {}", whole.end);
        return Err(Error::new(Stage::Link, ErrorKind::Malformed, At::File, message));
    }
    Ok(funcs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn code(slots: &[[u8; 8]]) -> Vec<u8> {
        slots.concat()
    }

    fn array(value_size: u32) -> MapDecl {
        MapDecl {
            name: "m".to_owned(),
            kind: MapKind::Array,
            key_size: 4,
            value_size,
            max_entries: 1,
            ..MapDecl::default()
        }
    }

    #[track_caller]
    fn refused(slots: &[[u8; 8]], maps: Vec<MapDecl>, kind: ErrorKind, pc: u32, words: &str) {
        let error = Program::with_maps("main", &code(slots), maps).expect_err("must be refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(matches!(error.at(), At::Insn { pc: at, .. } if *at == Pc(pc)), "{error}");
        assert!(error.message().contains(words), "{error}");
    }

    #[test]
    fn bad_slots() {
        use ErrorKind::{BadInsn, Unsupported};
        refused(&[], vec![], BadInsn, 0, "empty");
        refused(&[[0x07, 0x0b, 0, 0, 1, 0, 0, 0]], vec![], BadInsn, 0, "dst register is 11");
        refused(&[EXIT, [0x0f, 0xb0, 0, 0, 0, 0, 0, 0]], vec![], BadInsn, 1, "src register is 11");
        refused(
            &[[0xbc, 0x10, 32, 0, 0, 0, 0, 0]],
            vec![],
            BadInsn,
            0,
            "offset is 32, expected one of 0, 8, 16",
        );
        refused(&[[0x3f, 0x10, 2, 0, 0, 0, 0, 0]], vec![], BadInsn, 0, "offset is 2, expected one of 0, 1");
        refused(&[[0xd7, 0, 0, 0, 8, 0, 0, 0]], vec![], BadInsn, 0, "imm is 8, expected one of 16, 32, 64");
        refused(&[[0xdf, 0, 0, 0, 16, 0, 0, 0]], vec![], BadInsn, 0, "not defined");
        refused(&[[0x99, 0, 0, 0, 0, 0, 0, 0]], vec![], BadInsn, 0, "not defined");
        refused(&[[0xc3, 0, 0, 0, 2, 0, 0, 0]], vec![], BadInsn, 0, "imm is 2");
        refused(&[[0x18, 0, 0, 0, 1, 0, 0, 0]], vec![], BadInsn, 0, "last slot");
        refused(&[[0x18, 0, 0, 0, 1, 0, 0, 0], EXIT], vec![], BadInsn, 0, "starts with 95 00 00 00");
        refused(&[[0x18, 0x70, 0, 0, 1, 0, 0, 0], [0; 8]], vec![], BadInsn, 0, "src is 7");
        refused(&[[0x20, 0, 0, 0, 0, 0, 0, 0]], vec![], Unsupported, 0, "BPF_ABS");
        refused(&[[0x48, 0, 0, 0, 0, 0, 0, 0]], vec![], Unsupported, 0, "BPF_IND");
        refused(&[[0x8d, 2, 0, 0, 5, 0, 0, 0]], vec![], BadInsn, 0, "(callx): unused imm is 5");
        refused(&[[0x85, 0x20, 0, 0, 0, 0, 0, 0]], vec![], Unsupported, 0, "BTF id");
        refused(&[[0x18, 0x30, 0, 0, 1, 0, 0, 0], [0; 8]], vec![], Unsupported, 0, "platform variable");
    }

    #[test]
    fn bad_jumps() {
        use ErrorKind::BadJump;
        let lddw = [[0x18, 0, 0, 0, 1, 0, 0, 0], [0; 8]];
        let ja = |off: i16| Slot { code: 0x05, off, ..Slot::default() }.bytes();
        let call = |imm: i32| Slot { code: 0x85, src: 1, imm, ..Slot::default() }.bytes();
        refused(&[ja(1), EXIT], vec![], BadJump, 0, "past the end of the program (2 slots)");
        refused(&[EXIT, ja(-3)], vec![], BadJump, 1, "slot -1, before the start");
        refused(&[ja(1), lddw[0], lddw[1], EXIT], vec![], BadJump, 0, "second half of a lddw");
        refused(&[call(5), EXIT], vec![], BadJump, 0, "call to slot 6, past the end");
        refused(&[call(1), lddw[0], lddw[1], EXIT], vec![], BadJump, 0, "second half of a lddw");
        // The call splits the code at slot 2, so that the jump leaves its function.
        refused(
            &[call(1), ja(1), EXIT, EXIT],
            vec![],
            BadJump,
            1,
            "outside its function main (slots 0 to 2)",
        );
    }

    #[test]
    fn bad_maps() {
        use ErrorKind::BadMap;
        let value = |off: u8| [[0x18, 0x20, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, off, 0, 0, 0], EXIT];
        refused(&value(8), vec![array(8)], BadMap, 0, "byte 8 of a value of map m, which has 8 bytes");
        refused(&value(0), vec![MapDecl { kind: MapKind::Hash, ..array(8) }], BadMap, 0, "a hash");
        refused(&value(0), vec![], BadMap, 0, "has 0 maps");
        let object = [[0x18, 0x10, 0, 0, 1, 0, 0, 0], [0; 8], EXIT];
        refused(&object, vec![array(8)], BadMap, 0, "names map 1");
        let program = Program::with_maps("main", &code(&value(7)), vec![array(8)]).expect("in range");
        let imm = Imm64::MapValue { map: MapIdx(0), offset: 7 };
        assert!(matches!(program.insn(Pc(0)), Some(Insn::LoadImm64 { imm: i, .. }) if *i == imm));
        assert_eq!(program.insn(Pc(1)), None);
    }

    #[test]
    fn calls_make_functions() {
        let call = [0x85, 0x10, 0, 0, 2, 0, 0, 0];
        let func = [[0x18, 0x41, 0, 0, 3, 0, 0, 0], [0; 8]];
        let program =
            Program::from_code("main", &code(&[call, EXIT, EXIT, func[0], func[1], EXIT, EXIT, EXIT]))
                .expect("links");
        let funcs: Vec<_> = program.funcs().iter().map(|f| (f.name.as_str(), f.start.0, f.end.0)).collect();
        assert_eq!(funcs, [("main", 0, 3), ("func_3", 3, 7), ("func_7", 7, 8)]);
        assert_eq!(program.func_at(Pc(4)).name, "func_3");
    }

    #[test]
    fn functions_must_cover_the_code() {
        let func = |start, end| Func::new("f".to_owned(), Pc(start), Pc(end));
        for funcs in
            [vec![func(1, 2)], vec![func(0, 1)], vec![func(0, 3)], vec![func(0, 1), func(1, 1), func(1, 2)]]
        {
            let error = Program::link(LinkInput { code: code(&[EXIT, EXIT]), funcs, ..LinkInput::default() })
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
        }
    }
}
