//! Numbers bounded in the usual ways, added to pointers, and used.

use super::{GLOBAL, Generator, TABLE, reg};
use crate::belief::{Home, Kind, Ptr, SLOTS};
use ringfence_translator::isa::{AluOp, Cond, Imm64, Insn, MapIdx, Operand, Pc, Size, Width};

const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::Dw];

impl Generator<'_> {
    /// Bounds a number, adds it to a pointer, and goes there.
    pub(super) fn indexed(&mut self) {
        let (Some(src), i, p) = (self.number(), self.target(), self.target()) else { return self.load() };
        if i == p || src == p {
            return;
        }
        let size = self.r.pick(&SIZES);
        let Some((base, ptr)) = self.indexable(p) else { return };
        if base == i {
            return;
        }
        let (_, end) = self.room(ptr.home);
        let last = end - size.bytes() as i32 - ptr.hi;
        if last < 0 {
            return;
        }
        // Scaled indices keep the alignment.
        let strict = self.shape.aligned && matches!(ptr.home, Home::Stack | Home::Lent(_) | Home::Ctx);
        let scale = if strict || self.r.chance(40) { size.bytes() as i32 } else { 1 };
        let most = (last / scale + self.slip()).max(0) as u64;
        self.copy_number(src, i);
        let skip = self.label();
        let most = self.bound(i, most, skip);
        if scale > 1 {
            self.scale(i, scale);
        }
        if base != p {
            self.mov(p, Operand::Reg(reg(base)), Kind::Pointer(ptr));
        }
        if base == 10 {
            self.add(p, ptr.lo);
        }
        self.advance(p, i, most as i32 * scale, scale as u8);
        for _ in 0..1 + self.r.below(3) {
            self.use_pointer(p);
        }
        self.place(skip);
    }

    /// A pointer to index from: a register, or global data loaded into `p`.
    fn indexable(&mut self, p: usize) -> Option<(usize, Ptr)> {
        if self.r.chance(25) {
            let map = self.r.pick(&[GLOBAL, TABLE]);
            self.emit(Insn::LoadImm64 { dst: reg(p), imm: Imm64::MapValue { map: MapIdx(map), offset: 0 } });
            let ptr = Ptr::at(Home::Data(map), 0);
            self.set(p, Kind::Pointer(ptr));
            return Some((p, ptr));
        }
        let fixed_ctx = self.shape.fixed_ctx;
        let found = self.find(|k| matches!(k, Kind::Pointer(q) if q.home != Home::Ctx || !fixed_ctx));
        match found.map(|n| (n, self.kind(n))) {
            Some((n, Kind::Pointer(q))) if q.home != Home::Stack => Some((n, q)),
            // The stack is indexed from its lowest slot.
            _ if self.r.chance(60) => Some((10, Ptr::at(Home::Stack, -8 * SLOTS as i32))),
            _ => None,
        }
    }

    /// `i` becomes a copy of `src`, or of its lower half.
    fn copy_number(&mut self, src: usize, i: usize) {
        let kind = self.kind(src);
        let width = if self.r.chance(80) { Width::W64 } else { Width::W32 };
        self.emit(Insn::Alu { width, op: AluOp::Mov, dst: reg(i), src: Operand::Reg(reg(src)) });
        self.set(i, if width == Width::W64 { kind } else { Kind::Number(u32::MAX.into()) });
    }

    /// `p += i`, or a step less direct.
    fn advance(&mut self, p: usize, i: usize, most: i32, align: u8) {
        let Kind::Pointer(mut ptr) = self.kind(p) else { return };
        ptr.align = ptr.align.min(align);
        let src = Operand::Reg(reg(i));
        if self.r.chance(15) {
            // From the far end down.
            self.add(p, most);
            self.emit(Insn::Alu { width: Width::W64, op: AluOp::Sub, dst: reg(p), src });
        } else {
            self.emit(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: reg(p), src });
        }
        ptr.hi += most;
        self.set(p, Kind::Pointer(ptr));
    }

    fn use_pointer(&mut self, p: usize) {
        let Kind::Pointer(ptr) = self.kind(p) else { return };
        let Some(place) = self.place_in(p, ptr, &SIZES) else { return };
        match self.r.below(10) {
            0..=4 => self.load_at(place),
            5..=7 => self.store_at(place),
            8 => self.atomic_at(place),
            _ => self.spill(),
        }
    }

    fn scale(&mut self, i: usize, scale: i32) {
        let (op, imm) =
            if self.r.chance(60) { (AluOp::Lsh, scale.ilog2() as i32) } else { (AluOp::Mul, scale) };
        self.emit(Insn::Alu { width: Width::W64, op, dst: reg(i), src: Operand::Imm(imm) });
        self.set(i, Kind::NUMBER);
    }

    /// Bounds `i` to at most `last` in one of the usual ways; `skip` is where failing guards go. Its new maximum.
    fn bound(&mut self, i: usize, last: u64, skip: u32) -> u64 {
        // What is small enough already needs no bound, if that can be proved.
        if let Kind::Number(m) = self.kind(i)
            && m <= last
            && self.r.chance(70)
        {
            return m;
        }
        let below_power = (last + 1).next_power_of_two() / if (last + 1).is_power_of_two() { 1 } else { 2 };
        let most = match self.r.below(12) {
            0 | 1 => self.masked(i, below_power - 1),
            2 => {
                self.op(i, AluOp::Mod, last as i32 + 1);
                last
            }
            3 => {
                self.op(i, AluOp::Rsh, 64 - below_power.max(2).ilog2() as i32);
                below_power.max(2) - 1
            }
            4 => self.shifted(i, below_power),
            5 => self.clamped(i, last),
            6 => self.one_of_bits(i, below_power - 1, skip),
            7 => self.linked_copy(i, last, skip),
            8 => {
                self.guard(Width::W64, Cond::Ne, i, last as i32, skip);
                last
            }
            9 => {
                self.guard(Width::W64, Cond::SGt, i, last as i32, skip);
                self.guard(Width::W64, Cond::SLt, i, 0, skip);
                last
            }
            10 => {
                let src = Operand::Reg(reg(i));
                self.emit(Insn::Alu { width: Width::W32, op: AluOp::Mov, dst: reg(i), src });
                self.guard(Width::W32, Cond::Gt, i, last as i32, skip);
                last
            }
            _ => {
                self.guard(Width::W64, Cond::Gt, i, last as i32, skip);
                last
            }
        };
        self.set(i, Kind::Number(most));
        most
    }

    fn op(&mut self, i: usize, op: AluOp, imm: i32) {
        self.emit(Insn::Alu { width: Width::W64, op, dst: reg(i), src: Operand::Imm(imm) });
    }

    fn masked(&mut self, i: usize, mask: u64) -> u64 {
        let width = self.width();
        self.emit(Insn::Alu { width, op: AluOp::And, dst: reg(i), src: Operand::Imm(mask as i32) });
        mask
    }

    /// Left, and right again by more.
    fn shifted(&mut self, i: usize, power: u64) -> u64 {
        let power = power.max(2);
        let left = self.r.below(64 - u64::from(power.ilog2())) as i32;
        self.op(i, AluOp::Lsh, left);
        self.op(i, AluOp::Rsh, 64 - power.ilog2() as i32);
        power - 1
    }

    /// `min(i, last)`, or with a lower bound of 0 for signed numbers.
    fn clamped(&mut self, i: usize, last: u64) -> u64 {
        let signed = self.r.chance(50);
        let clamps = [(Cond::SGe, 0), (Cond::SLe, last as i32)];
        let unsigned = [(Cond::Le, last as i32)];
        for (cond, limit) in if signed { &clamps[..] } else { &unsigned[..] } {
            let over = self.label();
            let here = self.frame.here;
            self.frame.joins.push((over, here));
            let src = Operand::Imm(*limit);
            self.emit(Insn::JumpIf { width: Width::W64, cond: *cond, dst: reg(i), src, target: Pc(over) });
            self.mov(i, Operand::Imm(*limit), Kind::Number(last));
            self.place(over);
        }
        last
    }

    /// No other bits than those of the mask.
    fn one_of_bits(&mut self, i: usize, mask: u64, skip: u32) -> u64 {
        self.guard(Width::W64, Cond::Set, i, !(mask as i32), skip);
        mask
    }

    /// A copy, perhaps at a distance, is compared; the original is used.
    fn linked_copy(&mut self, i: usize, last: u64, skip: u32) -> u64 {
        let copy = self.target();
        if copy == i || !matches!(self.kind(copy), Kind::Number(_) | Kind::Unset) {
            self.guard(Width::W64, Cond::Gt, i, last as i32, skip);
            return last;
        }
        let apart = match self.r.below(20) {
            0..=9 => 0,
            10 => (self.r.imm() & i32::MAX).min(i32::MAX - 1 - last as i32),
            _ => self.r.below(9) as i32,
        };
        // Without that, the copy may wrap.
        if apart > 0 && !self.r.rarely(10 * self.shape.slack) {
            let src = Operand::Reg(reg(i));
            self.emit(Insn::Alu { width: Width::W32, op: AluOp::Mov, dst: reg(i), src });
        }
        self.mov(copy, Operand::Reg(reg(i)), Kind::NUMBER);
        if apart > 0 {
            self.add(copy, apart);
        }
        self.guard(Width::W64, Cond::Ge, copy, last as i32 + 1 + apart, skip);
        last
    }

    fn guard(&mut self, width: Width, cond: Cond, i: usize, imm: i32, skip: u32) {
        let here = self.frame.here;
        self.frame.joins.push((skip, here));
        self.emit(Insn::JumpIf { width, cond, dst: reg(i), src: Operand::Imm(imm), target: Pc(skip) });
    }
}
