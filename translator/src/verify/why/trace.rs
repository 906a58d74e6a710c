//! [`Trace`]: a path of the search with its values numbered: which step made the value that a register holds at another one.
//!
//! The path is one line of steps, so each value is made once: a copy, a spill and a fill keep its number. Used to say
//! where a value came from and which tests were about it; nothing that is proved rests on it.

use crate::isa::{AluOp, AtomicOp, Insn, Operand, Pc, Reg, Width};
use crate::program::Program;
use crate::verify::trail::{Step, Trail};
use std::collections::{BTreeSet, HashMap};

/// A value of a path; 0 is one that nobody made.
pub(super) type ValueId = usize;

/// How a value came to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Def {
    /// Index of the step that made it; `None` for what the entry is given.
    pub(super) step: Option<usize>,
    /// Register that it was made in.
    pub(super) reg: Reg,
    /// What it was made of.
    from: [ValueId; 2],
    /// What it is a copy of, or differs from by a constant only; its own number if of nothing.
    root: ValueId,
}

impl Def {
    /// Is it made of no other value?
    pub(super) fn is_source(&self) -> bool {
        self.from == [0, 0]
    }
}

/// A step with what it uses and makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) trail: Trail,
    pub(super) pc: Pc,
    /// Number of the call that it belongs to; 0 for the entry's function.
    pub(super) call: usize,
    /// For a jump, arithmetic or store: left and right operand; for an access the base comes first.
    pub(super) uses: [ValueId; 2],
}

/// A call that had not returned at the end of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) call: usize,
    /// Index of the step where it stands: its call of the next, or the end of the path.
    pub(super) at: usize,
    /// Index of the step that called it; 0 for the entry.
    pub(super) called_at: usize,
}

/// A path with its values numbered.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) points: Vec<Point>,
    /// The entry's first, the running one last.
    pub(super) running: Vec<Running>,
    defs: Vec<Def>,
    /// At the end.
    regs: [ValueId; Reg::COUNT],
}

impl Trace {
    pub(super) fn new(program: &Program, path: &[Step]) -> Trace {
        let mut b = Builder::new();
        for (i, s) in path.iter().enumerate() {
            let before = i.checked_sub(1).and_then(|i| program.insn(path[i].pc));
            b.settle_frames(i, s.depth, before);
            b.step(i, s, program.insn(s.pc));
        }
        b.finish()
    }

    /// The value in a register before the last step.
    pub(super) fn at_end(&self, reg: Reg) -> ValueId {
        self.regs[reg.index()]
    }

    pub(super) fn def(&self, id: ValueId) -> Option<&Def> {
        self.defs.get(id).filter(|_| id != 0)
    }

    /// What it is a copy of, or differs from by a constant only.
    pub(super) fn root(&self, id: ValueId) -> ValueId {
        self.defs.get(id).map_or(0, |d| d.root)
    }

    /// The step that made it.
    pub(super) fn maker(&self, id: ValueId) -> Option<usize> {
        self.def(id)?.step
    }

    /// The value that a step made.
    pub(super) fn made_by(&self, step: usize) -> Option<ValueId> {
        self.defs.iter().position(|d| d.step == Some(step))
    }

    /// All values that it was computed from, itself included.
    pub(super) fn slice(&self, id: ValueId) -> BTreeSet<ValueId> {
        let (mut seen, mut work) = (BTreeSet::new(), vec![id]);
        while let Some(id) = work.pop() {
            if let Some(d) = self.def(id)
                && seen.insert(id)
            {
                work.extend(d.from);
            }
        }
        seen
    }

    /// The entry's r1: the context.
    pub(super) fn is_context(&self, id: ValueId) -> bool {
        self.def(id).is_some_and(|d| d.step.is_none() && d.reg == Reg::R1)
    }
}

/// A call: its registers.
struct Frame {
    running: Running,
    regs: [ValueId; Reg::COUNT],
}

