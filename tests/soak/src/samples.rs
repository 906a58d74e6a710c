//! [`deep`]: public samples made into programs that the verifier follows to their end, to measure its speed.
//!
//! Most public programs need what Ringfence does not have (packets, kernel helpers, other kinds of maps), and are refused after
//! a few instructions. That says nothing of how long their paths take. So they are rewritten: packets become a map's value
//! with an end that varies, unknown helpers give an unknown number and fill the buffer that they were given, and maps of other kinds become
//! hash maps. What comes out computes nothing sensible, but its branches, loops, spills and states are those of the original.

use ringfence_translator::isa::asm::assemble;
use ringfence_translator::isa::{AluOp, Imm64, Insn, Operand, Pc, Reg, Size, Width};
use ringfence_translator::{Env, MapDecl, MapKind, Program};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Bytes of what stands for a packet; its data starts at [`HEADROOM`].
const PACKET: u32 = 4096;
const HEADROOM: u32 = 64;

fn word(b: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = b.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |x, b| x << 8 | usize::from(*b)))
}

/// A section of an ELF file: the place of its header, its name, offset and size.
struct Section {
    header: usize,
    name: String,
    offset: usize,
    size: usize,
}

fn sections(elf: &[u8]) -> Option<Vec<Section>> {
    let (start, size, count, names) =
        (word(elf, 40, 8)?, word(elf, 58, 2)?, word(elf, 60, 2)?, word(elf, 62, 2)?);
    let field = |i: usize, at: usize, len: usize| word(elf, start + i * size + at, len);
    let strings = field(names, 24, 8)?;
    let text = |at: usize| {
        let bytes = elf.get(strings + at..)?;
        Some(String::from_utf8_lossy(bytes.split(|b| *b == 0).next()?).into_owned())
    };
    let section = |i| {
        Some(Section {
            header: start + i * size,
            name: text(field(i, 0, 4)?)?,
            offset: field(i, 24, 8)?,
            size: field(i, 32, 8)?,
        })
    };
    (0..count).map(section).collect()
}

/// Kinds of maps that are offered; others become hash maps.
fn offered(kind: usize) -> bool {
    matches!(kind, 1 | 2 | 3 | 5 | 6 | 9 | 27)
}

/// Declares maps of kinds that are not offered as hash maps. `None` if the file is not as it should be.
pub fn plain_maps(elf: &[u8]) -> Option<Vec<u8>> {
    let mut out = elf.to_vec();
    let all = sections(elf)?;
    let symbols = all.iter().find(|s| s.name == ".symtab");
    for (index, s) in all.iter().enumerate().filter(|(_, s)| s.name == "maps" || s.name.starts_with("maps/"))
    {
        let table = symbols?;
        for at in (table.offset..table.offset + table.size).step_by(24) {
            let def = s.offset + word(elf, at + 8, 8)?;
            if word(elf, at + 6, 2)? == index && !offered(word(elf, def, 4)?) {
                out.get_mut(def..def + 4)?.copy_from_slice(&1u32.to_le_bytes());
                for field in [def + 4, def + 8, def + 12].into_iter().filter(|f| word(elf, *f, 4) == Some(0))
                {
                    out.get_mut(field..field + 4)?.copy_from_slice(&4u32.to_le_bytes());
                }
            }
        }
    }
    if let Some(s) = all.iter().find(|s| s.name == ".BTF") {
        let btf = plain_btf(elf.get(s.offset..s.offset + s.size)?)?;
        let header = s.header;
        let offset = out.len() as u64;
        out.get_mut(header + 24..header + 32)?.copy_from_slice(&offset.to_le_bytes());
        out.get_mut(header + 32..header + 40)?.copy_from_slice(&(btf.len() as u64).to_le_bytes());
        out.extend(btf);
    }
    Some(out)
}

