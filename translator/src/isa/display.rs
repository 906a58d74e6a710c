//! [`InsnText`]: an instruction as one line, in the notation of clang and llvm-objdump; [`Program::disassemble`].
//!
//! `asm` reads the same notation; where it departs from LLVM's (maps, functions) that module's docs say how.

use super::encode::distance;
use super::insn::{AtomicOp, Imm64, Insn, MapIdx, Operand, Pc, Reg, Size, Width};
use crate::program::Program;
use std::fmt;

/// Displays one instruction. Targets of jumps are relative to the next instruction, as in machine code.
#[derive(Clone, Copy, Debug)]
pub struct InsnText<'a> {
    insn: &'a Insn,
    pc: Pc,
    program: Option<&'a Program>,
}

impl Insn {
    /// The text of an instruction at `pc`, without names of maps and functions.
    pub fn text(&self, pc: Pc) -> InsnText<'_> {
        InsnText { insn: self, pc, program: None }
    }
}

impl Program {
    /// The text of the instruction at `pc`; `None` where none starts.
    pub fn insn_text(&self, pc: Pc) -> Option<InsnText<'_>> {
        Some(InsnText { insn: self.insn(pc)?, pc, program: Some(self) })
    }

    /// The program as text: functions, source lines as comments, and a numbered line per instruction.
    /// `asm::assemble` reads it.
    pub fn disassemble(&self) -> String {
        Listing(self).to_string()
    }
}

struct Listing<'a>(&'a Program);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.0.lines.iter().peekable();
        let mut funcs = self.0.funcs.iter().peekable();
        for (pc, insn) in self.0.iter() {
            if let Some(func) = funcs.next_if(|func| func.start == pc) {
                writeln!(f, "fn {}:", func.name)?;
            }
            while let Some((_, line)) = lines.next_if(|(at, _)| *at <= pc) {
                let text = line.text.replace(['\n', '\r'], " ");
                writeln!(f, "; {}:{} {}", line.file, line.line, text.trim())?;
            }
            writeln!(f, "{:>6}:  {}", pc.0, InsnText { insn, pc, program: Some(self.0) })?;
        }
        Ok(())
    }
}

impl fmt::Display for InsnText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.insn {
            Insn::Alu { width, op, dst, src } => {
                write!(f, "{} {} {}", R(width, dst), op.symbol().0, Src(width, src))
            }
            Insn::Neg { width, dst } => write!(f, "{0} = -{0}", R(width, dst)),
            Insn::MovSx { width, bits, dst, src } => {
                write!(f, "{} = (s{bits}){}", R(width, dst), R(width, src))
            }
            Insn::Endian { op, bits, dst } => write!(f, "{dst} = {}{bits} {dst}", op.symbol()),
            Insn::LoadImm64 { dst, imm } => {
                write!(f, "{dst} = ")?;
                self.wide(f, imm)?;
                f.write_str(" ll")
            }
            Insn::Load { size, sign, dst, base, off } => {
                write!(
                    f,
                    "{dst} = *({}{} *){}",
                    if sign { 's' } else { 'u' },
                    size.bytes() * 8,
                    Mem(base, off)
                )
            }
            Insn::Store { size, base, off, src } => {
                write!(f, "*({} *){} = {}", cell(size), Mem(base, off), Src(Width::W64, src))
            }
            Insn::Atomic { width, op, fetch, base, off, src } => {
                Atomic { width, op, fetch, mem: Mem(base, off), src: R(width, src) }.fmt(f)
            }
            Insn::Jump { target } => write!(f, "goto {:+}", distance(self.pc, target)),
            Insn::JumpIf { width, cond, dst, src, target } => {
                let (dst, src) = (R(width, dst), Src(width, src));
                write!(f, "if {dst} {} {src} goto {:+}", cond.symbol().0, distance(self.pc, target))
            }
            Insn::CallHelper { id } => write!(f, "call {id}"),
            Insn::CallReg { reg } => write!(f, "callx {reg}"),
            Insn::CallLocal { target } => {
                f.write_str("call ")?;
                self.func(f, target)
            }
            Insn::Exit => f.write_str("exit"),
        }
    }
}

