//! Helpers that call back, records of a ring buffer, and spin locks.

use super::calls::{Callee, Param};
use super::{Frame, Generator, LOCKED, RECORD_BYTES, RING, reg};
use crate::belief::{Home, Kind, Ptr};
use ringfence_translator::isa::{AluOp, Cond, Imm64, Insn, MapIdx, Operand, Pc, Reg, Size, Width};

/// Who calls a callback, and hence what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// `loop`: the number of the lap, and what was handed on.
    Loop,
    /// `for_each_map_elem` on that map: the map, a key, a value, and what was handed on.
    Map(u16),
}

/// What must be given back before the function may end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Held {
    #[default]
    Nothing,
    Record,
    /// No calls at all.
    Lock,
}

impl Generator<'_> {
    /// `loop` or `for_each_map_elem`, with some slots of the stack for the callback.
    pub(super) fn call_back(&mut self) {
        if !self.may_call()
            || self.frame.depth + 1 >= super::calls::DEEPEST
            || self.frame.held != Held::Nothing
        {
            return self.branch();
        }
        let map = self.r.pick(&super::LOOKED_UP);
        let caller = if self.r.chance(60) { Caller::Loop } else { Caller::Map(map) };
        let slots = self.r.below(3) as u8;
        let known = self.callees.iter().position(|c| c.caller == Some((caller, slots)) && self.fits(c));
        let callee = match known {
            Some(i) if self.r.chance(50) => i,
            _ if self.callees.len() < super::calls::FUNCTIONS => self.write_callback(caller, slots),
            _ => return self.branch(),
        };
        match slots {
            0 => self.mov(3, Operand::Imm(0), Kind::Number(0)),
            n => self.lend(3, n.into()),
        }
        let label = self.callees[callee].label;
        self.emit(Insn::LoadImm64 { dst: Reg::R2, imm: Imm64::Func(Pc(label)) });
        self.set(2, Kind::Unset);
        let flags = if self.r.rarely(self.shape.slack) { 1 } else { 0 };
        self.mov(4, Operand::Imm(flags), Kind::Number(0));
        match caller {
            Caller::Loop => self.laps(),
            Caller::Map(m) => self.emit(Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Map(MapIdx(m)) }),
        }
        self.frame.below = self.frame.below.max(self.callees[callee].frames);
        self.call_helper(if caller == Caller::Loop { 181 } else { 164 });
    }

    /// How often `loop` calls back: r1.
    fn laps(&mut self) {
        match self.number().filter(|_| self.r.chance(40)) {
            Some(n) => {
                self.mov(1, Operand::Reg(reg(n)), Kind::NUMBER);
                let (width, src) = (Width::W64, Operand::Imm(self.r.pick(&[1, 3, 15])));
                self.emit(Insn::Alu { width, op: AluOp::And, dst: Reg::R1, src });
            }
            None => {
                let many = self.r.below(10_000) < self.shape.long_loops;
                let laps = if many { 100_000 } else { self.r.below(9) as i32 };
                self.mov(1, Operand::Imm(laps), Kind::NUMBER);
            }
        }
    }

    fn write_callback(&mut self, caller: Caller, slots: u8) -> usize {
        let lent = match slots {
            0 => Kind::Unset,
            n => Kind::Pointer(Ptr::at(Home::Lent(8 * u16::from(n)), 0)),
        };
        let label = self.label();
        let depth = self.frame.depth + 1;
        let frame = Frame { depth, callback: true, ..Frame::default() };
        let outer = std::mem::replace(&mut self.frame, frame);
        match caller {
            Caller::Loop => {
                self.set(1, Kind::NUMBER);
                self.set(2, lent);
            }
            Caller::Map(m) => {
                self.set(2, Kind::Pointer(Ptr::at(Home::Key, 0)));
                self.set(3, Kind::Pointer(Ptr::at(Home::Map(m), 0)));
                self.set(4, lent);
            }
        }
        self.body();
        let callee = std::mem::replace(&mut self.frame, outer);
        let (params, frames) = (Vec::<Param>::new(), 1 + callee.below);
        let caller = Some((caller, slots));
        self.callees.push(Callee { label, items: callee.items, params, frames, caller });
        self.callees.len() - 1
    }

    /// Reserves a record of the ring buffer, writes into it, and gives it back.
    pub(super) fn record(&mut self) {
        let keep = 6 + self.r.index(4);
        if !self.may_call() || self.is_pinned(keep) || self.frame.held != Held::Nothing {
            return self.store();
        }
        let bytes = self.r.pick(&RECORD_BYTES);
        self.emit(Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Map(MapIdx(RING)) });
        self.mov(2, Operand::Imm(bytes.into()), Kind::NUMBER);
        self.mov(3, Operand::Imm(0), Kind::NUMBER);
        self.call_helper(131);
        let record = Ptr::at(Home::Record(bytes), 0);
        let none = self.go_on_with(keep, record);
        self.frame.held = Held::Record;
        self.hold(keep);
        self.frame.held = Held::Nothing;
        if !self.r.rarely(self.shape.slack) {
            self.mov(1, Operand::Reg(reg(keep)), Kind::Unset);
            self.mov(2, Operand::Imm(0), Kind::NUMBER);
            let id = self.r.pick(&[132, 133]);
            self.call_helper(id);
            self.set(0, Kind::Unset);
        }
        self.frame.here.forget_records();
        self.place(none);
    }

    /// Takes the lock of a value, uses the value, and gives it back.
    pub(super) fn locked(&mut self) {
        let keep = 6 + self.r.index(4);
        if !self.may_call() || self.is_pinned(keep) || self.frame.held != Held::Nothing {
            return self.store();
        }
        self.map_and_key(LOCKED);
        self.call_helper(1);
        let none = self.go_on_with(keep, Ptr::at(Home::Map(LOCKED), 0));
        self.lock(keep, 93);
        self.frame.held = Held::Lock;
        self.hold(keep);
        self.frame.held = Held::Nothing;
        if !self.r.rarely(self.shape.slack) {
            self.lock(keep, 94);
        }
        self.place(none);
    }

    fn lock(&mut self, keep: usize, id: u32) {
        self.mov(1, Operand::Reg(reg(keep)), Kind::Unset);
        self.call_helper(id);
        self.set(0, Kind::Unset);
    }

    /// r0, if it is not null, is in `keep` from here on; the label is for where it is null.
    fn go_on_with(&mut self, keep: usize, ptr: Ptr) -> u32 {
        let none = self.label();
        self.set(0, Kind::Unset);
        let here = self.frame.here;
        self.frame.joins.push((none, here));
        let (width, cond, src) = (Width::W64, Cond::Eq, Operand::Imm(0));
        self.emit(Insn::JumpIf { width, cond, dst: Reg::R0, src, target: Pc(none) });
        self.mov(keep, Operand::Reg(Reg::R0), Kind::Pointer(ptr));
        none
    }

    /// Some statements while something is held.
    fn hold(&mut self, keep: usize) {
        let pinned = self.frame.pinned;
        self.frame.pinned |= 1 << keep;
        for _ in 0..1 + self.r.below(4) {
            if self.r.chance(50)
                && let Kind::Pointer(p) = self.kind(keep)
                && let Some(place) = self.place_in(keep, p, &[Size::B, Size::H, Size::W, Size::Dw])
            {
                self.store_at(place);
            }
            self.statement();
        }
        self.frame.pinned = pinned;
    }
}
