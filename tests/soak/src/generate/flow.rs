//! Branches and loops.

use super::helpers::Held;
use super::{GLOBAL, Generator, TABLE, reg};
use crate::belief::{Beliefs, Home, Kind, Ptr, SLOTS, Slot};
use crate::code::Item;
use ringfence_translator::isa::{AluOp, Cond, Imm64, Insn, MapIdx, Operand, Pc, Reg, Size, Width};

const CONDS: [Cond; 11] = [
    Cond::Eq,
    Cond::Ne,
    Cond::Gt,
    Cond::Ge,
    Cond::Lt,
    Cond::Le,
    Cond::SGt,
    Cond::SGe,
    Cond::SLt,
    Cond::SLe,
    Cond::Set,
];

/// Where a loop counts.
#[derive(Clone, Copy)]
enum Counter {
    Reg(usize),
    /// A slot of the stack, and a register that it passes through.
    Slot(usize, usize),
}

/// How a loop goes round.
#[derive(Clone, Copy)]
enum Shape {
    /// From 0 to a constant, by a step.
    Up(i32, i32),
    /// From a constant to 0.
    Down(i32),
    /// From 0 to a number from outside, at most so many.
    Clamped(usize, i32),
}

impl Shape {
    /// No counter is more than this in the body.
    fn most(self) -> i32 {
        match self {
            Shape::Up(n, _) | Shape::Down(n) | Shape::Clamped(_, n) => n,
        }
    }
}

/// A pointer that moves on by so many bytes with each round.
#[derive(Clone, Copy)]
struct Walker {
    reg: usize,
    step: i32,
}