impl InsnText<'_> {
    fn wide(&self, f: &mut fmt::Formatter<'_>, imm: Imm64) -> fmt::Result {
        match imm {
            Imm64::Value(value) => write!(f, "{value:#x}"),
            Imm64::Map(map) => self.map(f, map),
            Imm64::MapValue { map, offset } => {
                self.map(f, map)?;
                write!(f, "[0] + {offset}")
            }
            Imm64::Func(target) => self.func(f, target),
        }
    }

    /// By name where that names one map alone, else by index.
    fn map(&self, f: &mut fmt::Formatter<'_>, map: MapIdx) -> fmt::Result {
        let maps = self.program.map_or(&[][..], Program::maps);
        let plain = |name: &str| !name.is_empty() && !name.contains([']', '#', '\n']);
        match maps.get(usize::from(map.0)) {
            Some(decl) if plain(&decl.name) && maps.iter().filter(|m| m.name == decl.name).count() == 1 => {
                write!(f, "map[{}]", decl.name)
            }
            _ => write!(f, "map[#{}]", map.0),
        }
    }

    /// By name where that names one function alone, else by distance.
    fn func(&self, f: &mut fmt::Formatter<'_>, target: Pc) -> fmt::Result {
        let funcs = self.program.map_or(&[][..], Program::funcs);
        let plain =
            |name: &str| !name.contains(|c: char| c.is_whitespace() || matches!(c, ';' | '#' | '+' | '-'));
        match funcs.iter().find(|func| func.start == target) {
            Some(func) if plain(&func.name) && funcs.iter().filter(|o| o.name == func.name).count() == 1 => {
                write!(f, "fn {}", func.name)
            }
            _ => write!(f, "fn {:+}", distance(self.pc, target)),
        }
    }
}

/// A register by width: `r3` or `w3`.
struct R(Width, Reg);

impl fmt::Display for R {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.0 == Width::W32 { 'w' } else { 'r' };
        write!(f, "{letter}{}", self.1.index())
    }
}

struct Src(Width, Operand);

impl fmt::Display for Src {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Operand::Reg(reg) => R(self.0, reg).fmt(f),
            Operand::Imm(imm) => imm.fmt(f),
        }
    }
}

/// An address: `(r10 - 8)`.
struct Mem(Reg, i16);

impl Mem {
    fn inner(&self) -> String {
        let sign = if self.1 < 0 { '-' } else { '+' };
        format!("{} {sign} {}", self.0, self.1.unsigned_abs())
    }
}

impl fmt::Display for Mem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", self.inner())
    }
}

struct Atomic {
    width: Width,
    op: AtomicOp,
    fetch: bool,
    mem: Mem,
    src: R,
}

impl fmt::Display for Atomic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Atomic { width, op, fetch, mem, src } = self;
        let (assign, name) = op.symbol();
        let suffix = if *width == Width::W32 { "32_32" } else { "_64" };
        let cell = cell(if *width == Width::W32 { Size::W } else { Size::Dw });
        match op {
            AtomicOp::Xchg => write!(f, "{src} = xchg{suffix}({}, {src})", mem.inner()),
            AtomicOp::Cmpxchg => {
                let r0 = R(*width, Reg::R0);
                write!(f, "{r0} = cmpxchg{suffix}({}, {r0}, {src})", mem.inner())
            }
            AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor if *fetch => {
                write!(f, "{src} = atomic_fetch_{name}(({cell} *){mem}, {src})")
            }
            AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor => {
                write!(f, "lock *({cell} *){mem} {assign} {src}")
            }
        }
    }
}

fn cell(size: Size) -> &'static str {
    match size {
        Size::B => "u8",
        Size::H => "u16",
        Size::W => "u32",
        Size::Dw => "u64",
    }
}
