//! [`Generator`]: writes programs that believe themselves safe, and reach deep: pointers of every kind with offsets bounded in every
//! usual way, loops of several shapes, spills, calls, atomics. [`Shape`] says what the environment offers.
//!
//! It keeps [`Beliefs`] of the place at hand and emits only what should be accepted there, but for a little `slack`: now and
//! then a bound is off by a few. What fails by more is the business of [`mutate`](crate::mutate).

mod calls;
mod flow;
mod helpers;
mod index;
mod memory;
mod scalar;

use crate::belief::{Beliefs, Home, Kind, Ptr, SLOTS, Slot};
use crate::code::{Code, Item};
use crate::random::Random;
use calls::Callee;
use helpers::Held;
use ringfence_translator::isa::{AluOp, Insn, Operand, Pc, Reg, Width};
use ringfence_translator::{MapDecl, MapKind};

/// What programs may count on.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Bytes behind r1.
    pub ctx_bytes: u32,
    /// r2 holds that size on entry.
    pub size_in_r2: bool,
    /// Accesses of context and stack are aligned.
    pub aligned: bool,
    /// Offsets into the context are constants.
    pub fixed_ctx: bool,
    /// Atomic operations on the context.
    pub ctx_atomics: bool,
    /// Helpers without arguments that give a number.
    pub helpers: Vec<u32>,
    /// Helpers that call back.
    pub callbacks: bool,
    /// Records of the ring buffer, [`maps`]' sixth.
    pub records: bool,
    /// Spin locks, in [`maps`]' seventh.
    pub locks: bool,
    /// A value of a map may be used after its key was updated or deleted.
    pub stale_values: bool,
    /// Of a thousand bounds, how many are off.
    pub slack: u64,
    /// Of ten thousand loops, how many go round 10000 times and more.
    pub long_loops: u64,
    /// Rounds of all other loops, at most; a few go to 1000.
    pub rounds: i32,
    /// Statements of the entry function, about.
    pub statements: u64,
}

impl Shape {
    /// For `Env::generic(64)`.
    pub fn generic() -> Shape {
        Shape {
            ctx_bytes: 64,
            size_in_r2: true,
            aligned: false,
            fixed_ctx: false,
            ctx_atomics: true,
            helpers: vec![5, 7, 8],
            callbacks: true,
            records: true,
            locks: true,
            stale_values: true,
            slack: 15,
            long_loops: 10,
            rounds: 1000,
            statements: 18,
        }
    }
}

/// Maps of all programs: a hash, two arrays (one with values of more than 255 bytes), global data, a read-only table; a ring
/// buffer, and an array with a spin lock in each value.
pub fn maps() -> Vec<MapDecl> {
    let map = |name: &str, kind, value_size, max_entries, read_only, init: Vec<u8>| MapDecl {
        name: name.into(),
        kind,
        key_size: 4,
        value_size,
        max_entries,
        read_only,
        init,
        ..MapDecl::default()
    };
    vec![
        map("hash", MapKind::Hash, 24, 8, false, vec![]),
        map("array", MapKind::Array, 20, 4, false, vec![]),
        map("wide", MapKind::Array, 320, 2, false, vec![]),
        map("global", MapKind::Global, 40, 1, false, vec![7; 40]),
        map("table", MapKind::Global, 16, 1, true, (0..16).map(|i| i * 3 % 17).collect()),
        MapDecl { key_size: 0, ..map("ring", MapKind::RingBuf, 0, 4096, false, vec![]) },
        MapDecl { spin_lock: Some(0), ..map("locked", MapKind::Array, 24, 2, false, vec![]) },
    ]
}

/// Indices into [`maps`]: those that are looked up.
pub(crate) const LOOKED_UP: [u16; 3] = [0, 1, 2];
/// Global data that may be written.
pub(crate) const GLOBAL: u16 = 3;
/// Global data that may not.
pub(crate) const TABLE: u16 = 4;
/// The ring buffer.
pub(crate) const RING: u16 = 5;
/// Its records.
pub(crate) const RECORD_BYTES: [u16; 3] = [8, 20, 64];
/// The array with locks.
pub(crate) const LOCKED: u16 = 6;
/// Bytes of the values.
const VALUE_BYTES: [i32; 7] = [24, 20, 320, 40, 16, 0, 24];

