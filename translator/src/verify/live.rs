//! [`Live`]: which registers and stack bytes the rest of a function may look at, and of which the *number*
//! matters. A state is cleaned of everything else before it is kept, so that paths which differ only there meet again.
//!
//! Nothing here is trusted: too small a set makes a later read of a cleaned value fail (a needless
//! refusal), never succeed. A number matters if it can reach an address, a condition, or a place that we do not follow.

use super::callback::CONTEXT;
use super::env::{ArgKind, Env};
use super::helpers::calls_back;
use crate::isa::{AluOp, AtomicOp, Imm64, Insn, Operand, Pc, Reg, Size, Width};
use crate::program::Program;

/// What is looked at from one place on. Registers are bits; stack bytes are bits of 4 bytes, the lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveAt {
    pub(crate) regs: u16,
    pub(crate) numbers: u16,
    pub(crate) stack: u128,
    pub(crate) stack_numbers: u128,
}

impl LiveAt {
    fn join(&mut self, b: &LiveAt) -> bool {
        let before = *self;
        self.regs |= b.regs;
        self.numbers |= b.numbers;
        self.stack |= b.stack;
        self.stack_numbers |= b.stack_numbers;
        *self != before
    }

    fn kill(&mut self, r: Reg) {
        self.regs &= !bit(r);
        self.numbers &= !bit(r);
    }

    fn read(&mut self, r: Reg) {
        self.regs |= bit(r);
    }

    fn read_number(&mut self, r: Reg) {
        self.read(r);
        self.numbers |= bit(r);
    }

    fn wants_number(&self, r: Reg) -> bool {
        self.numbers & bit(r) != 0
    }
}

const fn bit(r: Reg) -> u16 {
    1 << r.index()
}

/// Is a register a pointer, and how does it relate to the running frame's r10?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fp {
    /// A number.
    Num,
    /// Perhaps a pointer, not into this frame.
    Ptr,
    /// r10 plus a constant.
    At(i16),
    /// Perhaps a pointer into this frame, somewhere.
    Maybe,
}

impl Fp {
    fn in_frame(self) -> bool {
        matches!(self, Fp::At(_) | Fp::Maybe)
    }

    fn join(self, b: Fp) -> Fp {
        match (self, b) {
            (a, b) if a == b => a,
            (Fp::Num | Fp::Ptr, Fp::Num | Fp::Ptr) => Fp::Ptr,
            _ => Fp::Maybe,
        }
    }
}

type FpRegs = [Fp; Reg::COUNT];

/// Liveness of a program.
pub(crate) struct Live {
    at: Vec<LiveAt>,
    /// Calls that pass a pointer into the caller's stack, by slot.
    passes_stack: Vec<bool>,
}

struct Analysis<'a> {
    program: &'a Program,
    env: &'a Env,
    fp: Vec<Option<FpRegs>>,
    /// A pointer into a stack was stored: any load may read the stack.
    escaped: bool,
    at: Vec<LiveAt>,
}

impl Live {
    pub(crate) fn new(program: &Program, env: &Env) -> Live {
        let n = program.len();
        let mut a =
            Analysis { program, env, fp: vec![None; n], escaped: false, at: vec![LiveAt::default(); n] };
        a.track_frame_pointers();
        let passes_stack: Vec<bool> = (0..n).map(|i| a.passes_stack(Pc(i as u32))).collect();
        let stores = |(pc, i): (Pc, &Insn)| {
            program.func_at(pc).start != Pc(0)
                && matches!(i, Insn::Store { size: Size::Dw, src: Operand::Reg(_), .. })
        };
        a.escaped |= passes_stack.contains(&true) && program.iter().any(stores);
        a.solve();
        if a.escaped {
            a.at.iter_mut().for_each(|l| (l.stack, l.stack_numbers) = (u128::MAX, u128::MAX));
        }
        Live { at: a.at, passes_stack }
    }

    /// What is looked at from `pc` on, in the function of `pc`.
    pub(crate) fn at(&self, pc: Pc) -> LiveAt {
        self.at.get(pc.index()).copied().unwrap_or_default()
    }

