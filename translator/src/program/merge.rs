//! [`Program::append`] and [`Program::fill_slot`]: programs of several objects become one, with tail calls from one into the other, before
//! anything is verified. So the verifier proves the whole, and at run time no tail call leaves the module.

use super::{Func, Program, SourceLine, TailTargets};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::{Imm64, Insn, MapIdx, Pc};
use crate::limits::{MAX_LINE_BYTES, MAX_MAPS, MAX_PROGRAM_SLOTS};
use crate::map::{MapDecl, MapKind};
use std::collections::BTreeMap;

/// Between a section of global data and the name of the program that it belongs to: `.rodata@small`.
const DATA_OF: char = '@';

impl Program {
    /// Appends another program with all that it reaches, as a target of tail calls, and returns where its entry function begins here. No
    /// slot leads there yet: [`Program::fill_slot`] does that.
    ///
    /// `name` tells the two apart, and no other appended program may have it: functions become `name.function`, and sections of global
    /// data, which stay the target's own, `.rodata@name`. Other maps are shared by name; the slots of a program array that both declare
    /// are joined.
    ///
    /// # Errors
    /// `BadMap` for a map that both declare in different shapes, for a slot that both fill and for global data of a `name` that
    /// is taken; `TooLarge`
    /// beyond [`MAX_PROGRAM_SLOTS`] and [`MAX_MAPS`]. The program is then as before.
    pub fn append(&mut self, name: &str, target: &Program) -> Result<Pc, Error> {
        let by = self.shift(name, target)?;
        let (maps, places) = self.joined_maps(name, target)?;
        let shift = Shift { by, maps: places };
        let tails = self.joined_tails(name, target, &maps, &shift)?;
        self.insns.extend(target.insns.iter().map(|insn| insn.map(|insn| shift.insn(insn))));
        let func = |f: &Func| Func {
            name: format!("{name}.{}", f.name),
            start: shift.pc(f.start),
            end: shift.pc(f.end),
            global: f.global,
        };
        self.funcs.extend(target.funcs.iter().map(func));
        self.append_lines(target, &shift);
        (self.maps, self.tails) = (maps, tails);
        Ok(shift.pc(Pc(0)))
    }

    /// Puts the function that begins at `at` into a slot of the program array of that name.
    ///
    /// # Errors
    /// `NotFound` for a map that the program does not use, `BadMap` for one of another kind, for a slot that it does not have and for one
    /// that holds a function already, `BadJump` if no function begins there.
    pub fn fill_slot(&mut self, map: &str, slot: u32, at: Pc) -> Result<(), Error> {
        let fail = |kind, text: String| Err(Error::new(Stage::Link, kind, At::Map(map.to_owned()), text));
        let Some(index) = self.maps.iter().position(|m| m.name == map) else {
            return fail(ErrorKind::NotFound, "the program does not use such a map".to_owned());
        };
        let (decl, index) = (&self.maps[index], MapIdx(index as u16));
        if decl.kind != MapKind::ProgArray {
            return fail(
                ErrorKind::BadMap,
                format!("is of kind {}; only program arrays hold programs", decl.kind.name()),
            );
        }
        if slot >= decl.max_entries {
            let text = format!("has no slot {slot}: max_entries is {}", decl.max_entries);
            return fail(ErrorKind::BadMap, text);
        }
        if self.funcs.binary_search_by_key(&at, |f| f.start).is_err() {
            return fail(ErrorKind::BadJump, format!("no function begins at slot {at} of the program"));
        }
        if let Some(there) = self.tail_target(index, slot) {
            let there = &self.func_at(there).name;
            let text = format!(
                "slot {slot} holds {there} already; give the new one another slot, or empty this one"
            );
            return fail(ErrorKind::BadMap, text);
        }
        slots_of(&mut self.tails, index).insert(slot, at);
        Ok(())
    }

    /// By how much the target's slots are moved.
    fn shift(&self, name: &str, target: &Program) -> Result<u32, Error> {
        let (here, there) = (self.len(), target.len());
        if here + there <= MAX_PROGRAM_SLOTS {
            return Ok(here as u32);
        }
        let text = format!(
            "with the {there} slots of {name} the program has {}, the limit is {MAX_PROGRAM_SLOTS}; link fewer \
             programs into one another",
            here + there
        );
        Err(Error::new(Stage::Link, ErrorKind::TooLarge, At::File, text))
    }

    /// The maps of both, and for each of the target's its place among them.
    fn joined_maps(&self, name: &str, target: &Program) -> Result<(Vec<MapDecl>, Vec<MapIdx>), Error> {
        let (mut maps, mut places) = (self.maps.clone(), Vec::with_capacity(target.maps.len()));
        for decl in &target.maps {
            places.push(match decl.kind {
                MapKind::Global => add_data(&mut maps, name, decl)?,
                _ => share(&mut maps, name, decl)?,
            });
        }
        if maps.len() > MAX_MAPS {
            let text = format!(
                "with those of {name} the program uses {} maps, the limit is {MAX_MAPS}; link fewer programs into one \
                 another, or share maps by name",
                maps.len()
            );
            return Err(Error::new(Stage::Link, ErrorKind::TooLarge, At::File, text));
        }
        Ok((maps, places))
    }