impl Generator<'_> {
    /// A conditional jump over some statements, perhaps with an alternative, perhaps out of the function or the loop.
    pub(super) fn branch(&mut self) {
        let Some(n) = self.number() else { return self.constant() };
        let free = self.frame.held == Held::Nothing;
        if let Some((out, next)) = self.frame.loops.last().copied().filter(|_| free && self.r.chance(25)) {
            let label = if self.r.chance(60) { out } else { next };
            return self.compare(n, label);
        }
        let over = self.label();
        self.compare(n, over);
        for _ in 0..1 + self.r.below(3) {
            self.statement();
        }
        if free && self.r.chance(8) {
            self.leave();
        }
        if self.frame.here.dead || self.r.chance(65) {
            return self.place(over);
        }
        let end = self.label();
        self.jump(end);
        self.place(over);
        for _ in 0..1 + self.r.below(3) {
            self.statement();
        }
        self.place(end);
    }

    /// A copy of n at a distance that may wrap, compared with n itself: each tells of the other.
    fn compare_linked(&mut self, n: usize, label: u32) {
        let copy = self.target();
        if copy == n {
            return self.compare_plain(n, label);
        }
        let by = self.r.imm();
        let (op, width) = (self.r.pick(&[AluOp::Add, AluOp::Sub]), self.width());
        self.mov(copy, Operand::Reg(reg(n)), Kind::NUMBER);
        self.emit(Insn::Alu { width, op, dst: reg(copy), src: Operand::Imm(by) });
        let (width, cond) = (self.width(), self.r.pick(&CONDS));
        let here = self.frame.here;
        self.frame.joins.push((label, here));
        let src = Operand::Reg(reg(n));
        self.emit(Insn::JumpIf { width, cond, dst: reg(copy), src, target: Pc(label) });
    }

    fn compare(&mut self, n: usize, label: u32) {
        if self.r.chance(12) { self.compare_linked(n, label) } else { self.compare_plain(n, label) }
    }

    /// `if n ? goto label`, with what the outcome tells of n.
    fn compare_plain(&mut self, n: usize, label: u32) {
        let width = self.width();
        let cond = self.r.pick(&CONDS);
        let other = if self.r.chance(35) { self.number() } else { None };
        let imm = self.r.imm();
        let src = other.map_or(Operand::Imm(imm), |m| Operand::Reg(reg(m)));
        let mut taken = self.frame.here;
        if other.is_none() && imm >= 0 && width == Width::W64 {
            let refine = |b: &mut Beliefs, most: u64| {
                if let Kind::Number(m) = &mut b.regs[n] {
                    *m = (*m).min(most);
                }
            };
            match cond {
                Cond::Gt | Cond::Ne => refine(&mut self.frame.here, imm as u64),
                Cond::Ge => refine(&mut self.frame.here, (imm as u64).saturating_sub(1)),
                Cond::Le | Cond::Eq => refine(&mut taken, imm as u64),
                Cond::Lt => refine(&mut taken, (imm as u64).saturating_sub(1)),
                _ => {}
            }
        }
        self.frame.joins.push((label, taken));
        self.emit(Insn::JumpIf { width, cond, dst: reg(n), src, target: Pc(label) });
    }

    /// A loop of one of several shapes around some statements.
    pub(super) fn repeat(&mut self) {
        if self.frame.loops.len() >= 3 || (!self.frame.loops.is_empty() && self.r.chance(50)) {
            return self.branch();
        }
        let Some(counter) = self.counter() else { return };
        let before = (self.frame.pinned, self.frame.pinned_slots);
        let (out, next) = (self.label(), self.label());
        let shape = self.loop_shape(out);
        self.start_counter(counter, shape);
        self.pin(counter, shape);
        let walker = self.walker(shape);
        self.weaken();
        let head = self.label();
        self.frame.items.push(Item::Label(head));
        let at_head = self.frame.here;
        if let (Shape::Clamped(n, _), Counter::Reg(i)) = (shape, counter)
            && self.r.chance(50)
        {
            let here = self.frame.here;
            self.frame.joins.push((out, here));
            let (dst, src, target) = (reg(i), Operand::Reg(reg(n)), Pc(out));
            self.emit(Insn::JumpIf { width: Width::W64, cond: Cond::Ge, dst, src, target });
        }
        self.frame.loops.push((out, next));
        let statements = if shape.most() >= 1000 { 1 } else { 1 + self.r.below(4) };
        for _ in 0..statements {
            self.statement();
        }
        self.frame.loops.pop();
        self.place(next);
        self.repair(&at_head);
        if let Some(w) = walker {
            self.add(w.reg, w.step);
        }
        self.go_round(counter, shape, head);
        if let Some(w) = walker {
            self.set(w.reg, Kind::Unset);
        }
        (self.frame.pinned, self.frame.pinned_slots) = before;
        self.place(out);
    }

    fn counter(&mut self) -> Option<Counter> {
        let n = if self.r.chance(85) { 6 + self.r.index(4) } else { self.r.index(6) };
        if self.is_pinned(n) {
            return None;
        }
        let s = self.r.index(SLOTS);
        if self.r.chance(20) && !self.slot_is_pinned(s) {
            return Some(Counter::Slot(s, n));
        }
        Some(Counter::Reg(n))
    }

    /// How often, and how; `out` is where a bound that is too large leads.
    fn loop_shape(&mut self, out: u32) -> Shape {
        let times = match self.r.below(10_000) {
            n if n < self.shape.long_loops => self.r.pick(&[10_000, 100_000, 1_000_000]),
            0..=1499 => (10 + self.r.below(60) as i32).min(self.shape.rounds),
            1500..=1599 => self.shape.rounds,
            _ => (2 + self.r.below(7) as i32).min(self.shape.rounds),
        };
        let clamp = self.variable().filter(|n| (6..10).contains(n));
        match (self.r.below(10), clamp) {
            (0..=2, Some(n)) => {
                let here = self.frame.here;
                match self.r.below(3) {
                    0 => {
                        self.frame.joins.push((out, here));
                        let (dst, src) = (reg(n), Operand::Imm(times));
                        let (width, cond) = (Width::W64, Cond::Gt);
                        self.emit(Insn::JumpIf { width, cond, dst, src, target: Pc(out) });
                    }
                    1 => self.count(n, AluOp::Mod, times + 1),
                    _ => self.count(n, AluOp::And, (1 << (times + 1).ilog2()) - 1),
                }
                self.set(n, Kind::Number(times as u64));
                Shape::Clamped(n, times)
            }
            (3..=4, _) => Shape::Down(times),
            (5, _) => Shape::Up(times, 1 + self.r.below(5) as i32),
            _ => Shape::Up(times, 1),
        }
    }

    fn start_counter(&mut self, counter: Counter, shape: Shape) {
        let from = if let Shape::Down(n) = shape { n } else { 0 };
        let counts = Kind::Number(shape.most() as u64);
        match counter {
            Counter::Reg(n) => self.mov(n, Operand::Imm(from), counts),
            Counter::Slot(s, _) => {
                let (off, src) = (-8 * (s as i16 + 1), Operand::Imm(from));
                self.emit(Insn::Store { size: Size::Dw, base: Reg::FP, off, src });
                self.set_slot(s, Slot { init: 0xff, whole: counts });
            }
        }
    }

    /// What must not change in the body: the counter, the bound, and some of the pointers.
    fn pin(&mut self, counter: Counter, shape: Shape) {
        match counter {
            Counter::Reg(n) => self.frame.pinned |= 1 << n,
            Counter::Slot(s, _) => self.frame.pinned_slots |= 1 << s,
        }
        if let Shape::Clamped(n, _) = shape {
            self.frame.pinned |= 1 << n;
        }
        let scratch = if let Counter::Slot(_, n) = counter { 1 << n } else { 0 };
        let pointers = (6..10).filter(|&n| matches!(self.kind(n), Kind::Pointer(_)));
        let pointers = pointers.fold(0u16, |m, n| m | 1 << n) & !scratch;
        // Something must stay free.
        if (self.frame.pinned | pointers | scratch).count_ones() < 5 {
            self.frame.pinned |= pointers;
        }
    }

    /// A pointer to walk with, where there is room for a step in each round.
    fn walker(&mut self, shape: Shape) -> Option<Walker> {
        if self.r.chance(60) {
            return None;
        }
        let reg = (6..10).find(|&n| !self.is_pinned(n) && !matches!(self.kind(n), Kind::Pointer(_)))?;
        let map = self.r.pick(&[GLOBAL, TABLE]);
        let from =
            self.find(|k| matches!(k, Kind::Pointer(p) if matches!(p.home, Home::Map(_) | Home::Lent(_))));
        let ptr = match from.map(|n| (n, self.kind(n))) {
            Some((n, Kind::Pointer(p))) => {
                self.mov(reg, Operand::Reg(super::reg(n)), Kind::Pointer(p));
                p
            }
            _ => {
                let imm = Imm64::MapValue { map: MapIdx(map), offset: 0 };
                self.emit(Insn::LoadImm64 { dst: super::reg(reg), imm });
                Ptr::at(Home::Data(map), 0)
            }
        };
        let room = self.room(ptr.home).1 - ptr.hi;
        let step = (room / (shape.most() + 1)).min(8) + self.slip();
        let align = if step % 8 == 0 { 8 } else { 1 << step.trailing_zeros() };
        let hi = ptr.hi + step * shape.most();
        self.set(reg, Kind::Pointer(Ptr { hi, align: ptr.align.min(align), ..ptr }));
        self.frame.pinned |= 1 << reg;
        (step > 0).then_some(Walker { reg, step })
    }

    /// Before a loop's head: what need not hold in later rounds is no longer believed.
    fn weaken(&mut self) {
        for n in 0..10 {
            if !self.is_pinned(n) {
                let kind = if self.kind(n).is_number() { Kind::NUMBER } else { Kind::Unset };
                self.set(n, kind);
            }
        }
        for s in 0..SLOTS {
            let slot = self.frame.here.slots[s];
            if !self.slot_is_pinned(s) {
                let weaker = if slot.holds_number(0, 8) { Slot::NUMBER } else { Slot::UNSET };
                self.set_slot(s, weaker);
            }
        }
    }

    /// Before the next round: what was believed at the head is made true again.
    fn repair(&mut self, at_head: &Beliefs) {
        if self.frame.here.dead {
            return;
        }
        for n in 0..10 {
            if at_head.regs[n].is_number() && !self.kind(n).is_number() {
                self.mov(n, Operand::Imm(n as i32), Kind::NUMBER);
            }
        }
        for s in 0..SLOTS {
            if at_head.slots[s] == Slot::NUMBER && !self.frame.here.slots[s].holds_number(0, 8) {
                let (off, src) = (-8 * (s as i16 + 1), Operand::Imm(0));
                self.emit(Insn::Store { size: Size::Dw, base: Reg::FP, off, src });
                self.set_slot(s, Slot::NUMBER);
            }
        }
    }

    fn count(&mut self, n: usize, op: AluOp, imm: i32) {
        let width = if self.r.chance(75) { Width::W64 } else { Width::W32 };
        self.emit(Insn::Alu { width, op, dst: reg(n), src: Operand::Imm(imm) });
    }

    /// Counts, and jumps back to the head if the end has not come.
    fn go_round(&mut self, counter: Counter, shape: Shape, head: u32) {
        if self.frame.here.dead {
            return;
        }
        let n = match counter {
            Counter::Reg(n) => n,
            Counter::Slot(s, n) => {
                let (dst, off) = (reg(n), -8 * (s as i16 + 1));
                self.emit(Insn::Load { size: Size::Dw, sign: false, dst, base: Reg::FP, off });
                n
            }
        };
        let wide = self.r.chance(75);
        let width = if wide { Width::W64 } else { Width::W32 };
        let (cond, src) = match shape {
            Shape::Up(times, step) => {
                self.count(n, AluOp::Add, step);
                let exact = step == 1 && self.r.chance(30);
                let cond = if exact { Cond::Ne } else { self.r.pick(&[Cond::Lt, Cond::SLt, Cond::Le]) };
                (cond, Operand::Imm(times))
            }
            Shape::Down(_) => {
                self.count(n, AluOp::Add, -1);
                (self.r.pick(&[Cond::Ne, Cond::SGt, Cond::SGe, Cond::Gt]), Operand::Imm(0))
            }
            Shape::Clamped(bound, _) => {
                self.count(n, AluOp::Add, 1);
                (self.r.pick(&[Cond::Lt, Cond::Le]), Operand::Reg(reg(bound)))
            }
        };
        if let Counter::Slot(s, _) = counter {
            let (off, src) = (-8 * (s as i16 + 1), Operand::Reg(reg(n)));
            self.emit(Insn::Store { size: Size::Dw, base: Reg::FP, off, src });
        }
        self.emit(Insn::JumpIf { width, cond, dst: reg(n), src, target: Pc(head) });
        self.set(n, Kind::NUMBER);
    }
}
