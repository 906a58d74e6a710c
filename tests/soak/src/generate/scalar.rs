//! Arithmetic: every operation at both widths, constants near borders.

use super::{Generator, reg};
use crate::belief::Kind;
use ringfence_translator::isa::{AluOp, Endian, Imm64, Insn, Operand, Width};

const OPS: [AluOp; 14] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::SDiv,
    AluOp::Mod,
    AluOp::SMod,
    AluOp::Or,
    AluOp::And,
    AluOp::Xor,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Arsh,
    AluOp::Mov,
];

impl Generator<'_> {
    pub(super) fn width(&mut self) -> Width {
        if self.r.chance(60) { Width::W64 } else { Width::W32 }
    }

    pub(super) fn alu(&mut self) {
        let (Some(src), Some(dst)) = (self.number(), self.variable()) else { return self.constant() };
        let width = self.width();
        match self.r.below(12) {
            0..=3 => {
                let op = self.r.pick(&OPS);
                self.emit(Insn::Alu { width, op, dst: reg(dst), src: Operand::Reg(reg(src)) });
                self.set(dst, Kind::NUMBER);
            }
            4..=8 => self.alu_imm(width, dst),
            9 => self.endian(dst),
            10 => {
                self.emit(Insn::Neg { width, dst: reg(dst) });
                self.set(dst, Kind::NUMBER);
            }
            _ => self.movsx(width, src),
        }
    }

    fn alu_imm(&mut self, width: Width, dst: usize) {
        let op = self.r.pick(&OPS);
        let bits = if width == Width::W64 { 64 } else { 32 };
        let imm = match op {
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => self.r.below(bits) as i32,
            AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod => self.r.imm().max(1),
            _ => self.r.imm(),
        };
        self.emit(Insn::Alu { width, op, dst: reg(dst), src: Operand::Imm(imm) });
        let most = match (op, width) {
            (AluOp::And | AluOp::Mov, _) if imm >= 0 => imm as u64,
            (AluOp::Mod, _) => imm as u64 - 1,
            (AluOp::Rsh, Width::W64) => u64::MAX >> imm,
            (_, Width::W32) => u32::MAX.into(),
            _ => u64::MAX,
        };
        self.set(dst, Kind::Number(most));
    }

    fn endian(&mut self, dst: usize) {
        let op = self.r.pick(&[Endian::ToBe, Endian::ToLe, Endian::Swap]);
        let bits = self.r.pick(&[16, 32, 64]);
        self.emit(Insn::Endian { op, bits, dst: reg(dst) });
        self.set(dst, Kind::Number(u64::MAX >> (64 - bits)));
    }

    fn movsx(&mut self, width: Width, src: usize) {
        let dst = self.target();
        let bits = self.r.pick(if width == Width::W64 { &[8, 16, 32] } else { &[8, 16] });
        self.emit(Insn::MovSx { width, bits, dst: reg(dst), src: reg(src) });
        self.set(dst, Kind::NUMBER);
    }

    /// A register becomes a constant or a copy.
    pub(super) fn constant(&mut self) {
        let dst = self.target();
        match (self.r.below(4), self.number()) {
            (0, _) => {
                let value = self.r.edge();
                self.emit(Insn::LoadImm64 { dst: reg(dst), imm: Imm64::Value(value) });
                self.set(dst, Kind::Number(value));
            }
            (1, Some(n)) => {
                let width = self.width();
                let src = Operand::Reg(reg(n));
                let most = if let Kind::Number(m) = self.kind(n) { m } else { u64::MAX };
                let most = if width == Width::W32 { most.min(u32::MAX.into()) } else { most };
                self.emit(Insn::Alu { width, op: AluOp::Mov, dst: reg(dst), src });
                self.set(dst, Kind::Number(most));
            }
            _ => {
                let imm = self.r.imm();
                self.mov(dst, Operand::Imm(imm), Kind::Number(i64::from(imm) as u64));
            }
        }
    }
}