    /// What the caller looks at while and after the call at `call`, which goes on at `ret`.
    pub(crate) fn across(&self, call: Pc, ret: Pc) -> LiveAt {
        let mut l = self.at(ret);
        // r0 to r5 do not survive.
        l.regs &= !0x3f;
        l.numbers &= !0x3f;
        if self.passes_stack.get(call.index()).copied().unwrap_or(true) {
            (l.stack, l.stack_numbers) = (u128::MAX, u128::MAX);
        }
        l
    }

    /// What the caller looks at while and after a callback of the helper that is called at `call`, and which goes on there.
    pub(crate) fn across_callback(&self, call: Pc) -> LiveAt {
        let mut l = self.at(call);
        if self.passes_stack.get(call.index()).copied().unwrap_or(true) {
            (l.stack, l.stack_numbers) = (u128::MAX, u128::MAX);
        }
        l
    }
}

fn granules(start: i32, len: u32) -> u128 {
    let (lo, hi) = ((start + 512).clamp(0, 512), (start + 512 + len as i32).clamp(0, 512));
    (lo / 4..(hi + 3) / 4).fold(0, |m, g| m | 1 << g)
}

/// Only whole granules.
fn covered(start: i32, len: u32) -> u128 {
    if start % 4 == 0 && len.is_multiple_of(4) { granules(start, len) } else { 0 }
}

