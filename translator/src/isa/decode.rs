//! [`Slot`]: eight bytes taken apart, and [`decode`], which makes an [`Insn`] of them or says which field is wrong.

use super::insn::{Imm64, Insn, MapIdx, Operand, Pc, Reg};
use super::ops::{Field, Form, Op, WideForm};
use crate::error::ErrorKind;

/// The fields of an 8-byte slot (RFC 9669, 3.1), little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) code: u8,
    pub(crate) dst: u8,
    pub(crate) src: u8,
    pub(crate) off: i16,
    pub(crate) imm: i32,
}

impl Slot {
    /// Takes eight bytes apart.
    pub(crate) fn parse(b: [u8; 8]) -> Slot {
        Slot {
            code: b[0],
            dst: b[1] & 15,
            src: b[1] >> 4,
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
    /// The eight bytes.
    pub(crate) fn bytes(self) -> [u8; 8] {
        let (o, i) = (self.off.to_le_bytes(), self.imm.to_le_bytes());
        [self.code, self.src << 4 | self.dst, o[0], o[1], i[0], i[1], i[2], i[3]]
    }
}

/// Why a slot is no instruction. The place is the caller's to add.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
}

impl Bad {
    #[cold]
    fn insn(message: String) -> Bad {
        Bad { kind: ErrorKind::BadInsn, message }
    }
}

/// Decodes the instruction that starts at `pc`; `next` is the slot after it, where there is one.
/// Jump and call targets become absolute; whether they land anywhere is not checked here.
pub(crate) fn decode(pc: Pc, slot: Slot, next: Option<Slot>) -> Result<Insn, Bad> {
    let op = select(slot)?;
    if let Form::Refused(what) = op.form {
        let message = format!("opcode {:#04x} is a {what}, which is not supported", slot.code);
        return Err(Bad { kind: ErrorKind::Unsupported, message });
    }
    check_unused(op, slot)?;
    let operands =
        Operands { pc, slot, dst: reg(op, op.dst, "dst", slot.dst)?, src: reg(op, op.src, "src", slot.src)? };
    build(op.form, &operands, next)
}

/// The row whose selecting fields the slot matches.
fn select(slot: Slot) -> Result<&'static Op, Bad> {
    let rows = Op::with_code(slot.code);
    let hit = |field, value| !matches!(field, Field::Is(want) if want != value);
    let matches =
        |op: &&Op| hit(op.src, slot.src.into()) && hit(op.off, slot.off.into()) && hit(op.imm, slot.imm);
    if let Some(op) = rows.iter().copied().find(|op| matches(op)) {
        return Ok(op);
    }
    let Some(first) = rows.first() else {
        return Err(Bad::insn(format!("opcode {:#04x} is not defined by RFC 9669", slot.code)));
    };
    let (name, value, field): (_, i64, fn(&Op) -> Field) = match (first.src, first.off) {
        (Field::Is(_), _) => ("src", slot.src.into(), |op| op.src),
        (_, Field::Is(_)) => ("offset", slot.off.into(), |op| op.off),
        _ => ("imm", slot.imm.into(), |op| op.imm),
    };
    let allowed = rows.iter().filter_map(|op| match field(op) {
        Field::Is(n) => Some(n.to_string()),
        Field::Used | Field::Unused => None,
    });
    let allowed = allowed.collect::<Vec<_>>().join(", ");
    Err(Bad::insn(format!(
        "opcode {:#04x} ({}): {name} is {value}, expected one of {allowed}",
        slot.code, first.form
    )))
}

fn check_unused(op: &Op, slot: Slot) -> Result<(), Bad> {
    let fields: [(&str, Field, i64); 4] = [
        ("dst", op.dst, slot.dst.into()),
        ("src", op.src, slot.src.into()),
        ("offset", op.off, slot.off.into()),
        ("imm", op.imm, slot.imm.into()),
    ];
    match fields.iter().find(|(_, field, value)| *field == Field::Unused && *value != 0) {
        Some((name, _, value)) => Err(Bad::insn(format!(
            "opcode {:#04x} ({}): unused {name} is {value}, expected 0",
            slot.code, op.form
        ))),
        None => Ok(()),
    }
}