/// The function being written.
#[derive(Default)]
struct Frame {
    items: Vec<Item>,
    here: Beliefs,
    /// What is believed at labels to be placed, from each jump to them.
    joins: Vec<(u32, Beliefs)>,
    /// Registers and slots that may not be changed.
    pinned: u16,
    pinned_slots: u16,
    /// Loops around this place: where each is left, and where the next round starts.
    loops: Vec<(u32, u32)>,
    /// Calls on the way from the entry function to here.
    depth: u32,
    /// The deepest chain of calls below.
    below: u32,
    /// What is held here.
    held: Held,
    /// The function gives 0 or 1.
    callback: bool,
}

/// Writes one program.
pub struct Generator<'a> {
    r: &'a mut Random,
    shape: &'a Shape,
    frame: Frame,
    callees: Vec<Callee>,
    labels: u32,
    /// Statements left to write.
    left: i64,
}

/// A program.
pub fn generate(r: &mut Random, shape: &Shape) -> Code {
    let left = 6 + r.below(2 * shape.statements) as i64;
    let g = Generator { r, shape, frame: Frame::default(), callees: Vec::new(), labels: 0, left };
    g.entry()
}

pub(crate) fn reg(n: usize) -> Reg {
    Reg::new(n as u8).unwrap_or(Reg::R0)
}

