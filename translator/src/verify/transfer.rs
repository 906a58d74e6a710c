//! [`Machine::step`]: what one instruction demands of a state and does to it.
//!
//! A `match` without a wildcard arm: a new instruction does not build until its rule is written.

use super::Machine;
use super::domain::{Rel, Scalar};
use super::env::RankLabel;
use super::explain::{Duty, refuse, refuse_reg};
use super::fact::{Access, CallFact};
use super::mem::{Act, Ask, Place};
use super::rejection::RejectKind as K;
use super::state::State;
use super::value::{Home, Num, Ptr, Value};
use crate::isa::{AluOp, AtomicOp, Endian, Imm64, Insn, Operand, Pc, Reg, Size, Width};

/// Pointers may not be moved further than this from their object (Linux `BPF_MAX_VAR_OFF`).
pub(crate) const MAX_OFFSET: i64 = 1 << 29;

/// Where a path goes on.
#[derive(Debug)]
pub(crate) enum Flow {
    /// Here, with the state that was stepped.
    Next(Pc),
    /// Two ways, of which at least one is possible: the state that was stepped belongs to `fall`.
    Branch { taken: Option<(Pc, State)>, fall: Option<Pc> },
    /// The program ends.
    Exit,
}

/// What a step found out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) flow: Flow,
    pub(crate) access: Option<Access>,
    pub(crate) call: Option<CallFact>,
    /// Bytes of the context that may be read.
    pub(crate) ctx_read: Option<(i64, i64)>,
}

impl Outcome {
    pub(crate) fn next(pc: Pc) -> Outcome {
        Outcome { flow: Flow::Next(pc), access: None, call: None, ctx_read: None }
    }

    pub(crate) fn reads(&mut self, place: &Place) {
        if place.home == Home::Ctx {
            let (lo, hi) = place.reach();
            self.ctx_read = Some(self.ctx_read.map_or((lo, hi), |(l, h)| (l.min(lo), h.max(hi))));
        }
    }
}