/// The register of a field; r0 where the form has none there.
fn reg(op: &Op, field: Field, name: &str, value: u8) -> Result<Reg, Bad> {
    if field != Field::Used {
        return Ok(Reg::R0);
    }
    Reg::new(value).ok_or_else(|| {
        Bad::insn(format!(
            "opcode {:#04x} ({}): {name} register is {value}, expected 0 to 10",
            op.code, op.form
        ))
    })
}

struct Operands {
    pc: Pc,
    slot: Slot,
    dst: Reg,
    src: Reg,
}

impl Operands {
    fn operand(&self, reg: bool) -> Operand {
        if reg { Operand::Reg(self.src) } else { Operand::Imm(self.slot.imm) }
    }
    fn target(&self, distance: i32) -> Result<Pc, Bad> {
        let target = i64::from(self.pc.0) + 1 + i64::from(distance);
        u32::try_from(target).map(Pc).map_err(|_| Bad {
            kind: ErrorKind::BadJump,
            message: format!("target is slot {target}, before the start of the program"),
        })
    }
}

fn build(form: Form, o: &Operands, next: Option<Slot>) -> Result<Insn, Bad> {
    let (dst, src, off) = (o.dst, o.src, o.slot.off);
    Ok(match form {
        Form::Alu { width, op, reg } => Insn::Alu { width, op, dst, src: o.operand(reg) },
        Form::Neg { width } => Insn::Neg { width, dst },
        Form::MovSx { width, bits } => Insn::MovSx { width, bits, dst, src },
        Form::Endian { op, bits } => Insn::Endian { op, bits, dst },
        Form::Wide(wide) => Insn::LoadImm64 { dst, imm: wide_imm(wide, o, next)? },
        Form::Load { size, sign } => Insn::Load { size, sign, dst, base: src, off },
        Form::Store { size, reg } => Insn::Store { size, base: dst, off, src: o.operand(reg) },
        Form::Atomic { width, op, fetch } => Insn::Atomic { width, op, fetch, base: dst, off, src },
        Form::Jump { long: false } => Insn::Jump { target: o.target(off.into())? },
        Form::Jump { long: true } => Insn::Jump { target: o.target(o.slot.imm)? },
        Form::JumpIf { width, cond, reg } => {
            Insn::JumpIf { width, cond, dst, src: o.operand(reg), target: o.target(off.into())? }
        }
        Form::CallHelper => Insn::CallHelper { id: o.slot.imm as u32 },
        Form::CallReg => Insn::CallReg { reg: dst },
        Form::CallLocal => Insn::CallLocal { target: o.target(o.slot.imm)? },
        Form::Exit => Insn::Exit,
        Form::Refused(what) => return Err(Bad { kind: ErrorKind::Unsupported, message: what.to_owned() }),
    })
}

fn wide_imm(form: WideForm, o: &Operands, next: Option<Slot>) -> Result<Imm64, Bad> {
    let next = next.ok_or_else(|| Bad::insn("lddw is the last slot, expected a second one".to_owned()))?;
    if next != (Slot { imm: next.imm, ..Slot::default() }) {
        let bytes = next.bytes();
        return Err(Bad::insn(format!(
            "second slot of lddw starts with {:02x} {:02x} {:02x} {:02x}, expected zeros before its imm",
            bytes[0], bytes[1], bytes[2], bytes[3]
        )));
    }
    if matches!(form, WideForm::Map | WideForm::Func) && next.imm != 0 {
        return Err(Bad::insn(format!("second imm of {} is {}, expected 0", Form::Wide(form), next.imm)));
    }
    let map = || {
        u16::try_from(o.slot.imm).map(MapIdx).map_err(|_| {
            Bad::insn(format!("imm of {} is {}, expected the index of a map", Form::Wide(form), o.slot.imm))
        })
    };
    Ok(match form {
        WideForm::Value => Imm64::Value(u64::from(next.imm as u32) << 32 | u64::from(o.slot.imm as u32)),
        WideForm::Map => Imm64::Map(map()?),
        WideForm::MapValue => Imm64::MapValue { map: map()?, offset: next.imm as u32 },
        WideForm::Func => Imm64::Func(o.target(o.slot.imm)?),
    })
}
