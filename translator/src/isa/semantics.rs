//! What the operations compute, on plain numbers: [`alu`], [`compare`], [`endian`], [`sign_extend`], [`atomic`].
//! The reference (RFC 9669, sections 4 and 5) for the interpreter, for constant folding and for tests of the verifier.

use super::insn::{AluOp, AtomicOp, Cond, Endian, Operand, Width};

/// An immediate as an operand: sign-extended. 32-bit operations look at its lower half alone.
pub const fn immediate(imm: i32) -> u64 {
    imm as i64 as u64
}

/// `a op b`. With `W32` the lower halves are used and the upper half of the result is zero.
pub const fn alu(width: Width, op: AluOp, a: u64, b: u64) -> u64 {
    match width {
        Width::W64 => alu64(op, a, b),
        Width::W32 => alu32(op, a as u32, b as u32) as u64,
    }
}

const fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => match a.checked_div(b) {
            Some(quotient) => quotient,
            None => 0,
        },
        AluOp::SDiv => {
            if b == 0 {
                0
            } else {
                (a as i64).wrapping_div(b as i64) as u64
            }
        }
        AluOp::Mod => match a.checked_rem(b) {
            Some(rest) => rest,
            None => a,
        },
        AluOp::SMod => {
            if b == 0 {
                a
            } else {
                (a as i64).wrapping_rem(b as i64) as u64
            }
        }
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        // The wrapping shifts mask the count to 6 bits, as the RFC does.
        AluOp::Lsh => a.wrapping_shl(b as u32),
        AluOp::Rsh => a.wrapping_shr(b as u32),
        AluOp::Arsh => (a as i64).wrapping_shr(b as u32) as u64,
        AluOp::Mov => b,
    }
}

const fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => match a.checked_div(b) {
            Some(quotient) => quotient,
            None => 0,
        },
        AluOp::SDiv => {
            if b == 0 {
                0
            } else {
                (a as i32).wrapping_div(b as i32) as u32
            }
        }
        AluOp::Mod => match a.checked_rem(b) {
            Some(rest) => rest,
            None => a,
        },
        AluOp::SMod => {
            if b == 0 {
                a
            } else {
                (a as i32).wrapping_rem(b as i32) as u32
            }
        }
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a.wrapping_shl(b),
        AluOp::Rsh => a.wrapping_shr(b),
        AluOp::Arsh => (a as i32).wrapping_shr(b) as u32,
        AluOp::Mov => b,
    }
}

/// `-a`.
pub const fn neg(width: Width, a: u64) -> u64 {
    alu(width, AluOp::Sub, 0, a)
}

/// The lower `bits` (8, 16 or 32) of `a`, sign-extended to the width; the rest is zero.
pub const fn sign_extend(width: Width, bits: u8, a: u64) -> u64 {
    let shift = 64 - bits as u32;
    let wide = (a.wrapping_shl(shift) as i64).wrapping_shr(shift) as u64;
    alu(width, AluOp::Mov, 0, wide)
}

/// Byte-order conversion to `bits` (16, 32 or 64) on a little-endian machine; the rest is zero.
pub const fn endian(op: Endian, bits: u8, a: u64) -> u64 {
    match (op, bits) {
        (Endian::ToLe, 16) => a as u16 as u64,
        (Endian::ToLe, 32) => a as u32 as u64,
        (Endian::ToLe, _) => a,
        (Endian::ToBe | Endian::Swap, 16) => (a as u16).swap_bytes() as u64,
        (Endian::ToBe | Endian::Swap, 32) => (a as u32).swap_bytes() as u64,
        (Endian::ToBe | Endian::Swap, _) => a.swap_bytes(),
    }
}

/// Does `a cond b` hold? With `W32` the lower halves are compared.
pub const fn compare(width: Width, cond: Cond, a: u64, b: u64) -> bool {
    let ((a, b), (sa, sb)) = match width {
        Width::W64 => ((a, b), (a as i64, b as i64)),
        Width::W32 => ((a as u32 as u64, b as u32 as u64), (a as i32 as i64, b as i32 as i64)),
    };
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::SGt => sa > sb,
        Cond::SGe => sa >= sb,
        Cond::SLt => sa < sb,
        Cond::SLe => sa <= sb,
        Cond::Set => a & b != 0,
    }
}

