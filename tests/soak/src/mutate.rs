//! [`mutate`]: a program changed a little, so that it is *nearly* right: where verifiers fail.

use crate::code::{Code, Item, target_mut};
use crate::random::Random;
use ringfence_translator::isa::{AluOp, Cond, Imm64, Insn, Operand, Pc, Reg, Size, Width};

/// Makes one to three changes.
pub fn mutate(code: &mut Code, r: &mut Random) {
    for _ in 0..1 + r.below(3) {
        let places: Vec<usize> =
            (0..code.items.len()).filter(|&i| matches!(code.items[i], Item::Insn(_))).collect();
        let Some(at) = r.any(&places) else { return };
        change(code, at, r);
    }
}

fn change(code: &mut Code, at: usize, r: &mut Random) {
    match r.below(20) {
        0 => {
            code.items.remove(at);
        }
        1 => {
            let copy = code.items[r.index(code.items.len())];
            if matches!(copy, Item::Insn(_)) {
                code.items.insert(at, copy);
            }
        }
        2 if at + 1 < code.items.len() => code.items.swap(at, at + 1),
        3 => {
            // A label moves: all that lead there now lead elsewhere.
            let labels: Vec<usize> =
                (0..code.items.len()).filter(|&i| matches!(code.items[i], Item::Label(_))).collect();
            if let Some(from) = r.any(&labels) {
                let label = code.items.remove(from);
                let to = (from + r.index(5)).saturating_sub(2).min(code.items.len());
                code.items.insert(to, label);
            }
        }
        _ => {
            let labels = u64::from(code.labels);
            if let Item::Insn(insn) = &mut code.items[at] {
                edit(insn, labels, r);
            }
        }
    }
}

/// Changes one field.
fn edit(insn: &mut Insn, labels: u64, r: &mut Random) {
    if let Some(target) = target_mut(insn)
        && r.chance(30)
    {
        *target = Pc(r.below(labels) as u32);
        return;
    }
    match insn {
        Insn::Alu { width, op, dst, src } => match r.below(5) {
            0 => flip(width),
            1 => *op = alu_op(r),
            2 => *dst = reg(r),
            _ => operand(src, r),
        },
        Insn::JumpIf { width, cond, dst, src, .. } => match r.below(6) {
            0 => flip(width),
            1 | 2 => *cond = condition(r),
            3 => *dst = reg(r),
            _ => operand(src, r),
        },
        Insn::Load { size, sign, dst, base, off } => match r.below(7) {
            0 => *size = any_size(r),
            1 => *sign = !*sign && *size != Size::Dw,
            2 => *dst = reg(r),
            3 => *base = reg(r),
            _ => nudge(off, r),
        },
        Insn::Store { size, base, off, src } => match r.below(7) {
            0 => *size = any_size(r),
            1 => *base = reg(r),
            2 | 3 => operand(src, r),
            _ => nudge(off, r),
        },
        Insn::Atomic { width, base, off, src, .. } => match r.below(5) {
            0 => flip(width),
            1 => *base = reg(r),
            2 => *src = reg(r),
            _ => nudge(off, r),
        },
        Insn::Neg { width, dst } => {
            if r.chance(50) {
                flip(width)
            } else {
                *dst = reg(r)
            }
        }
        Insn::MovSx { bits, dst, src, .. } => match r.below(3) {
            0 => *bits = r.pick(&[8, 16]),
            1 => *dst = reg(r),
            _ => *src = reg(r),
        },
        Insn::Endian { bits, dst, .. } => {
            if r.chance(50) {
                *bits = r.pick(&[16, 32, 64])
            } else {
                *dst = reg(r)
            }
        }
        Insn::LoadImm64 { dst, imm } => match imm {
            Imm64::Value(v) if r.chance(70) => *v = r.edge(),
            Imm64::MapValue { offset, .. } if r.chance(70) => *offset = r.below(40) as u32,
            Imm64::Map(m) if r.chance(70) => m.0 = r.below(7) as u16,
            _ => *dst = reg(r),
        },
        Insn::CallHelper { id } => *id = r.pick(&[1, 1, 2, 3, 5, 7, 93, 94, 131, 132, 133, 164, 181, 9]),
        Insn::Jump { .. } | Insn::CallReg { .. } | Insn::CallLocal { .. } | Insn::Exit => {}
    }
}

fn flip(width: &mut Width) {
    *width = if *width == Width::W64 { Width::W32 } else { Width::W64 };
}

/// Registers that outlive calls more often: they hold what programs keep.
fn reg(r: &mut Random) -> Reg {
    let n = if r.chance(40) { 6 + r.below(4) } else { r.below(11) };
    Reg::new(n as u8).unwrap_or(Reg::R0)
}

fn any_size(r: &mut Random) -> Size {
    r.pick(&[Size::B, Size::H, Size::W, Size::Dw])
}

fn nudge(off: &mut i16, r: &mut Random) {
    *off = off.wrapping_add(r.pick(&[-8, -4, -2, -1, 1, 2, 4, 8, 16, 64]));
}

fn operand(src: &mut Operand, r: &mut Random) {
    *src = match *src {
        Operand::Imm(i) if r.chance(50) => Operand::Imm(i.wrapping_add(r.pick(&[-8, -1, 1, 1, 2, 7, 64]))),
        Operand::Imm(_) if r.chance(70) => Operand::Imm(r.imm()),
        _ => Operand::Reg(reg(r)),
    };
}

fn alu_op(r: &mut Random) -> AluOp {
    use AluOp::*;
    r.pick(&[Add, Sub, Mul, Div, SDiv, Mod, SMod, Or, And, Xor, Lsh, Rsh, Arsh, Mov])
}

fn condition(r: &mut Random) -> Cond {
    use Cond::*;
    r.pick(&[Eq, Ne, Gt, Ge, Lt, Le, SGt, SGe, SLt, SLe, Set])
}