/// The same for maps that BTF declares: the member `type` points to an array of as many elements as the kind's number.
fn plain_btf(btf: &[u8]) -> Option<Vec<u8>> {
    let (header, types, types_len) = (word(btf, 4, 4)?, word(btf, 8, 4)?, word(btf, 12, 4)?);
    let (strings, strings_len) = (word(btf, 16, 4)?, word(btf, 20, 4)?);
    let name = |off: usize| btf.get(header + strings + off..)?.split(|b| *b == 0).next();
    let mut at = header + types;
    let mut starts = vec![0];
    while at < header + types + types_len {
        starts.push(at);
        let info = word(btf, at + 4, 4)?;
        let n = info & 0xffff;
        at += 12
            + match info >> 24 & 0x1f {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * n,
                6 | 13 => 8 * n,
                _ => 0,
            };
    }
    let kind = |id: usize| Some(word(btf, starts.get(id)? + 4, 4)? >> 24 & 0x1f);
    let refers = |id: usize| word(btf, starts.get(id)? + 8, 4);
    let mut out = btf.to_vec();
    let mut model = None;
    for &s in starts.iter().skip(1).filter(|&&s| word(btf, s + 4, 4).is_some_and(|i| i >> 24 & 0x1f == 4)) {
        for m in 0..word(btf, s + 4, 4)? & 0xffff {
            let member = s + 12 + 12 * m;
            let ptr = word(btf, member + 4, 4)?;
            let key = name(word(btf, member, 4)?)?;
            if !matches!(key, b"type" | b"max_entries")
                || kind(ptr) != Some(2)
                || kind(refers(ptr)?) != Some(3)
            {
                continue;
            }
            let array = *starts.get(refers(ptr)?)?;
            let count = word(btf, array + 20, 4)?;
            // What is filled in on loading, and kinds that are not offered: one entry, or a hash map.
            if (key == b"type" && !offered(count)) || (key == b"max_entries" && count == 0) {
                model = Some(array);
                let new = starts.len() as u32 + 1;
                out.get_mut(member + 4..member + 8)?.copy_from_slice(&new.to_le_bytes());
            }
        }
    }
    let Some(model) = model else { return Some(out) };
    // Two types more: an array of one element, and a pointer to it.
    let mut more = btf.get(model..model + 20)?.to_vec();
    more.extend(1u32.to_le_bytes());
    more.extend(0u32.to_le_bytes());
    more.extend((2u32 << 24).to_le_bytes());
    more.extend((starts.len() as u32).to_le_bytes());
    let end = header + types + types_len;
    let strings_at = header + strings;
    let mut new = out.get(..end)?.to_vec();
    new.extend(&more);
    new.extend(out.get(strings_at..strings_at + strings_len)?);
    new.get_mut(12..16)?.copy_from_slice(&((types_len + more.len()) as u32).to_le_bytes());
    new.get_mut(16..20)?.copy_from_slice(&((types + types_len + more.len()) as u32).to_le_bytes());
    Some(new)
}

/// Rewrites one program.
struct Deep<'a> {
    program: &'a Program,
    env: &'a Env,
    /// Offsets of the packet's start, its end and its metadata in the context.
    packet: [i16; 3],
    /// By slot: may r0 be looked at after the instruction?
    r0_live: Vec<bool>,
    text: String,
}

/// The program rewritten, if it can be. `xdp` tells where its context has the packet.
///
/// # Errors
/// What the assembler says.
pub fn deep(program: &Program, env: &Env, xdp: bool) -> Result<Program, String> {
    let packet = if xdp { [0, 4, 8] } else { [76, 80, 140] };
    let mut d = Deep { program, env, packet, r0_live: live_after(program, Reg::R0), text: String::new() };
    d.rewrite();
    let mut maps = program.maps().to_vec();
    maps.push(MapDecl {
        name: "packet".into(),
        kind: MapKind::Global,
        key_size: 4,
        value_size: PACKET,
        max_entries: 1,
        init: vec![0; PACKET as usize],
        ..MapDecl::default()
    });
    assemble(&d.text, &maps).map_err(|e| e.to_string())
}