/// What an atomic operation leaves in memory, of the old value there, the operand and r0.
pub const fn atomic(width: Width, op: AtomicOp, old: u64, src: u64, r0: u64) -> u64 {
    match op {
        AtomicOp::Add => alu(width, AluOp::Add, old, src),
        AtomicOp::Or => alu(width, AluOp::Or, old, src),
        AtomicOp::And => alu(width, AluOp::And, old, src),
        AtomicOp::Xor => alu(width, AluOp::Xor, old, src),
        AtomicOp::Xchg => alu(width, AluOp::Mov, old, src),
        AtomicOp::Cmpxchg if compare(width, Cond::Eq, old, r0) => alu(width, AluOp::Mov, old, src),
        AtomicOp::Cmpxchg => old,
    }
}

/// The value of an operand, given the registers.
pub fn operand(operand: Operand, regs: &[u64; 11]) -> u64 {
    match operand {
        Operand::Reg(reg) => regs[reg.index()],
        Operand::Imm(imm) => immediate(imm),
    }
}

#[cfg(test)]
mod tests {
    use super::Width::{W32, W64};
    use super::*;

    const MIN64: u64 = i64::MIN as u64;
    const MIN32: u64 = i32::MIN as u32 as u64;

    #[test]
    fn corners_of_the_rfc() {
        for (width, op, a, b, want) in [
            (W64, AluOp::Div, 7, 0, 0),
            (W64, AluOp::SDiv, 7, 0, 0),
            (W64, AluOp::Mod, u64::MAX, 0, u64::MAX),
            (W64, AluOp::SMod, u64::MAX, 0, u64::MAX),
            (W32, AluOp::Mod, u64::MAX, 1 << 32, 0xffff_ffff),
            (W32, AluOp::SMod, u64::MAX, 0, 0xffff_ffff),
            (W64, AluOp::SDiv, MIN64, u64::MAX, MIN64),
            (W64, AluOp::SMod, MIN64, u64::MAX, 0),
            (W32, AluOp::SDiv, MIN32, 0xffff_ffff, MIN32),
            (W32, AluOp::SMod, MIN32, 0xffff_ffff, 0),
            (W64, AluOp::SDiv, -13i64 as u64, 4, -3i64 as u64),
            (W64, AluOp::SMod, -13i64 as u64, 4, -1i64 as u64),
            (W32, AluOp::SMod, -13i32 as u32 as u64, 4, -1i32 as u32 as u64),
            (W64, AluOp::Lsh, 1, 65, 2),
            (W32, AluOp::Lsh, 1, 33, 2),
            (W32, AluOp::Arsh, 0x8000_0000, 64 + 31, 0xffff_ffff),
            (W64, AluOp::Rsh, MIN64, u64::MAX, 1),
            (W32, AluOp::Add, 0xffff_ffff, 1, 0),
            (W32, AluOp::Mov, 0, u64::MAX, 0xffff_ffff),
        ] {
            assert_eq!(alu(width, op, a, b), want, "{width:?} {op:?} {a:#x} {b:#x}");
        }
        assert_eq!((neg(W32, 1), neg(W64, 1)), (0xffff_ffff, u64::MAX));
        assert_eq!(
            (sign_extend(W32, 8, 0x180), sign_extend(W64, 8, 0x180)),
            (0xffff_ff80, 0xffff_ffff_ffff_ff80)
        );
        assert_eq!(sign_extend(W64, 32, 0x7fff_ffff), 0x7fff_ffff);
        assert_eq!(endian(Endian::ToBe, 16, 0xaabb_1122), 0x2211);
        assert_eq!(endian(Endian::ToLe, 32, 0x99_aabb_1122), 0xaabb_1122);
        assert!(compare(W32, Cond::SLt, 0x8000_0000, 1) && !compare(W64, Cond::SLt, 0x8000_0000, 1));
        assert!(!compare(W32, Cond::Set, 1 << 32, 1 << 32));
        assert_eq!(atomic(W32, AtomicOp::Cmpxchg, 5, 9, 5 | 1 << 40), 9);
        assert_eq!(atomic(W64, AtomicOp::Cmpxchg, 5, 9, 5 | 1 << 40), 5);
    }
}