    fn joined_tails(
        &self,
        name: &str,
        target: &Program,
        maps: &[MapDecl],
        shift: &Shift,
    ) -> Result<Vec<TailTargets>, Error> {
        let mut tails = self.tails.clone();
        for TailTargets { map, slots } in &target.tails {
            let map = shift.map(*map);
            let joined = slots_of(&mut tails, map);
            for (slot, pc) in slots {
                let Some(there) = joined.insert(*slot, shift.pc(*pc)) else { continue };
                let (there, ours) = (&self.func_at(there).name, &target.func_at(*pc).name);
                let text = format!(
                    "slot {slot} holds {there}, and {name} puts {ours} there; a slot has room for one: change one of the objects"
                );
                let at = At::Map(maps[usize::from(map.0)].name.clone());
                return Err(Error::new(Stage::Link, ErrorKind::BadMap, at, text));
            }
        }
        Ok(tails)
    }

    /// As many of the target's lines as one program may have.
    fn append_lines(&mut self, target: &Program, shift: &Shift) {
        let bytes = |line: &SourceLine| line.file.len() + line.text.len();
        let used: usize = self.lines.iter().map(|(_, line)| bytes(line)).sum();
        let mut left = MAX_LINE_BYTES.saturating_sub(used);
        for (pc, line) in &target.lines {
            let Some(rest) = left.checked_sub(bytes(line)) else { break };
            left = rest;
            self.lines.push((shift.pc(*pc), line.clone()));
        }
    }
}

/// The slots of that map, none if there were none.
fn slots_of(tails: &mut Vec<TailTargets>, map: MapIdx) -> &mut BTreeMap<u32, Pc> {
    let at = tails.iter().position(|t| t.map == map).unwrap_or_else(|| {
        tails.push(TailTargets { map, slots: BTreeMap::new() });
        tails.len() - 1
    });
    &mut tails[at].slots
}

/// Global data stays a map of its own, under a name that says whose it is.
fn add_data(maps: &mut Vec<MapDecl>, name: &str, decl: &MapDecl) -> Result<MapIdx, Error> {
    let renamed = format!("{}{DATA_OF}{name}", decl.name);
    if maps.iter().any(|m| m.name == renamed) {
        let text = format!("there is such a map already; give {name} another name");
        return Err(Error::new(Stage::Link, ErrorKind::BadMap, At::Map(renamed), text));
    }
    maps.push(MapDecl { name: renamed, ..decl.clone() });
    Ok(MapIdx((maps.len() - 1) as u16))
}

/// A map of that name is one map in all programs that are linked.
fn share(maps: &mut Vec<MapDecl>, name: &str, decl: &MapDecl) -> Result<MapIdx, Error> {
    let Some(at) = maps.iter().position(|m| m.name == decl.name) else {
        maps.push(decl.clone());
        return Ok(MapIdx((maps.len() - 1) as u16));
    };
    let known = &mut maps[at];
    if !known.same_shape(decl) {
        let text = format!(
            "{name} declares it as {}, and a program that it is linked with as {}; make them equal, or rename one",
            decl.shape(),
            known.shape()
        );
        return Err(Error::new(Stage::Link, ErrorKind::BadMap, At::Map(decl.name.clone()), text));
    }
    // Not every object says what its bytes are.
    known.key_type = known.key_type.take().or_else(|| decl.key_type.clone());
    known.value_type = known.value_type.take().or_else(|| decl.value_type.clone());
    Ok(MapIdx(at as u16))
}

/// Where things of the target are now.
struct Shift {
    by: u32,
    maps: Vec<MapIdx>,
}

impl Shift {
    fn pc(&self, pc: Pc) -> Pc {
        pc.plus(self.by)
    }

    fn map(&self, map: MapIdx) -> MapIdx {
        // A program's own indices are in range.
        self.maps[usize::from(map.0)]
    }

    fn insn(&self, insn: Insn) -> Insn {
        match insn {
            Insn::Jump { target } => Insn::Jump { target: self.pc(target) },
            Insn::JumpIf { width, cond, dst, src, target } => {
                Insn::JumpIf { width, cond, dst, src, target: self.pc(target) }
            }
            Insn::CallLocal { target } => Insn::CallLocal { target: self.pc(target) },
            Insn::LoadImm64 { dst, imm } => Insn::LoadImm64 { dst, imm: self.imm(imm) },
            Insn::Alu { .. }
            | Insn::Neg { .. }
            | Insn::MovSx { .. }
            | Insn::Endian { .. }
            | Insn::Load { .. }
            | Insn::Store { .. }
            | Insn::Atomic { .. }
            | Insn::CallHelper { .. }
            | Insn::CallReg { .. }
            | Insn::Exit => insn,
        }
    }

    fn imm(&self, imm: Imm64) -> Imm64 {
        match imm {
            Imm64::Value(_) => imm,
            Imm64::Map(map) => Imm64::Map(self.map(map)),
            Imm64::MapValue { map, offset } => Imm64::MapValue { map: self.map(map), offset },
            Imm64::Func(pc) => Imm64::Func(self.pc(pc)),
        }
    }
}