impl Deep<'_> {
    fn line(&mut self, text: impl AsRef<str>) {
        writeln!(self.text, "  {}", text.as_ref()).expect("a string grows");
    }

    fn rewrite(&mut self) {
        let starts: BTreeSet<Pc> = self.program.funcs().iter().map(|f| f.start).collect();
        let contexts = self.contexts();
        let mut r1 = true;
        for (pc, insn) in self.program.iter() {
            if starts.contains(&pc) {
                writeln!(self.text, "fn f{}:", pc.0).expect("a string grows");
                if pc == Pc(0) {
                    self.line("r0 = 0");
                }
                r1 = pc == Pc(0);
            }
            writeln!(self.text, "p{}:", pc.0).expect("a string grows");
            let entry = self.program.func_at(pc).start == Pc(0);
            let context = |base: Reg| (base == Reg::R1 && r1) || (entry && contexts.contains(&base));
            match *insn {
                Insn::Load { size: Size::W, sign: false, dst, base, off }
                    if context(base) && self.packet.contains(&off) =>
                {
                    self.packet_load(pc, dst, base, off);
                }
                _ => self.plain(pc, insn),
            }
            r1 &= !writes(insn, Reg::R1);
        }
    }

    /// Registers of the entry function that hold the context and nothing else.
    fn contexts(&self) -> Vec<Reg> {
        let entry: Vec<&Insn> = self
            .program
            .iter()
            .filter(|(pc, _)| self.program.func_at(*pc).start == Pc(0))
            .map(|x| x.1)
            .collect();
        let copy = |i: &Insn, r: Reg| matches!(i, Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Reg(s) } if *dst == r && *s == Reg::R1);
        let only = |r: &Reg| {
            let mut all = entry.iter().filter(|i| writes(i, *r));
            all.next().is_some_and(|i| copy(i, *r)) && all.next().is_none()
        };
        (6..10).filter_map(Reg::new).filter(only).collect()
    }

    fn packet_load(&mut self, pc: Pc, dst: Reg, base: Reg, off: i16) {
        let data = format!("map[packet][0] + {HEADROOM} ll");
        if off != self.packet[1] {
            return self.line(format!("{dst} = {data}"));
        }
        let other = if dst == Reg::R0 { base } else { Reg::R0 };
        let keep = other != Reg::R0 || self.r0_live[pc.index()];
        if keep {
            self.line(format!("*(u64 *)(r10 - 512) = {other}"));
        }
        self.line(format!("{dst} = *(u32 *)({base} + {off})"));
        self.line(format!("{dst} &= 1023"));
        self.line(format!("{other} = {data}"));
        self.line(format!("{dst} += {other}"));
        if keep {
            self.line(format!("{other} = *(u64 *)(r10 - 512)"));
        }
    }

    fn plain(&mut self, pc: Pc, insn: &Insn) {
        match *insn {
            Insn::Jump { target } => self.line(format!("goto p{}", target.0)),
            Insn::JumpIf { target, .. } => {
                let text = insn.text(pc).to_string();
                let condition = text.split(" goto ").next().unwrap_or_default();
                self.line(format!("{condition} goto p{}", target.0));
            }
            Insn::CallLocal { target } => self.line(format!("call fn f{}", target.0)),
            Insn::LoadImm64 { dst, imm: Imm64::Func(f) } => self.line(format!("{dst} = fn f{} ll", f.0)),
            Insn::CallHelper { id } if self.env.helper(id).is_none() => self.unknown_helper(pc, id),
            _ => self.line(insn.text(pc).to_string()),
        }
    }

    /// Fills the buffer of a helper that has one and of which the size is plain, and gives a number.
    fn unknown_helper(&mut self, pc: Pc, id: u32) {
        let buffer = match id {
            4 | 16 | 45 | 112..=115 => Some((Reg::R1, Reg::R2)),
            26 | 68 => Some((Reg::R3, Reg::R4)),
            20 | 67 => Some((Reg::R2, Reg::R3)),
            _ => None,
        };
        if let Some((to, size)) = buffer {
            for at in 0..self.constant_before(pc, size).unwrap_or(0).min(256) {
                self.line(format!("*(u8 *)({to} + {at}) = 0"));
            }
        }
        self.line("call get_prandom_u32");
    }

    /// What a register was last set to, if that is a constant close before.
    fn constant_before(&self, pc: Pc, r: Reg) -> Option<i32> {
        let before = (pc.0.saturating_sub(12)..pc.0).rev().filter_map(|p| self.program.insn(Pc(p)));
        match before.into_iter().find(|i| writes(i, r))? {
            Insn::Alu { op: AluOp::Mov, src: Operand::Imm(k), .. } => Some(*k),
            _ => None,
        }
    }
}

/// By slot: may the register be looked at after the instruction there?
fn live_after(program: &Program, r: Reg) -> Vec<bool> {
    let mut before = vec![false; program.len() + 1];
    let mut after = before.clone();
    loop {
        let old = after.clone();
        let insns: Vec<(Pc, &Insn)> = program.iter().collect();
        for (pc, insn) in insns.into_iter().rev() {
            let next = pc.plus(insn.slots()).index();
            after[pc.index()] = match insn {
                Insn::Jump { target } => before[target.index()],
                Insn::JumpIf { target, .. } => before[target.index()] || before[next],
                Insn::Exit => false,
                _ => before[next],
            };
            before[pc.index()] = reads(insn, r) || (after[pc.index()] && !writes(insn, r));
        }
        if after == old {
            return after;
        }
    }
}

/// Does an instruction look at that register?
fn reads(insn: &Insn, r: Reg) -> bool {
    let is = |o: &Operand| *o == Operand::Reg(r);
    match insn {
        Insn::Alu { op: AluOp::Mov, src, .. } => is(src),
        Insn::Alu { dst, src, .. } | Insn::JumpIf { dst, src, .. } => *dst == r || is(src),
        Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => *dst == r,
        Insn::MovSx { src, .. } => *src == r,
        Insn::Load { base, .. } => *base == r,
        Insn::Store { base, src, .. } => *base == r || is(src),
        Insn::Atomic { base, src, .. } => *base == r || *src == r || r == Reg::R0,
        Insn::CallHelper { .. } | Insn::CallReg { .. } | Insn::CallLocal { .. } => {
            Reg::R1 <= r && r <= Reg::R5
        }
        Insn::Exit => r == Reg::R0,
        Insn::LoadImm64 { .. } | Insn::Jump { .. } => false,
    }
}

/// Does an instruction change that register?
fn writes(insn: &Insn, r: Reg) -> bool {
    match insn {
        Insn::Alu { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Endian { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. } => *dst == r,
        Insn::Atomic { fetch, src, .. } => *fetch && (*src == r || r == Reg::R0),
        Insn::CallHelper { .. } | Insn::CallReg { .. } | Insn::CallLocal { .. } => r <= Reg::R5,
        Insn::Store { .. } | Insn::Jump { .. } | Insn::JumpIf { .. } | Insn::Exit => false,
    }
}