struct Builder {
    points: Vec<Point>,
    defs: Vec<Def>,
    frames: Vec<Frame>,
    calls: usize,
    /// Values that are r10 of a call plus a constant.
    on_stack: HashMap<ValueId, (usize, i64)>,
    /// (call, offset from r10, bytes) of what was stored there.
    slots: HashMap<(usize, i64, u32), ValueId>,
    /// Registers before the last step.
    before: [ValueId; Reg::COUNT],
}

impl Builder {
    fn new() -> Builder {
        let none = Def { step: None, reg: Reg::R0, from: [0, 0], root: 0 };
        let (slots, on_stack) = (HashMap::new(), HashMap::new());
        let (points, frames, before) = (Vec::new(), Vec::new(), [0; Reg::COUNT]);
        let mut b = Builder { points, defs: vec![none], frames, calls: 0, on_stack, slots, before };
        b.push(0, false);
        for reg in [Reg::R1, Reg::R2] {
            let id = b.make(None, reg, [0, 0], false);
            b.set(reg, id);
        }
        b
    }

    fn make(&mut self, step: Option<usize>, reg: Reg, from: [ValueId; 2], of_one: bool) -> ValueId {
        let id = self.defs.len();
        let root = if of_one && from[0] != 0 { self.defs[from[0]].root } else { id };
        self.defs.push(Def { step, reg, from, root });
        id
    }