impl Analysis<'_> {
    fn successors(&self, pc: Pc, insn: &Insn) -> impl Iterator<Item = Pc> + use<> {
        let next = pc.plus(insn.slots());
        let n = self.program.len();
        let (a, b) = match insn {
            Insn::Jump { target } => (Some(*target), None),
            Insn::JumpIf { target, .. } => (Some(next), Some(*target)),
            Insn::Exit => (None, None),
            _ => (Some(next), None),
        };
        a.into_iter().chain(b).filter(move |p| p.index() < n)
    }

    fn track_frame_pointers(&mut self) {
        // The entry's r1 and any argument of a callee may be a pointer; what is not set is never read.
        let mut start = [Fp::Num; Reg::COUNT];
        start[1..6].fill(Fp::Ptr);
        start[Reg::FP.index()] = Fp::At(0);
        let mut work: Vec<Pc> = self.program.funcs().iter().map(|f| f.start).collect();
        for pc in &work {
            self.fp[pc.index()] = Some(start);
        }
        while let Some(pc) = work.pop() {
            let (Some(insn), Some(mut regs)) = (self.program.insn(pc).copied(), self.fp[pc.index()]) else {
                continue;
            };
            self.flow_frame_pointer(pc, &insn, &mut regs);
            for next in self.successors(pc, &insn) {
                let slot = &mut self.fp[next.index()];
                let merged = slot.map_or(regs, |old| std::array::from_fn(|i| old[i].join(regs[i])));
                if *slot != Some(merged) {
                    *slot = Some(merged);
                    work.push(next);
                }
            }
        }
    }

    fn flow_frame_pointer(&mut self, pc: Pc, insn: &Insn, regs: &mut FpRegs) {
        let of = |regs: &FpRegs, o: &Operand| match o {
            Operand::Reg(r) => regs[r.index()],
            Operand::Imm(_) => Fp::Num,
        };
        match insn {
            Insn::Alu { width, op, dst, src } => {
                let (a, b) = (regs[dst.index()], of(regs, src));
                regs[dst.index()] = match (op, width, a, src) {
                    (AluOp::Mov, Width::W64, ..) => b,
                    (_, Width::W32, ..) => Fp::Num,
                    (AluOp::Add, Width::W64, Fp::At(c), Operand::Imm(k)) => shifted(c, i64::from(*k)),
                    (AluOp::Sub, Width::W64, Fp::At(c), Operand::Imm(k)) => shifted(c, -i64::from(*k)),
                    _ => match (a.in_frame() || b.in_frame(), a, b) {
                        (true, ..) => Fp::Maybe,
                        (false, Fp::Num, Fp::Num) => Fp::Num,
                        _ => Fp::Ptr,
                    },
                };
            }
            Insn::MovSx { dst, .. } => regs[dst.index()] = Fp::Num,
            Insn::LoadImm64 { dst, imm } => {
                regs[dst.index()] = if matches!(imm, Imm64::Value(_)) { Fp::Num } else { Fp::Ptr };
            }
            Insn::Load { dst, base, .. } => {
                // Pointers lie in stacks only; a callee's arguments may point into its caller's.
                let callee = self.program.func_at(pc).start != Pc(0);
                let stack = callee || self.escaped || regs[base.index()].in_frame();
                regs[dst.index()] = if stack { Fp::Ptr } else { Fp::Num };
            }
            Insn::Store { src, .. } => self.escaped |= of(regs, src).in_frame(),
            Insn::Atomic { src, op, fetch, .. } => {
                self.escaped |= regs[src.index()].in_frame();
                let old = if *op == AtomicOp::Cmpxchg { Reg::R0 } else { *src };
                if *fetch {
                    regs[old.index()] = Fp::Num;
                }
            }
            Insn::CallLocal { .. } => {
                let passed = regs[1..6].iter().any(|f| f.in_frame());
                regs[..6].fill(Fp::Num);
                // The callee may hand back what it was given.
                regs[0] = if passed { Fp::Maybe } else { Fp::Ptr };
            }
            Insn::CallHelper { .. } | Insn::CallReg { .. } => {
                regs[..6].fill(Fp::Num);
                regs[0] = Fp::Ptr;
            }
            Insn::Neg { .. } | Insn::Endian { .. } | Insn::Jump { .. } | Insn::JumpIf { .. } | Insn::Exit => {
            }
        }
    }

    fn fp_of(&self, pc: Pc, r: Reg) -> Fp {
        self.fp[pc.index()].map_or(Fp::Maybe, |regs| regs[r.index()])
    }

    fn passes_stack(&self, pc: Pc) -> bool {
        let passed = match self.program.insn(pc) {
            Some(Insn::CallLocal { .. }) => 1..6,
            Some(Insn::CallHelper { id }) if calls_back(*id) => CONTEXT.index()..CONTEXT.index() + 1,
            _ => return false,
        };
        self.fp[pc.index()].is_some_and(|regs| regs[passed].iter().any(|f| f.in_frame()))
    }

    fn solve(&mut self) {
        let order: Vec<(Pc, Insn)> = self.program.iter().map(|(pc, i)| (pc, *i)).collect();
        let mut changed = true;
        while changed {
            changed = false;
            for (pc, insn) in order.iter().rev() {
                let mut l = LiveAt::default();
                for next in self.successors(*pc, insn) {
                    l.join(&self.at[next.index()].clone());
                }
                self.before(*pc, insn, &mut l);
                changed |= self.at[pc.index()].join(&l);
            }
        }
    }

    /// Turns what is live after an instruction into what is live before it.
    fn before(&self, pc: Pc, insn: &Insn, l: &mut LiveAt) {
        match insn {
            Insn::Alu { op, dst, src, .. } => {
                let mut wanted = l.wants_number(*dst);
                if *op == AluOp::Mov {
                    l.kill(*dst);
                } else {
                    l.read(*dst);
                    // How far a pointer is moved is judged here and now.
                    let pointer = |r: Reg| self.fp_of(pc, r) != Fp::Num;
                    if pointer(*dst) || matches!(src, Operand::Reg(r) if pointer(*r)) {
                        l.read_number(*dst);
                        wanted = true;
                    }
                }
                self.read_operand(src, wanted, l);
            }
            Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => l.read(*dst),
            Insn::MovSx { dst, src, .. } => {
                let wanted = l.wants_number(*dst);
                l.kill(*dst);
                self.read_operand(&Operand::Reg(*src), wanted, l);
            }
            Insn::LoadImm64 { dst, .. } => l.kill(*dst),
            Insn::Load { size, dst, base, off, .. } => {
                let wanted = l.wants_number(*dst);
                l.kill(*dst);
                self.read_memory(pc, *base, *off, size.bytes(), wanted, l);
            }
            Insn::Store { size, base, off, src } => {
                let (whole, touched) = self.stored(pc, *base, *off, size.bytes());
                let wanted = l.stack_numbers & touched != 0;
                l.stack &= !whole;
                l.stack_numbers &= !whole;
                self.read_operand(src, wanted, l);
                l.read_number(*base);
            }
            Insn::Atomic { width, op, fetch, base, off, src } => {
                let old = if *op == AtomicOp::Cmpxchg { Reg::R0 } else { *src };
                if *fetch {
                    l.kill(old);
                }
                l.read(*src);
                l.read(old);
                let bytes = if *width == Width::W64 { 8 } else { 4 };
                self.read_memory(pc, *base, *off, bytes, false, l);
            }
            Insn::JumpIf { dst, src, .. } => {
                l.read_number(*dst);
                self.read_operand(src, true, l);
            }
            Insn::CallHelper { id } => self.before_helper(pc, *id, l),
            Insn::CallLocal { target } => self.before_call(pc, *target, l),
            Insn::Exit => {
                l.read(Reg::R0);
                if self.program.func_at(pc).start != Pc(0) {
                    l.read_number(Reg::R0);
                }
            }
            Insn::Jump { .. } | Insn::CallReg { .. } => {}
        }
    }

    fn read_operand(&self, src: &Operand, wanted: bool, l: &mut LiveAt) {
        if let Operand::Reg(r) = src {
            l.read(*r);
            if wanted {
                l.read_number(*r);
            }
        }
    }

    fn read_memory(&self, pc: Pc, base: Reg, off: i16, bytes: u32, wanted: bool, l: &mut LiveAt) {
        let touched = match self.fp_of(pc, base) {
            Fp::Num | Fp::Ptr => 0,
            Fp::At(c) => granules(i32::from(c) + i32::from(off), bytes),
            Fp::Maybe => u128::MAX,
        };
        l.stack |= touched;
        if wanted {
            l.stack_numbers |= touched;
        }
        l.read_number(base);
    }

    /// Granules that a store overwrites for sure, and those that it may touch.
    fn stored(&self, pc: Pc, base: Reg, off: i16, bytes: u32) -> (u128, u128) {
        match self.fp_of(pc, base) {
            Fp::Num | Fp::Ptr => (0, 0),
            Fp::At(c) => {
                let at = i32::from(c) + i32::from(off);
                (covered(at, bytes), granules(at, bytes))
            }
            Fp::Maybe => (0, u128::MAX),
        }
    }

    fn before_helper(&self, pc: Pc, id: u32, l: &mut LiveAt) {
        (0..6).filter_map(Reg::new).for_each(|r| l.kill(r));
        let Some(sig) = self.env.helper(id) else { return };
        let maps = self.program.maps();
        if self.passes_stack(pc) {
            (l.stack, l.stack_numbers) = (u128::MAX, u128::MAX);
        }
        for (r, arg) in (1..=5).filter_map(Reg::new).zip(&sig.args) {
            let bytes = match arg {
                // The laps of a loop are as many as its first argument says.
                ArgKind::Any | ArgKind::Scalar if !calls_back(id) => {
                    l.read(r);
                    continue;
                }
                ArgKind::Any | ArgKind::Scalar | ArgKind::Size | ArgKind::SizeOrZero | ArgKind::ConstSize => {
                    0
                }
                ArgKind::MapObject | ArgKind::Ctx | ArgKind::Record | ArgKind::SpinLock => 0,
                ArgKind::Callback | ArgKind::StackOrNull => 0,
                ArgKind::Mem | ArgKind::MemOrNull | ArgKind::UninitMem => 512,
                ArgKind::MapKey => maps.iter().map(|m| m.key_size).max().unwrap_or(0),
                ArgKind::MapValue => maps.iter().map(|m| m.value_size).max().unwrap_or(0),
            };
            self.read_memory(pc, r, 0, bytes.min(512), false, l);
        }
    }

    fn before_call(&self, pc: Pc, target: Pc, l: &mut LiveAt) {
        (0..6).filter_map(Reg::new).for_each(|r| l.kill(r));
        let callee = self.at[target.index()];
        l.regs |= callee.regs & 0x3e;
        l.numbers |= callee.numbers & 0x3e;
        if self.passes_stack(pc) {
            (l.stack, l.stack_numbers) = (u128::MAX, u128::MAX);
        }
    }
}

fn shifted(c: i16, by: i64) -> Fp {
    match i16::try_from(i64::from(c) + by) {
        Ok(at) if (-512..=512).contains(&at) => Fp::At(at),
        _ => Fp::Maybe,
    }
}