impl Machine<'_> {
    /// Runs the instruction at `pc` on `state`, or says what it does wrong.
    pub(crate) fn step(&self, state: &mut State, pc: Pc) -> Duty<Outcome> {
        let Some(insn) = self.program.insn(pc) else {
            return refuse(K::Internal, format!("no instruction starts at {pc}"));
        };
        let next = pc.plus(insn.slots());
        let mut out = Outcome::next(next);
        match *insn {
            Insn::Alu { width, op, dst, src } => self.alu(state, width, op, dst, src)?,
            Insn::Neg { width, dst } => self.unary(state, dst, dst, "negation", |s| s.neg(width))?,
            Insn::MovSx { width, bits, dst, src } => {
                self.unary(state, dst, src, "sign extension", |s| s.sign_extend(bits.into(), width))?;
            }
            Insn::Endian { op, bits, dst } => self.unary(state, dst, dst, "a byte swap", |s| match op {
                Endian::ToLe => s.zero_extend(bits.into()),
                Endian::ToBe | Endian::Swap => s.swap_bytes(bits.into()),
            })?,
            Insn::LoadImm64 { dst, imm } => self.load_imm64(state, dst, imm)?,
            Insn::Load { size, sign, dst, base, off } => {
                let ask = Ask { base, off, size: size.bytes(), act: Act::Read };
                self.load_insn(state, dst, sign, ask, &mut out)?;
            }
            Insn::Store { size, base, off, src } => {
                let ask = Ask { base, off, size: size.bytes(), act: Act::Write };
                self.store_insn(state, src, ask, &mut out)?;
            }
            Insn::Atomic { width, op, fetch, base, off, src } => {
                let size = if width == Width::W64 { 8 } else { 4 };
                let ask = Ask { base, off, size, act: Act::Atomic };
                self.atomic(state, op, fetch, src, ask, &mut out)?;
            }
            Insn::Jump { target } => out.flow = Flow::Next(target),
            Insn::JumpIf { width, cond, dst, src, target } => {
                let other = self.readable_operand(state, src)?;
                out.flow = self.branch(state, width, cond, dst, (src, other), target, next)?;
            }
            Insn::CallHelper { id } => out.flow = self.call_helper(state, (pc, next), id, &mut out)?,
            Insn::CallReg { .. } => {
                return refuse(K::Unsupported, "calls through a register are not offered");
            }
            Insn::CallLocal { target } => out.flow = self.call_local(state, pc, target, next)?,
            Insn::Exit => out.flow = self.exit(state)?,
        }
        self.stays_inside(pc, next, &out.flow)?;
        Ok(out)
    }

    /// Falling off a function's end is refused; a return goes to where a call has checked it.
    fn stays_inside(&self, pc: Pc, next: Pc, flow: &Flow) -> Duty {
        let falls = match flow {
            Flow::Next(to) => *to == next,
            Flow::Branch { fall, .. } => fall.is_some(),
            Flow::Exit => false,
        };
        let func = self.program.func_at(pc);
        if falls && next >= func.end {
            return refuse(K::FallsThrough, format!("execution runs past the end of {}", func.name));
        }
        Ok(())
    }

    /// The value of a register that must have been set.
    pub(crate) fn read(&self, state: &State, r: Reg) -> Duty<Value> {
        match state.reg(r) {
            Value::Uninit => refuse_reg(K::UninitRegister, r, format!("{r} is read before it is set")),
            v => Ok(v),
        }
    }

    fn readable_operand(&self, state: &State, o: Operand) -> Duty<Value> {
        match o {
            Operand::Reg(r) => self.read(state, r),
            Operand::Imm(k) => Ok(Value::constant(i64::from(k) as u64)),
        }
    }

    fn writable(&self, dst: Reg) -> Duty {
        if dst == Reg::FP {
            return refuse_reg(K::FramePointer, dst, "r10 is the frame pointer and cannot be changed");
        }
        Ok(())
    }

    fn number(&self, state: &State, r: Reg, what: &str) -> Duty<Num> {
        match self.read(state, r)? {
            Value::Num(n) => Ok(n),
            v => refuse_reg(K::PointerArith, r, format!("{what} of {r}, which is {}", self.describe(&v))),
        }
    }

    fn unary(&self, state: &mut State, dst: Reg, src: Reg, what: &str, f: impl Fn(Scalar) -> Scalar) -> Duty {
        let n = self.number(state, src, what)?;
        self.writable(dst)?;
        let s = f(n.s);
        if dst != src && s == n.s {
            let linked = state.linkable(src);
            state.set(dst, linked);
        } else {
            state.set(dst, Value::num(s, n.label));
        }
        Ok(())
    }

    fn load_imm64(&self, state: &mut State, dst: Reg, imm: Imm64) -> Duty {
        self.writable(dst)?;
        let v = match imm {
            Imm64::Value(x) => Value::constant(x),
            Imm64::Map(m) => {
                self.map(m)?;
                Value::MapObject(m)
            }
            Imm64::MapValue { map, offset } => {
                self.map(map)?;
                Value::pointer(Home::Map(map), offset.into())
            }
            Imm64::Func(pc) => Value::Func(pc),
        };
        state.set(dst, v);
        Ok(())
    }

    fn alu(&self, state: &mut State, width: Width, op: AluOp, dst: Reg, src: Operand) -> Duty {
        let b = self.readable_operand(state, src)?;
        if op == AluOp::Mov {
            self.writable(dst)?;
            return self.mov(state, width, dst, src, b);
        }
        let a = self.read(state, dst)?;
        self.writable(dst)?;
        let out = match (a, b) {
            (Value::Num(x), Value::Num(y)) => {
                let zeroed = src == Operand::Reg(dst) && matches!(op, AluOp::Sub | AluOp::Xor);
                let out = Num::new(x.s.alu(op, y.s, width), x.label.max(y.label));
                match moved_by(width, op, x.s, y.s) {
                    _ if zeroed => Value::constant(0),
                    // Two numbers at a known distance.
                    _ if op == AluOp::Sub
                        && x.id != 0
                        && x.id == y.id
                        && (width == Width::W32 || !(x.half || y.half)) =>
                    {
                        let apart = Scalar::constant(x.delta.wrapping_sub(y.delta) as u64);
                        let s = if width == Width::W32 { apart.zero_extend(32) } else { apart };
                        Value::num(s, RankLabel::Uniform)
                    }
                    // Still linked, at a distance.
                    Some((k, half)) if x.id != 0 && out.s.as_const().is_none() => {
                        let (delta, half) = (x.delta.wrapping_add(k), x.half || half);
                        Value::Num(Num { id: x.id, delta, half, ..out })
                    }
                    _ => Value::Num(out),
                }
            }
            _ => self.pointer_alu(width, op, dst, src, (a, b))?,
        };
        state.set(dst, out);
        Ok(())
    }

    fn mov(&self, state: &mut State, width: Width, dst: Reg, src: Operand, v: Value) -> Duty {
        let Operand::Reg(reg) = src else {
            let out = match (width, v) {
                (Width::W32, Value::Num(n)) => Value::num(n.s.zero_extend(32), n.label),
                _ => v,
            };
            state.set(dst, out);
            return Ok(());
        };
        let out = match (width, v) {
            (Width::W64, Value::Num(_)) => state.linkable(reg),
            (Width::W64, _) => v,
            (Width::W32, Value::Num(n)) if n.s.fits_half() => state.linkable(reg),
            (Width::W32, Value::Num(n)) => Value::num(n.s.zero_extend(32), n.label),
            (Width::W32, _) => {
                let what = self.describe(&v);
                return refuse_reg(K::PointerArith, reg, format!("32-bit copy of {reg}, which is {what}"));
            }
        };
        state.set(dst, out);
        Ok(())
    }

    /// Arithmetic where at least one side is a pointer.
    fn pointer_alu(
        &self,
        width: Width,
        op: AluOp,
        dst: Reg,
        src: Operand,
        ab: (Value, Value),
    ) -> Duty<Value> {
        let reg = match (ab.0.is_pointer(), src) {
            (false, Operand::Reg(r)) => r,
            _ => dst,
        };
        let by = match src {
            Operand::Reg(r) if r != reg => r,
            _ => dst,
        };
        let wrong = |what: &str| {
            let (a, b) = (self.describe(&ab.0), self.describe(&ab.1));
            refuse_reg(K::PointerArith, reg, format!("{what} (left is {a}, right is {b})"))
        };
        if width == Width::W32 {
            return wrong("32-bit arithmetic on a pointer");
        }
        match (op, ab.0, ab.1) {
            (AluOp::Add, Value::Ptr(p), Value::Num(n)) | (AluOp::Add, Value::Num(n), Value::Ptr(p)) => {
                self.moved(p, AluOp::Add, n.s, (reg, by))
            }
            (AluOp::Sub, Value::Ptr(p), Value::Num(n)) => self.moved(p, AluOp::Sub, n.s, (reg, by)),
            (AluOp::Sub, Value::Ptr(p), Value::Ptr(q)) if p.home == q.home && !p.nullable && !q.nullable => {
                let known = p.id == q.id && within(p.off) && within(q.off);
                // The distance of two values of a map hangs on where this rank's map keeps them.
                Ok(if known {
                    Value::num(p.off.alu(AluOp::Sub, q.off, Width::W64), RankLabel::Uniform)
                } else {
                    Value::num(Scalar::unknown(), RankLabel::RankLocal)
                })
            }
            (AluOp::Add | AluOp::Sub, ..) => wrong("not a pointer plus or minus a number"),
            _ => wrong("this operation is not allowed on pointers"),
        }
    }

    /// Moves a pointer by a number; with the registers of both.
    fn moved(&self, p: Ptr, op: AluOp, by: Scalar, (reg, number): (Reg, Reg)) -> Duty<Value> {
        if p.nullable {
            let what = self.describe(&Value::Ptr(p));
            let duty = refuse_reg(K::PointerArith, reg, format!("arithmetic on {reg}, which is {what}"));
            return super::explain::advise(duty, "check the result of the look-up for null before moving it");
        }
        let off = p.off.alu(op, by, Width::W64);
        if off.smin() < -MAX_OFFSET || off.as_const().is_some_and(|x| x as i64 > MAX_OFFSET) {
            let by = super::why::number_words(by);
            let why = format!("{reg} moved by {by}: its offset must stay within {MAX_OFFSET} bytes");
            return refuse_reg(K::PointerArith, number, why);
        }
        Ok(Value::Ptr(Ptr { off, ..p }))
    }

    fn load_insn(&self, state: &mut State, dst: Reg, sign: bool, ask: Ask, out: &mut Outcome) -> Duty {
        let place = self.place(state, ask)?;
        self.writable(dst)?;
        let mut v = self.load(state, &place, ask)?;
        if let Value::Num(n) = v
            && sign
        {
            v = Value::num(n.s.sign_extend(8 * ask.size, Width::W64), n.label);
        }
        out.access = Some(place.access(state.current()));
        out.reads(&place);
        state.set(dst, v);
        Ok(())
    }

    fn store_insn(&self, state: &mut State, src: Operand, ask: Ask, out: &mut Outcome) -> Duty {
        let mut v = self.readable_operand(state, src)?;
        let place = self.place(state, ask)?;
        let reg = match src {
            Operand::Reg(r) => Some(r),
            Operand::Imm(_) => None,
        };
        if let (Home::Stack(_), Some(r)) = (place.home, reg)
            && (ask.size >= Size::W.bytes() || fits(&v, ask.size))
        {
            v = state.linkable(r);
        }
        self.store(state, &place, &v, reg, ask)?;
        out.access = Some(place.access(state.current()));
        Ok(())
    }

    fn atomic(
        &self,
        state: &mut State,
        op: AtomicOp,
        fetch: bool,
        src: Reg,
        ask: Ask,
        out: &mut Outcome,
    ) -> Duty {
        let operand = self.atomic_operand(state, src)?;
        let wanted = if op == AtomicOp::Cmpxchg { Some(self.atomic_operand(state, Reg::R0)?) } else { None };
        let label = operand.label.max(wanted.map_or(RankLabel::Uniform, |n| n.label));
        let place = self.place(state, ask)?;
        let Value::Num(old) = self.load(state, &place, ask)? else {
            return refuse_reg(K::PointerLeak, ask.base, "an atomic on a spilled pointer");
        };
        let new = Num::new(after_atomic(op, old.s, operand.s, ask.size), label.max(old.label));
        self.store(state, &place, &Value::Num(new), None, ask)?;
        if fetch {
            let dst = if op == AtomicOp::Cmpxchg { Reg::R0 } else { src };
            self.writable(dst)?;
            // What was there, as a load gives it: links with other copies of it hold.
            state.set(dst, Value::Num(Num { label: label.max(old.label), ..old }));
        }
        out.access = Some(place.access(state.current()));
        out.reads(&place);
        Ok(())
    }

    fn atomic_operand(&self, state: &State, r: Reg) -> Duty<Num> {
        match self.read(state, r)? {
            Value::Num(n) => Ok(n),
            v => {
                let why = format!("{r} is {}; an atomic takes numbers", self.describe(&v));
                refuse_reg(K::PointerLeak, r, why)
            }
        }
    }
}

