//! Calls: helpers, maps, and functions of the program's own.

use super::helpers::{Caller, Held};
use super::{Frame, GLOBAL, Generator, LOOKED_UP, reg};
use crate::belief::{Beliefs, Home, Kind, Ptr, SLOTS, Slot};
use crate::code::Item;
use ringfence_translator::isa::{AluOp, Cond, Imm64, Insn, MapIdx, Operand, Pc, Reg, Size, Width};

/// Frames on the deepest path that programs use.
pub(super) const DEEPEST: u32 = 7;
/// Functions of a program, at most.
pub(super) const FUNCTIONS: usize = 5;

/// What a function expects in an argument register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Param {
    Number,
    /// So many initialised slots of the caller's stack.
    Slots(u8),
    Ctx,
    /// Global data.
    Data,
    /// A value of that map.
    Value(u16),
}

/// A function that has been written.
pub(super) struct Callee {
    pub(super) label: u32,
    pub(super) items: Vec<Item>,
    pub(super) params: Vec<Param>,
    /// Frames that a call of it takes, its own among them.
    pub(super) frames: u32,
    /// Who calls it back, and with how many slots; `None` for a function that the program itself calls.
    pub(super) caller: Option<(Caller, u8)>,
}

impl Generator<'_> {
    /// A helper that gives a number, if calls are possible here.
    pub(super) fn helper(&mut self) {
        let Some(id) = self.r.any(&self.shape.helpers) else { return };
        if self.may_call() {
            self.call_helper(id);
        }
    }

    /// Are r0 to r5 free?
    pub(super) fn may_call(&self) -> bool {
        self.frame.pinned & 0x3f == 0
    }

    pub(super) fn call_helper(&mut self, id: u32) {
        self.emit(Insn::CallHelper { id });
        self.frame.here.clobber();
    }

    /// A key in a slot, the map in r1, the key's address in r2.
    pub(super) fn map_and_key(&mut self, map: u16) {
        let s = self.free_slot();
        let off = -8 * (s as i16 + 1);
        let key = if self.r.chance(40) { self.number() } else { None };
        let src = key.map_or(Operand::Imm(self.r.below(5) as i32), |n| Operand::Reg(reg(n)));
        self.emit(Insn::Store { size: Size::W, base: Reg::FP, off, src });
        let slot = self.frame.here.slots[s].overwritten(0, 4);
        self.set_slot(s, slot);
        self.emit(Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Map(MapIdx(map)) });
        self.set(1, Kind::Unset);
        self.mov(2, Operand::Reg(Reg::FP), Kind::Pointer(Ptr::at(Home::Stack, off.into())));
        self.add(2, off.into());
    }

    /// Two values that may be null, kept side by side; each is used where it was tested, but for a slip.
    pub(super) fn two_lookups(&mut self) {
        let (a, b) = (6 + self.r.index(4), 6 + self.r.index(4));
        if !self.may_call() || a == b || self.is_pinned(a) || self.is_pinned(b) {
            return self.lookup();
        }
        let mut values = Vec::new();
        for n in [a, b] {
            let map = self.r.pick(&LOOKED_UP);
            self.map_and_key(map);
            self.call_helper(1);
            let value = Ptr::at(Home::Map(map), 0);
            self.mov(n, Operand::Reg(Reg::R0), Kind::MaybeNull(value));
            self.set(0, Kind::Unset);
            values.push((n, value));
        }
        let none = self.label();
        if self.r.chance(50) {
            values.swap(0, 1);
        }
        let pinned = self.frame.pinned;
        self.frame.pinned |= 1 << a | 1 << b;
        for (i, &(n, value)) in values.iter().enumerate() {
            let here = self.frame.here;
            self.frame.joins.push((none, here));
            let (width, cond, src) = (Width::W64, Cond::Eq, Operand::Imm(0));
            self.emit(Insn::JumpIf { width, cond, dst: reg(n), src, target: Pc(none) });
            self.set(n, Kind::Pointer(value));
            let wrong = self.r.rarely(4 * self.shape.slack);
            let (used, value) = if wrong { values[1 - i] } else { (n, value) };
            for _ in 0..1 + self.r.below(3) {
                self.use_value(used, value);
            }
        }
        self.frame.pinned = pinned;
        self.place(none);
    }

    fn use_value(&mut self, n: usize, value: Ptr) {
        let sizes = [Size::B, Size::H, Size::W, Size::Dw];
        if let Some(place) = self.place_in(n, value, &sizes) {
            if self.r.chance(50) { self.load_at(place) } else { self.store_at(place) }
        }
    }

    /// Looks a key up and, where it is there, uses its value.
    pub(super) fn lookup(&mut self) {
        if !self.may_call() {
            return self.load();
        }
        let map = self.r.pick(&LOOKED_UP);
        self.map_and_key(map);
        self.call_helper(1);
        let value = Ptr::at(Home::Map(map), 0);
        self.set(0, Kind::MaybeNull(value));
        let mut n = 0;
        if self.r.chance(40) {
            n = self.target();
            self.mov(n, Operand::Reg(Reg::R0), Kind::MaybeNull(value));
        }
        match self.r.below(10) {
            0 => self.spill(),
            1 if n != 0 => self.alu(),
            _ => {}
        }
        let null = self.label();
        let tested = if self.kind(0) == Kind::MaybeNull(value) && self.r.chance(60) { 0 } else { n };
        if self.kind(tested) == Kind::MaybeNull(value) {
            self.null_check(tested, value, null);
        }
    }

    /// Splits the ways, and goes on with the value on one of them.
    fn null_check(&mut self, tested: usize, value: Ptr, null: u32) {
        let settled = |b: &mut Beliefs, to: Kind| {
            b.regs.iter_mut().filter(|k| **k == Kind::MaybeNull(value)).for_each(|k| *k = to);
            b.slots.iter_mut().filter(|s| s.whole == Kind::MaybeNull(value)).for_each(|s| s.whole = to);
        };
        let (dst, src) = (reg(tested), Operand::Imm(0));
        let mut absent = self.frame.here;
        settled(&mut absent, Kind::Number(0));
        if !self.r.rarely(self.shape.slack) {
            self.frame.joins.push((null, absent));
            // The low half of an address may be 0.
            let width = if self.r.rarely(self.shape.slack) { Width::W32 } else { Width::W64 };
            if self.r.chance(70) {
                let target = Pc(null);
                self.emit(Insn::JumpIf { width, cond: Cond::Eq, dst, src, target });
            } else {
                let found = self.label();
                let target = Pc(found);
                self.emit(Insn::JumpIf { width, cond: Cond::Ne, dst, src, target });
                self.emit(Insn::Jump { target: Pc(null) });
                self.frame.items.push(Item::Label(found));
            }
        }
        settled(&mut self.frame.here, Kind::Pointer(value));
        for _ in 0..1 + self.r.below(3) {
            self.statement();
        }
        if self.frame.held == Held::Nothing && self.r.chance(20) {
            // Absent keys end the function; the value is known from here on.
            let out = self.label();
            self.jump(out);
            self.place(null);
            self.leave();
            self.place(out);
        } else {
            self.place(null);
        }
    }

    /// Updates or deletes a key.
    pub(super) fn change_map(&mut self) {
        let map = self.r.pick(&LOOKED_UP[..2]);
        let first = self.r.index(SLOTS - 3);
        let full = (first..first + 3).all(|s| self.frame.here.slots[s].holds_number(0, 8));
        if !self.may_call() {
            return;
        }
        let pinned = self.frame.pinned_slots;
        self.frame.pinned_slots |= 7 << first;
        self.map_and_key(map);
        self.frame.pinned_slots = pinned;
        if full && self.r.chance(70) {
            let off = -8 * (first as i32 + 3);
            self.mov(3, Operand::Reg(Reg::FP), Kind::Unset);
            self.add(3, off);
            let flags = self.r.below(4) as i32;
            self.mov(4, Operand::Imm(flags), Kind::NUMBER);
            self.call_helper(2);
        } else {
            self.call_helper(3);
        }
        if !self.shape.stale_values {
            self.frame.here.forget_values();
        }
    }

    /// Calls a function: one that is there, or a new one.
    pub(super) fn call_local(&mut self) {
        if !self.may_call() {
            return self.branch();
        }
        let plain = |c: &Callee| c.caller.is_none() && self.fits(c) && self.offers(&c.params);
        let known: Vec<usize> = (0..self.callees.len()).filter(|&i| plain(&self.callees[i])).collect();
        let new = self.callees.len() < FUNCTIONS && self.frame.depth + 1 < DEEPEST;
        let callee = match self.r.any(&known) {
            Some(i) if !new || self.r.chance(50) => i,
            _ if new => self.write_callee(),
            _ => return self.alu(),
        };
        let (label, params) = (self.callees[callee].label, self.callees[callee].params.clone());
        for (i, p) in params.iter().enumerate() {
            self.pass(i + 1, *p);
        }
        self.emit(Insn::CallLocal { target: Pc(label) });
        self.frame.below = self.frame.below.max(self.callees[callee].frames);
        self.frame.here.clobber();
    }

    /// Is there room for its frames?
    pub(super) fn fits(&self, c: &Callee) -> bool {
        self.frame.depth + c.frames < DEEPEST
    }

    fn offers(&self, params: &[Param]) -> bool {
        params.iter().all(|p| match p {
            Param::Ctx | Param::Value(_) => self.holder(*p).is_some(),
            Param::Number | Param::Slots(_) | Param::Data => true,
        })
    }

    /// A register beyond the arguments that holds what is to be passed.
    fn holder(&self, p: Param) -> Option<usize> {
        let home = match p {
            Param::Ctx => Home::Ctx,
            Param::Value(m) => Home::Map(m),
            _ => return None,
        };
        (6..10).find(|&n| self.frame.here.regs[n] == Kind::Pointer(Ptr::at(home, 0)))
    }

    fn pass(&mut self, n: usize, p: Param) {
        match p {
            Param::Number => match self.number() {
                Some(src) => self.mov(n, Operand::Reg(reg(src)), self.kind(src)),
                None => self.mov(n, Operand::Imm(n as i32), Kind::Number(n as u64)),
            },
            Param::Slots(count) => self.lend(n, count.into()),
            Param::Data => {
                let imm = Imm64::MapValue { map: MapIdx(GLOBAL), offset: 0 };
                self.emit(Insn::LoadImm64 { dst: reg(n), imm });
                self.set(n, Kind::Pointer(Ptr::at(Home::Data(GLOBAL), 0)));
            }
            Param::Ctx | Param::Value(_) => {
                let src = self.holder(p).unwrap_or(1);
                self.mov(n, Operand::Reg(reg(src)), self.kind(src));
            }
        }
    }

    /// Passes the address of slots that hold numbers; those that do not are set.
    pub(super) fn lend(&mut self, n: usize, count: usize) {
        let first = self.r.index(SLOTS - count + 1);
        let last = first + count;
        let first = if (first..last).any(|s| self.slot_is_pinned(s)) { SLOTS - count } else { first };
        for s in first..first + count {
            if !self.frame.here.slots[s].holds_number(0, 8) {
                let (off, src) = (-8 * (s as i16 + 1), Operand::Imm(self.r.imm()));
                self.emit(Insn::Store { size: Size::Dw, base: Reg::FP, off, src });
            }
            self.set_slot(s, Slot::NUMBER);
        }
        let off = -8 * (first + count) as i32;
        self.mov(n, Operand::Reg(Reg::FP), Kind::Pointer(Ptr::at(Home::Stack, off)));
        self.add(n, off);
    }

    /// Writes a function whose parameters can be passed from here.
    fn write_callee(&mut self) -> usize {
        let mut params = Vec::new();
        for _ in 0..self.r.below(6) {
            let value = self.r.pick(&LOOKED_UP);
            let p = match self.r.below(8) {
                0..=2 => Param::Number,
                3..=4 => Param::Slots(1 + self.r.below(3) as u8),
                5 => Param::Ctx,
                6 => Param::Data,
                _ => Param::Value(value),
            };
            if self.offers(&[p]) {
                params.push(p);
            }
        }
        let label = self.label();
        let depth = self.frame.depth + 1;
        let caller = std::mem::replace(&mut self.frame, Frame { depth, ..Frame::default() });
        for (i, p) in params.iter().enumerate() {
            let kind = match p {
                Param::Number => Kind::NUMBER,
                Param::Slots(n) => Kind::Pointer(Ptr::at(Home::Lent(8 * u16::from(*n)), 0)),
                Param::Ctx => Kind::Pointer(Ptr::at(Home::Ctx, 0)),
                Param::Data => Kind::Pointer(Ptr::at(Home::Data(GLOBAL), 0)),
                Param::Value(m) => Kind::Pointer(Ptr::at(Home::Map(*m), 0)),
            };
            self.set(i + 1, kind);
        }
        self.body();
        let callee = std::mem::replace(&mut self.frame, caller);
        self.callees.push(Callee {
            label,
            items: callee.items,
            params,
            frames: 1 + callee.below,
            caller: None,
        });
        self.callees.len() - 1
    }

    pub(super) fn body(&mut self) {
        if self.r.chance(60) {
            let keep = self.find(|k| matches!(k, Kind::Pointer(_)));
            if let Some(n) = keep {
                let to = 6 + self.r.index(4);
                self.mov(to, Operand::Reg(reg(n)), self.kind(n));
            }
        }
        if self.r.chance(30) && self.number().is_none() {
            let dst = self.target();
            self.mov(dst, Operand::Imm(3), Kind::Number(3));
        }
        for _ in 0..2 + self.r.below(6) {
            self.statement();
        }
        if let (Some(n), true) = (self.number(), self.r.chance(10)) {
            let (dst, src) = (reg(n), Operand::Imm(1));
            if !self.is_pinned(n) {
                self.emit(Insn::Alu { width: Width::W32, op: AluOp::Add, dst, src });
            }
        }
        self.leave();
    }
}
