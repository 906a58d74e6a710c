//! [`encode`]: an [`Insn`] as slots, the inverse of [`decode`](super::decode::decode), and [`Program::encode`].
//!
//! Encoding is canonical: a jump that fits into 16 bits is a `ja`, and map references use src 1 and 2. Code in that form
//! survives decoding and encoding bit for bit.

use super::decode::Slot;
use super::insn::{Imm64, Insn, Operand, Pc, Reg};
use super::ops::{Field, Form, Op};
use crate::program::Program;

/// The slot or two of an instruction at `pc`.
///
/// # Errors
/// The distance to a target that does not fit into its field, as text.
pub(crate) fn encode(pc: Pc, insn: &Insn) -> Result<(Slot, Option<Slot>), String> {
    if let Insn::Jump { target } = *insn {
        return jump(pc, target, false).or_else(|_| jump(pc, target, true)).map(|slot| (slot, None));
    }
    let mut slot = blank(Form::of(insn))?;
    let mut second = None;
    match *insn {
        Insn::Alu { dst, src, .. } => (slot.dst, slot.src, slot.imm) = (num(dst), reg_of(src), imm_of(src)),
        Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => slot.dst = num(dst),
        Insn::MovSx { dst, src, .. } => (slot.dst, slot.src) = (num(dst), num(src)),
        Insn::LoadImm64 { dst, imm } => {
            slot.dst = num(dst);
            let (low, high) = wide(pc, imm)?;
            slot.imm = low;
            second = Some(Slot { imm: high, ..Slot::default() });
        }
        Insn::Load { dst, base, off, .. } => (slot.dst, slot.src, slot.off) = (num(dst), num(base), off),
        Insn::Store { base, off, src, .. } => {
            (slot.dst, slot.off, slot.src, slot.imm) = (num(base), off, reg_of(src), imm_of(src));
        }
        Insn::Atomic { base, off, src, .. } => (slot.dst, slot.off, slot.src) = (num(base), off, num(src)),
        Insn::JumpIf { dst, src, target, .. } => {
            (slot.dst, slot.src, slot.imm) = (num(dst), reg_of(src), imm_of(src));
            slot.off = short(pc, target)?;
        }
        Insn::CallReg { reg } => slot.dst = num(reg),
        Insn::CallHelper { id } => slot.imm = id as i32,
        Insn::CallLocal { target } => slot.imm = long(pc, target)?,
        Insn::Jump { .. } | Insn::Exit => {}
    }
    Ok((slot, second))
}

/// A `ja`, or a `gotol` if `far`.
pub(crate) fn jump(pc: Pc, target: Pc, far: bool) -> Result<Slot, String> {
    let mut slot = blank(Form::Jump { long: far })?;
    if far {
        slot.imm = long(pc, target)?;
    } else {
        slot.off = short(pc, target)?;
    }
    Ok(slot)
}

/// A slot with the opcode and the selecting fields of a form.
fn blank(form: Form) -> Result<Slot, String> {
    let op = Op::for_form(form).ok_or_else(|| format!("there is no instruction {form}"))?;
    let only = |field| if let Field::Is(n) = field { n } else { 0 };
    // The selecting values of the table are small constants.
    Ok(Slot { code: op.code, dst: 0, src: only(op.src) as u8, off: only(op.off) as i16, imm: only(op.imm) })
}

fn num(reg: Reg) -> u8 {
    reg.index() as u8
}

fn reg_of(operand: Operand) -> u8 {
    match operand {
        Operand::Reg(reg) => num(reg),
        Operand::Imm(_) => 0,
    }
}

fn imm_of(operand: Operand) -> i32 {
    match operand {
        Operand::Reg(_) => 0,
        Operand::Imm(imm) => imm,
    }
}

/// Slots from the instruction after `pc` to `target`.
pub(super) fn distance(pc: Pc, target: Pc) -> i64 {
    i64::from(target.0) - i64::from(pc.0) - 1
}

fn short(pc: Pc, target: Pc) -> Result<i16, String> {
    let n = distance(pc, target);
    i16::try_from(n).map_err(|_| format!("target is {n} slots away, which does not fit into 16 bits"))
}

fn long(pc: Pc, target: Pc) -> Result<i32, String> {
    let n = distance(pc, target);
    i32::try_from(n).map_err(|_| format!("target is {n} slots away, which does not fit into 32 bits"))
}

/// Both immediates of a `lddw`.
fn wide(pc: Pc, imm: Imm64) -> Result<(i32, i32), String> {
    Ok(match imm {
        Imm64::Value(value) => (value as u32 as i32, (value >> 32) as u32 as i32),
        Imm64::Map(map) => (map.0.into(), 0),
        Imm64::MapValue { map, offset } => (map.0.into(), offset as i32),
        Imm64::Func(target) => (long(pc, target)?, 0),
    })
}

impl Insn {
    /// The 8 or 16 bytes of the instruction at `pc`.
    ///
    /// # Errors
    /// The distance to a target that does not fit into its field, or an operand that the instruction cannot have, as text.
    pub fn encode(&self, pc: Pc) -> Result<Vec<u8>, String> {
        let (first, second) = encode(pc, self)?;
        Ok(std::iter::once(first).chain(second).flat_map(|slot| slot.bytes()).collect())
    }
}

impl Program {
    /// The code as bytes. Linking them again with the same maps gives the same instructions.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len() * 8);
        for (pc, insn) in self.iter() {
            // Every instruction of a Program was decoded from slots at this very place, so it fits into slots.
            let (first, second) = encode(pc, insn).expect("decoded instructions encode");
            bytes.extend(first.bytes());
            bytes.extend(second.iter().flat_map(|slot| slot.bytes()));
        }
        bytes
    }
}