/// Is it a number that a store of that many bytes keeps whole?
fn fits(v: &Value, bytes: u32) -> bool {
    matches!(v, Value::Num(n) if n.s.zero_extend(8 * bytes) == n.s)
}

/// What an atomic operation leaves in memory. The operations on 4 bytes take and leave the low halves.
fn after_atomic(op: AtomicOp, old: Scalar, operand: Scalar, bytes: u32) -> Scalar {
    let width = if bytes == 8 { Width::W64 } else { Width::W32 };
    let alu = |op| old.alu(op, operand, width);
    match op {
        AtomicOp::Add => alu(AluOp::Add),
        AtomicOp::Or => alu(AluOp::Or),
        AtomicOp::And => alu(AluOp::And),
        AtomicOp::Xor => alu(AluOp::Xor),
        AtomicOp::Xchg => operand.zero_extend(8 * bytes),
        // Stored or not.
        AtomicOp::Cmpxchg => old.join(operand.zero_extend(8 * bytes)),
    }
}

/// The constant that an operation adds, if that is all it does, and whether it may be so for the low half alone: in 32 bits
/// something may wrap or be cut off.
fn moved_by(width: Width, op: AluOp, x: Scalar, y: Scalar) -> Option<(i64, bool)> {
    let k = y.as_const()? as i64;
    let k = if width == Width::W32 { i64::from(k as i32) } else { k };
    let k = match op {
        AluOp::Add => k,
        AluOp::Sub => k.wrapping_neg(),
        _ => return None,
    };
    if width == Width::W64 {
        return Some((k, false));
    }
    let half = 0..=i64::from(u32::MAX);
    let stays = |x: u64| half.contains(&(x as i64 + k));
    Some((k, !(x.fits_half() && stays(x.umin()) && stays(x.umax()))))
}

/// Close enough to its object for addresses to order as offsets do.
pub(crate) fn within(off: Scalar) -> bool {
    off.smin() >= -MAX_OFFSET && off.smax() <= MAX_OFFSET
}

/// Both sides of a condition between offsets or numbers.
pub(crate) fn assume(
    a: Scalar,
    b: Scalar,
    cond: crate::isa::Cond,
    truth: bool,
    w: Width,
) -> Option<(Scalar, Scalar)> {
    match Rel::from_cond(cond, truth) {
        (rel, false) => Scalar::assume(a, b, rel, w),
        (rel, true) => Scalar::assume(b, a, rel, w).map(|(x, y)| (y, x)),
    }
}