    fn top(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn reg(&self, reg: Reg) -> ValueId {
        self.frames.last().map_or(0, |f| f.regs[reg.index()])
    }

    fn set(&mut self, reg: Reg, id: ValueId) {
        self.top().regs[reg.index()] = id;
    }

    fn push(&mut self, at: usize, with_arguments: bool) {
        let mut regs = [0; Reg::COUNT];
        if with_arguments && let Some(f) = self.frames.last() {
            regs[1..=5].copy_from_slice(&f.regs[1..=5]);
        }
        let call = self.calls;
        self.calls += 1;
        let fp = self.make(None, Reg::FP, [0, 0], false);
        self.on_stack.insert(fp, (call, 0));
        regs[Reg::FP.index()] = fp;
        if let Some(caller) = self.frames.last_mut() {
            caller.running.at = at.saturating_sub(1);
        }
        let running = Running { call, at, called_at: at.saturating_sub(1) };
        self.frames.push(Frame { running, regs });
    }

    /// Enters and leaves calls until there are as many as the step has.
    fn settle_frames(&mut self, at: usize, depth: usize, before: Option<&Insn>) {
        while self.frames.len() < depth {
            self.push(at, matches!(before, Some(Insn::CallLocal { .. })));
        }
        while self.frames.len() > depth.max(1) {
            let result = self.reg(Reg::R0);
            if let Some(left) = self.frames.pop() {
                self.slots.retain(|k, _| k.0 != left.running.call);
            }
            self.top().regs[..6].fill(0);
            self.set(Reg::R0, result);
        }
    }

    fn step(&mut self, i: usize, s: &Step, insn: Option<&Insn>) {
        let call = self.top().running.call;
        self.top().running.at = i;
        let uses = insn.map_or([0, 0], |insn| self.uses(insn));
        self.points.push(Point { trail: s.trail, pc: s.pc, call, uses });
        self.before = self.top().regs;
        if let Some(insn) = insn {
            self.make_values(i, insn, uses);
        }
    }

    fn operand(&self, o: Operand) -> ValueId {
        match o {
            Operand::Reg(r) => self.reg(r),
            Operand::Imm(_) => 0,
        }
    }

    fn uses(&self, insn: &Insn) -> [ValueId; 2] {
        match *insn {
            Insn::Alu { dst, src, op, .. } => {
                [if op == AluOp::Mov { 0 } else { self.reg(dst) }, self.operand(src)]
            }
            Insn::JumpIf { dst, src, .. } => [self.reg(dst), self.operand(src)],
            Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => [self.reg(dst), 0],
            Insn::MovSx { src, .. } => [self.reg(src), 0],
            Insn::Load { base, .. } => [self.reg(base), 0],
            Insn::Store { base, src, .. } => [self.reg(base), self.operand(src)],
            Insn::Atomic { base, src, .. } => [self.reg(base), self.reg(src)],
            Insn::CallHelper { .. } => [self.reg(Reg::R1), self.reg(Reg::R2)],
            Insn::CallReg { reg } => [self.reg(reg), 0],
            Insn::Exit => [self.reg(Reg::R0), 0],
            Insn::LoadImm64 { .. } | Insn::Jump { .. } | Insn::CallLocal { .. } => [0, 0],
        }
    }

    fn make_values(&mut self, i: usize, insn: &Insn, uses: [ValueId; 2]) {
        match *insn {
            Insn::Alu { width, op: AluOp::Mov, dst, src } => {
                let id = match (width, src) {
                    (Width::W64, Operand::Reg(_)) => uses[1],
                    _ => self.make(Some(i), dst, [uses[1], 0], true),
                };
                self.set(dst, id);
            }
            Insn::Alu { width, op, dst, src } => {
                let constant = matches!(src, Operand::Imm(_));
                let id = self.make(Some(i), dst, uses, constant);
                if let (Width::W64, AluOp::Add, Operand::Imm(k), Some((call, off))) =
                    (width, op, src, self.on_stack.get(&uses[0]))
                {
                    let place = (*call, off + i64::from(k));
                    self.on_stack.insert(id, place);
                }
                self.set(dst, id);
            }
            Insn::Neg { dst, .. } | Insn::Endian { dst, .. } | Insn::MovSx { dst, .. } => {
                let id = self.make(Some(i), dst, uses, true);
                self.set(dst, id);
            }
            Insn::LoadImm64 { dst, .. } => {
                let id = self.make(Some(i), dst, [0, 0], false);
                self.set(dst, id);
            }
            Insn::Load { size, dst, off, .. } => {
                let spilled = self.slot(uses[0], off, size.bytes()).and_then(|s| self.slots.get(&s).copied());
                let id = spilled.unwrap_or_else(|| self.make(Some(i), dst, [0, 0], false));
                self.set(dst, id);
            }
            Insn::Store { size, off, .. } => {
                if let Some(slot) = self.slot(uses[0], off, size.bytes()) {
                    self.forget(slot);
                    self.slots.insert(slot, uses[1]);
                }
            }
            Insn::Atomic { op, fetch, off, src, width, .. } => {
                if let Some(slot) = self.slot(uses[0], off, width.bits() / 8) {
                    self.forget(slot);
                }
                if fetch {
                    let dst = if op == AtomicOp::Cmpxchg { Reg::R0 } else { src };
                    let id = self.make(Some(i), dst, [0, 0], false);
                    self.set(dst, id);
                }
            }
            Insn::CallHelper { .. } | Insn::CallReg { .. } => {
                self.top().regs[..6].fill(0);
                let id = self.make(Some(i), Reg::R0, [0, 0], false);
                self.set(Reg::R0, id);
            }
            Insn::JumpIf { .. } | Insn::Jump { .. } | Insn::CallLocal { .. } | Insn::Exit => {}
        }
    }

    fn slot(&self, base: ValueId, off: i16, size: u32) -> Option<(usize, i64, u32)> {
        let (call, at) = self.on_stack.get(&base)?;
        Some((*call, at + i64::from(off), size))
    }

    /// Forgets what overlaps.
    fn forget(&mut self, (call, at, size): (usize, i64, u32)) {
        self.slots.retain(|k, _| k.0 != call || k.1 + i64::from(k.2) <= at || at + i64::from(size) <= k.1);
    }

    fn finish(self) -> Trace {
        let running = self.frames.iter().map(|f| f.running).collect();
        Trace { points: self.points, running, defs: self.defs, regs: self.before }
    }
}
