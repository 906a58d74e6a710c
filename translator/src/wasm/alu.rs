//! Arithmetic of [`Lower`]. Where eBPF and Wasm differ: a 32-bit operation zeroes the upper half of the
//! destination; division and modulo by zero, and MIN / -1, have results where Wasm traps (RFC 9669, 4.1).
//! Shifts agree: both take the amount modulo the width.

use super::lower::Lower;
use crate::isa::{AluOp, Endian, Operand, Reg, Width};
use wasm_encoder::{BlockType, ValType};

const I64: BlockType = BlockType::Result(ValType::I64);
const I32: BlockType = BlockType::Result(ValType::I32);

impl Lower<'_> {
    pub(super) fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Operand) {
        match width {
            Width::W64 => self.alu64(op, dst, src),
            Width::W32 => self.alu32(op, dst, src),
        }
    }

    fn alu64(&mut self, op: AluOp, dst: Reg, src: Operand) {
        match op {
            AluOp::Mov => self.operand64(src),
            AluOp::Div => self.div64(dst, src),
            AluOp::SDiv => self.sdiv64(dst, src),
            AluOp::Mod => self.rem64(dst, src, false),
            AluOp::SMod => self.rem64(dst, src, true),
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => self.shift64(op, dst, src),
            AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::Or | AluOp::And | AluOp::Xor => {
                self.get(dst);
                self.operand64(src);
                self.plain64(op);
            }
        }
        self.set(dst);
    }

    /// The operations that are one Wasm instruction.
    fn plain64(&mut self, op: AluOp) {
        let mut ops = self.ops();
        match op {
            AluOp::Add => ops.i64_add(),
            AluOp::Sub => ops.i64_sub(),
            AluOp::Mul => ops.i64_mul(),
            AluOp::Div => ops.i64_div_u(),
            AluOp::SDiv => ops.i64_div_s(),
            AluOp::Mod => ops.i64_rem_u(),
            AluOp::SMod => ops.i64_rem_s(),
            AluOp::Or => ops.i64_or(),
            AluOp::And => ops.i64_and(),
            AluOp::Xor => ops.i64_xor(),
            AluOp::Lsh => ops.i64_shl(),
            AluOp::Rsh => ops.i64_shr_u(),
            AluOp::Arsh => ops.i64_shr_s(),
            AluOp::Mov => &mut ops,
        };
    }

    fn shift64(&mut self, op: AluOp, dst: Reg, src: Operand) {
        self.get(dst);
        self.operand64(match src {
            Operand::Imm(i) => Operand::Imm(i & 63),
            Operand::Reg(_) => src,
        });
        self.plain64(op);
    }

    fn div64(&mut self, dst: Reg, src: Operand) {
        match src {
            Operand::Imm(0) => {
                self.ops().i64_const(0);
            }
            Operand::Imm(_) => self.apply64(AluOp::Div, dst, src),
            Operand::Reg(r) => {
                self.get(r);
                self.ops().i64_eqz().if_(I64).i64_const(0).else_();
                self.apply64(AluOp::Div, dst, src);
                self.ops().end();
            }
        }
    }

    fn sdiv64(&mut self, dst: Reg, src: Operand) {
        match src {
            Operand::Imm(-1 | 0) => self.apply64(AluOp::Mul, dst, src),
            Operand::Imm(_) => self.apply64(AluOp::SDiv, dst, src),
            Operand::Reg(r) => {
                // 0 and -1 are the divisors for which Wasm may trap; for both the result is the product.
                self.get(r);
                self.ops().i64_const(1).i64_add().i64_const(1).i64_le_u().if_(I64);
                self.apply64(AluOp::Mul, dst, src);
                self.ops().else_();
                self.apply64(AluOp::SDiv, dst, src);
                self.ops().end();
            }
        }
    }

    fn rem64(&mut self, dst: Reg, src: Operand, signed: bool) {
        let op = if signed { AluOp::SMod } else { AluOp::Mod };
        match src {
            Operand::Imm(0) => self.get(dst),
            Operand::Imm(_) => self.apply64(op, dst, src),
            Operand::Reg(r) => {
                self.get(r);
                self.ops().i64_eqz().if_(I64);
                self.get(dst);
                self.ops().else_();
                self.apply64(op, dst, src);
                self.ops().end();
            }
        }
    }

    fn apply64(&mut self, op: AluOp, dst: Reg, src: Operand) {
        self.get(dst);
        self.operand64(src);
        self.plain64(op);
    }

    fn alu32(&mut self, op: AluOp, dst: Reg, src: Operand) {
        match (op, src) {
            (AluOp::Mov, Operand::Imm(i)) => {
                self.ops().i64_const(i64::from(i as u32));
                self.set(dst);
                return;
            }
            (AluOp::And, Operand::Imm(i)) => {
                // The mask clears the upper half too.
                self.get(dst);
                self.ops().i64_const(i64::from(i as u32)).i64_and();
                self.set(dst);
                return;
            }
            (AluOp::Mov, Operand::Reg(_)) => self.operand32(src),
            (AluOp::Div, _) => self.div32(dst, src),
            (AluOp::SDiv, _) => self.sdiv32(dst, src),
            (AluOp::Mod, _) => self.rem32(dst, src, false),
            (AluOp::SMod, _) => self.rem32(dst, src, true),
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(i)) => {
                self.apply32(op, dst, Operand::Imm(i & 31));
            }
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Reg(_))
            | (AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::Or | AluOp::And | AluOp::Xor, _) => {
                self.apply32(op, dst, src);
            }
        }
        self.set32(dst);
    }

    fn div32(&mut self, dst: Reg, src: Operand) {
        match src {
            Operand::Imm(0) => {
                self.ops().i32_const(0);
            }
            Operand::Imm(_) => self.apply32(AluOp::Div, dst, src),
            Operand::Reg(r) => {
                self.get32(r);
                self.ops().i32_eqz().if_(I32).i32_const(0).else_();
                self.apply32(AluOp::Div, dst, src);
                self.ops().end();
            }
        }
    }

    fn sdiv32(&mut self, dst: Reg, src: Operand) {
        match src {
            Operand::Imm(-1 | 0) => self.apply32(AluOp::Mul, dst, src),
            Operand::Imm(_) => self.apply32(AluOp::SDiv, dst, src),
            Operand::Reg(r) => {
                self.get32(r);
                self.ops().i32_const(1).i32_add().i32_const(1).i32_le_u().if_(I32);
                self.apply32(AluOp::Mul, dst, src);
                self.ops().else_();
                self.apply32(AluOp::SDiv, dst, src);
                self.ops().end();
            }
        }
    }

    fn rem32(&mut self, dst: Reg, src: Operand, signed: bool) {
        let op = if signed { AluOp::SMod } else { AluOp::Mod };
        match src {
            Operand::Imm(0) => self.get32(dst),
            Operand::Imm(_) => self.apply32(op, dst, src),
            Operand::Reg(r) => {
                self.get32(r);
                self.ops().i32_eqz().if_(I32);
                self.get32(dst);
                self.ops().else_();
                self.apply32(op, dst, src);
                self.ops().end();
            }
        }
    }

    fn apply32(&mut self, op: AluOp, dst: Reg, src: Operand) {
        self.get32(dst);
        self.operand32(src);
        let mut ops = self.ops();
        match op {
            AluOp::Add => ops.i32_add(),
            AluOp::Sub => ops.i32_sub(),
            AluOp::Mul => ops.i32_mul(),
            AluOp::Div => ops.i32_div_u(),
            AluOp::SDiv => ops.i32_div_s(),
            AluOp::Mod => ops.i32_rem_u(),
            AluOp::SMod => ops.i32_rem_s(),
            AluOp::Or => ops.i32_or(),
            AluOp::And => ops.i32_and(),
            AluOp::Xor => ops.i32_xor(),
            AluOp::Lsh => ops.i32_shl(),
            AluOp::Rsh => ops.i32_shr_u(),
            AluOp::Arsh => ops.i32_shr_s(),
            AluOp::Mov => &mut ops,
        };
    }

    pub(super) fn neg(&mut self, width: Width, dst: Reg) {
        match width {
            Width::W64 => {
                self.ops().i64_const(0);
                self.get(dst);
                self.ops().i64_sub();
                self.set(dst);
            }
            Width::W32 => {
                self.ops().i32_const(0);
                self.get32(dst);
                self.ops().i32_sub();
                self.set32(dst);
            }
        }
    }

    pub(super) fn movsx(&mut self, width: Width, bits: u8, dst: Reg, src: Reg) {
        match width {
            Width::W64 => {
                self.get(src);
                let mut ops = self.ops();
                match bits {
                    8 => ops.i64_extend8_s(),
                    16 => ops.i64_extend16_s(),
                    _ => ops.i64_extend32_s(),
                };
                self.set(dst);
            }
            Width::W32 => {
                self.get32(src);
                let mut ops = self.ops();
                match bits {
                    8 => ops.i32_extend8_s(),
                    16 => ops.i32_extend16_s(),
                    _ => &mut ops,
                };
                self.set32(dst);
            }
        }
    }

    pub(super) fn endian(&mut self, op: Endian, bits: u8, dst: Reg) {
        match (op, bits) {
            (Endian::ToLe, 64) => {}
            (Endian::ToLe, _) => {
                self.get(dst);
                self.ops().i64_const((1 << bits) - 1).i64_and();
                self.set(dst);
            }
            (Endian::ToBe | Endian::Swap, 16) => self.swap16(dst),
            (Endian::ToBe | Endian::Swap, 32) => self.swap32(dst),
            (Endian::ToBe | Endian::Swap, _) => self.swap64(dst),
        }
    }

    fn swap16(&mut self, dst: Reg) {
        self.get32(dst);
        self.ops().i32_const(8).i32_shr_u().i32_const(0xff).i32_and();
        self.get32(dst);
        self.ops().i32_const(0xff).i32_and().i32_const(8).i32_shl().i32_or();
        self.set32(dst);
    }

    fn swap32(&mut self, dst: Reg) {
        // Bytes 0 and 2 move up by one place, 1 and 3 down, around the corner.
        self.get32(dst);
        self.ops().i32_const(8).i32_rotl().i32_const(0x00ff_00ff).i32_and();
        self.get32(dst);
        self.ops().i32_const(8).i32_rotr().i32_const(0xff00_ff00_u32 as i32).i32_and().i32_or();
        self.set32(dst);
    }

    fn swap64(&mut self, dst: Reg) {
        for (shift, mask) in [(8, 0x00ff_00ff_00ff_00ff), (16, 0x0000_ffff_0000_ffff)] {
            self.get(dst);
            self.ops().i64_const(shift).i64_shr_u().i64_const(mask).i64_and();
            self.get(dst);
            self.ops().i64_const(mask).i64_and().i64_const(shift).i64_shl().i64_or();
            self.set(dst);
        }
        self.get(dst);
        self.ops().i64_const(32).i64_rotl();
        self.set(dst);
    }
}