impl Generator<'_> {
    fn entry(mut self) -> Code {
        let ctx = Kind::Pointer(Ptr::at(Home::Ctx, 0));
        self.frame.here.regs[1] = ctx;
        if self.shape.size_in_r2 {
            self.frame.here.regs[2] = Kind::Number(self.shape.ctx_bytes.into());
        }
        if self.r.chance(90) {
            let keep = 6 + self.r.index(4);
            self.mov(keep, Operand::Reg(Reg::R1), ctx);
            self.frame.pinned |= 1 << keep;
        }
        while self.left > 0 {
            self.statement();
        }
        self.leave();
        let mut items = self.frame.items;
        for c in self.callees {
            items.push(Item::Label(c.label));
            items.extend(c.items);
        }
        Code { items, labels: self.labels }
    }

    /// Ends the function with a number.
    fn leave(&mut self) {
        if self.frame.here.dead {
            return;
        }
        match self.number() {
            _ if self.frame.callback => self.stop_or_not(),
            Some(0) => {}
            Some(n) => self.mov(0, Operand::Reg(reg(n)), Kind::NUMBER),
            None => self.mov(0, Operand::Imm(0), Kind::Number(0)),
        }
        self.emit(Insn::Exit);
        self.frame.here.dead = true;
    }

    /// What a callback gives: 0 to go on, 1 to stop.
    fn stop_or_not(&mut self) {
        match self.number().filter(|_| self.r.chance(40)) {
            Some(n) => {
                self.mov(0, Operand::Reg(reg(n)), Kind::NUMBER);
                let (width, src) = (Width::W64, Operand::Imm(1 + self.slip().max(0)));
                self.emit(Insn::Alu { width, op: AluOp::And, dst: Reg::R0, src });
            }
            None => {
                let stop = i32::from(self.r.chance(15));
                self.mov(0, Operand::Imm(stop), Kind::Number(1));
            }
        }
    }

    fn statement(&mut self) {
        self.left -= 1;
        if self.frame.here.dead {
            return;
        }
        if self.frame.held == Held::Lock {
            return match self.r.below(10) {
                0..=3 => self.alu(),
                4..=5 => self.load(),
                6..=7 => self.store(),
                _ => self.indexed(),
            };
        }
        match self.r.below(103) {
            0..=24 => self.alu(),
            25..=30 => self.constant(),
            31..=40 => self.load(),
            41..=50 => self.store(),
            51..=54 => self.spill(),
            55..=57 => self.copy_pointer(),
            58..=60 => self.atomic(),
            61..=70 => self.branch(),
            71..=81 => self.indexed(),
            82..=86 => self.lookup(),
            87 => self.two_lookups(),
            88..=89 => self.helper(),
            90 => self.change_map(),
            91..=95 => self.repeat(),
            100 if self.shape.callbacks => self.call_back(),
            101 if self.shape.records => self.record(),
            102 if self.shape.locks => self.locked(),
            _ => self.call_local(),
        }
    }

    fn emit(&mut self, insn: Insn) {
        self.frame.items.push(Item::Insn(insn));
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels - 1
    }

    /// The next instruction is where `label` leads: what is believed there holds on all ways.
    fn place(&mut self, label: u32) {
        self.frame.items.push(Item::Label(label));
        let (due, rest) = std::mem::take(&mut self.frame.joins).into_iter().partition(|(l, _)| *l == label);
        self.frame.joins = rest;
        let due: Vec<(u32, Beliefs)> = due;
        for (_, b) in due {
            self.frame.here.meet(&b);
        }
    }

    fn kind(&self, n: usize) -> Kind {
        match n {
            10 => Kind::Pointer(Ptr::at(Home::Stack, 0)),
            _ => self.frame.here.regs[n],
        }
    }

    fn set(&mut self, n: usize, kind: Kind) {
        self.frame.here.regs[n] = kind;
    }

    fn mov(&mut self, dst: usize, src: Operand, kind: Kind) {
        self.emit(Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: reg(dst), src });
        self.set(dst, kind);
    }

    fn add(&mut self, dst: usize, imm: i32) {
        self.emit(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: reg(dst), src: Operand::Imm(imm) });
    }

    fn is_pinned(&self, n: usize) -> bool {
        self.frame.pinned >> n & 1 != 0
    }

    fn slot_is_pinned(&self, s: usize) -> bool {
        self.frame.pinned_slots >> s & 1 != 0
    }

    /// A register that may be overwritten.
    fn target(&mut self) -> usize {
        loop {
            let n = self.r.index(10);
            if !self.is_pinned(n) {
                return n;
            }
        }
    }

    /// One of the registers of that kind.
    fn find(&mut self, wanted: impl Fn(Kind) -> bool) -> Option<usize> {
        let start = self.r.index(10);
        (0..10).map(|i| (start + i) % 10).find(|&n| wanted(self.frame.here.regs[n]))
    }

    fn number(&mut self) -> Option<usize> {
        self.find(Kind::is_number)
    }

    /// A number that may be changed.
    fn variable(&mut self) -> Option<usize> {
        let start = self.r.index(10);
        let free = |n: &usize| self.frame.here.regs[*n].is_number() && !self.is_pinned(*n);
        (0..10).map(|i| (start + i) % 10).find(free)
    }

    /// A slot that may be overwritten.
    fn free_slot(&mut self) -> usize {
        loop {
            let s = self.r.index(SLOTS);
            if !self.slot_is_pinned(s) {
                return s;
            }
        }
    }

    /// Bytes of a home: (first that may be touched, one past the last).
    fn room(&self, home: Home) -> (i32, i32) {
        match home {
            Home::Ctx => (0, self.shape.ctx_bytes as i32),
            Home::Stack => (-8 * SLOTS as i32, 0),
            Home::Lent(n) | Home::Record(n) => (0, n.into()),
            Home::Key => (0, 4),
            Home::Map(LOCKED) => (4, VALUE_BYTES[usize::from(LOCKED)]),
            Home::Map(m) | Home::Data(m) => (0, VALUE_BYTES[usize::from(m)]),
        }
    }

    /// By how much a bound is off: nearly always 0.
    fn slip(&mut self) -> i32 {
        if self.r.rarely(self.shape.slack) { self.r.pick(&[-8, -1, 1, 1, 1, 2, 4, 8]) } else { 0 }
    }

    fn jump(&mut self, label: u32) {
        let here = self.frame.here;
        self.frame.joins.push((label, here));
        self.emit(Insn::Jump { target: Pc(label) });
        self.frame.here.dead = true;
    }

    fn set_slot(&mut self, s: usize, slot: Slot) {
        self.frame.here.slots[s] = slot;
    }
}
