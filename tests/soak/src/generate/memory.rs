//! Loads, stores, spills and atomics through whatever pointer is at hand.

use super::{GLOBAL, Generator, TABLE, reg};
use crate::belief::{Home, Kind, Ptr, SLOTS, Slot};
use ringfence_translator::isa::{AtomicOp, Imm64, Insn, MapIdx, Operand, Reg, Size, Width};

const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::Dw];

/// A place to be touched: register, offset, size, and what the register is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    base: usize,
    off: i32,
    size: Size,
    ptr: Ptr,
}

impl Place {
    /// Slots that it may touch, and bytes of the only one if it is one.
    fn slots(&self) -> (std::ops::RangeInclusive<usize>, Option<(usize, u32)>) {
        let (lo, hi) = (self.ptr.lo + self.off, self.ptr.hi + self.off + self.size.bytes() as i32 - 1);
        let slot = |at: i32| ((-1 - at).max(0) as usize / 8).min(SLOTS - 1);
        let exact = self.ptr.lo == self.ptr.hi && slot(lo) == slot(hi) && lo >= -8 * SLOTS as i32 && hi < 0;
        (slot(hi)..=slot(lo), exact.then(|| (slot(lo), lo.rem_euclid(8) as u32)))
    }
}

impl Generator<'_> {
    /// A pointer that may be used as it stands; r10 always can.
    fn pointer(&mut self) -> (usize, Ptr) {
        let found = if self.r.chance(25) { None } else { self.find(|k| matches!(k, Kind::Pointer(_))) };
        match found.map(|n| (n, self.kind(n))) {
            Some((n, Kind::Pointer(p))) => (n, p),
            _ => (10, Ptr::at(Home::Stack, 0)),
        }
    }

    /// A place within that pointer's home, in bounds but for a slip.
    pub(super) fn place_in(&mut self, base: usize, ptr: Ptr, sizes: &[Size]) -> Option<Place> {
        let strict = self.shape.aligned && matches!(ptr.home, Home::Ctx | Home::Stack | Home::Lent(_));
        let size = self.r.pick(sizes);
        let bytes = size.bytes() as i32;
        if strict && i32::from(ptr.align) < bytes {
            return None;
        }
        let (first, end) = self.room(ptr.home);
        let (lo, hi) = (first - ptr.lo, end - bytes - ptr.hi);
        if lo > hi {
            return None;
        }
        let mut off = match self.r.below(10) {
            0 => lo,
            1..=3 => hi,
            _ => lo + self.r.below((hi - lo + 1) as u64) as i32,
        };
        if strict || self.r.chance(50) {
            off -= (off + ptr.lo).rem_euclid(bytes);
        }
        off = off.max(lo) + self.slip();
        (i16::try_from(off).is_ok()).then_some(Place { base, off, size, ptr })
    }

    pub(super) fn load(&mut self) {
        let (base, ptr) = self.pointer();
        if let Some(place) = self.place_in(base, ptr, &SIZES) {
            self.load_at(place);
        }
    }

    pub(super) fn load_at(&mut self, p: Place) {
        let sign = p.size != Size::Dw && self.r.chance(25);
        let dst = self.target();
        let mut kind = match p.size {
            _ if sign => Kind::NUMBER,
            size => Kind::Number(u64::MAX >> (64 - 8 * size.bytes())),
        };
        if p.ptr.home == Home::Stack {
            let (slots, exact) = p.slots();
            let at = |s: usize| self.frame.here.slots[s];
            match exact {
                Some((s, _)) if p.size == Size::Dw && at(s).init == 0xff => kind = at(s).whole,
                Some((s, first)) if at(s).holds_number(first, p.size.bytes()) => {}
                None if slots.clone().all(|s| at(s).holds_number(0, 8)) => {}
                _ => return self.store_at(p),
            }
        }
        let (dst_reg, base, off) = (reg(dst), reg(p.base), p.off as i16);
        self.emit(Insn::Load { size: p.size, sign, dst: dst_reg, base, off });
        self.set(dst, kind);
    }

    pub(super) fn store(&mut self) {
        let (base, ptr) = self.pointer();
        if let Some(place) = self.place_in(base, ptr, &SIZES) {
            self.store_at(place);
        }
    }

    pub(super) fn store_at(&mut self, p: Place) {
        if matches!(p.ptr.home, Home::Data(TABLE) | Home::Key) && !self.r.rarely(self.shape.slack) {
            return;
        }
        let source = if self.r.chance(75) { self.number() } else { None };
        let stored = source.map_or(Kind::NUMBER, |n| self.kind(n));
        let src = match source {
            Some(n) => Operand::Reg(reg(n)),
            None => Operand::Imm(if self.r.chance(50) { 0 } else { self.r.imm() }),
        };
        if p.ptr.home == Home::Stack && !self.note_store(p, stored) {
            return;
        }
        self.emit(Insn::Store { size: p.size, base: reg(p.base), off: p.off as i16, src });
    }

    /// What a store of a number does to the stack; false where a slot may not be changed.
    fn note_store(&mut self, p: Place, stored: Kind) -> bool {
        let (slots, exact) = p.slots();
        if slots.clone().any(|s| self.slot_is_pinned(s)) {
            return false;
        }
        for s in slots {
            let old = self.frame.here.slots[s];
            let new = match exact {
                Some((_, _)) if p.size == Size::Dw => Slot { init: 0xff, whole: stored },
                Some((_, first)) => old.overwritten(first, p.size.bytes()),
                // Somewhere in there: nothing becomes initialised.
                None if old.whole.is_number() => Slot::NUMBER,
                None => {
                    Slot { init: if old.whole == Kind::Unset { old.init } else { 0 }, whole: Kind::Unset }
                }
            };
            self.set_slot(s, new);
        }
        true
    }

    /// A register goes to a slot whole, and perhaps comes back at once, perhaps in part.
    pub(super) fn spill(&mut self) {
        let pointers = self.r.chance(60);
        let wanted = |k: Kind| if pointers { !k.is_number() && k != Kind::Unset } else { k.is_number() };
        let Some(n) = self.find(wanted) else { return self.copy_pointer() };
        let s = self.free_slot();
        let off = -8 * (s as i16 + 1);
        let kind = self.kind(n);
        self.emit(Insn::Store { size: Size::Dw, base: Reg::FP, off, src: Operand::Reg(reg(n)) });
        self.set_slot(s, Slot { init: 0xff, whole: kind });
        match self.r.below(10) {
            0..=4 => {
                let dst = self.target();
                self.emit(Insn::Load { size: Size::Dw, sign: false, dst: reg(dst), base: Reg::FP, off });
                self.set(dst, kind);
            }
            5..=6 => {
                let size = self.r.pick(&[Size::B, Size::H, Size::W]);
                let first = size.bytes() * self.r.below(u64::from(8 / size.bytes())) as u32;
                let (at, src) = (off + first as i16, Operand::Imm(self.r.imm()));
                self.emit(Insn::Store { size, base: Reg::FP, off: at, src });
                let left = self.frame.here.slots[s].overwritten(first, size.bytes());
                self.set_slot(s, left);
            }
            _ => {}
        }
    }

    /// A copy of a pointer, perhaps moved, or the address of global data.
    pub(super) fn copy_pointer(&mut self) {
        let dst = self.target();
        if self.r.chance(40) {
            let map = self.r.pick(&[GLOBAL, TABLE]);
            let offset = if self.r.chance(70) { 0 } else { self.r.below(16) as u32 };
            self.emit(Insn::LoadImm64 { dst: reg(dst), imm: Imm64::MapValue { map: MapIdx(map), offset } });
            return self.set(dst, Kind::Pointer(Ptr::at(Home::Data(map), offset as i32)));
        }
        let (n, mut p) = self.pointer();
        self.mov(dst, Operand::Reg(reg(n)), Kind::Pointer(p));
        if p.home != Home::Ctx || !self.shape.fixed_ctx {
            let by = 8 * (self.r.below(9) as i32 - if p.home == Home::Stack { 8 } else { 1 });
            self.add(dst, by);
            (p.lo, p.hi) = (p.lo + by, p.hi + by);
        }
        self.set(dst, Kind::Pointer(p));
    }

    pub(super) fn atomic(&mut self) {
        let (base, ptr) = self.pointer();
        if let Some(p) = self.place_in(base, ptr, &[Size::W, Size::Dw]) {
            self.atomic_at(p);
        }
    }

    /// An atomic operation, if there is a number to be had at that place.
    pub(super) fn atomic_at(&mut self, p: Place) {
        let aligned = p.size >= Size::W
            && i32::from(p.ptr.align) >= p.size.bytes() as i32
            && (p.off + p.ptr.lo).rem_euclid(p.size.bytes() as i32) == 0;
        let allowed = match p.ptr.home {
            Home::Ctx => self.shape.ctx_atomics,
            Home::Data(m) => m != TABLE,
            Home::Stack => {
                let (mut slots, exact) = p.slots();
                exact.is_some() && slots.all(|s| self.frame.here.slots[s].holds_number(0, 8))
            }
            Home::Key => false,
            Home::Lent(_) | Home::Map(_) | Home::Record(_) => true,
        };
        let Some(src) = self.variable().filter(|_| aligned && allowed) else { return };
        if p.ptr.home == Home::Stack && !self.note_store(p, Kind::NUMBER) {
            return;
        }
        let width = if p.size == Size::Dw { Width::W64 } else { Width::W32 };
        let op = self.r.pick(&[
            AtomicOp::Add,
            AtomicOp::Or,
            AtomicOp::And,
            AtomicOp::Xor,
            AtomicOp::Xchg,
            AtomicOp::Cmpxchg,
        ]);
        let fetch = matches!(op, AtomicOp::Xchg | AtomicOp::Cmpxchg) || self.r.chance(50);
        let result = if op == AtomicOp::Cmpxchg { 0 } else { src };
        if op == AtomicOp::Cmpxchg && (self.is_pinned(0) || !self.kind(0).is_number()) {
            return;
        }
        self.emit(Insn::Atomic { width, op, fetch, base: reg(p.base), off: p.off as i16, src: reg(src) });
        if fetch {
            self.set(result, Kind::NUMBER);
        }
    }
}
