//! [`Lower`]: one instruction to Wasm. [`alu`](super::alu) and [`memory`](super::memory) hold its arithmetic and accesses.

use super::imports::{Imports, Input};
use super::layout::{MAP_OBJECT_TAG, MAP_TAG, PRIVATE_TAG, STACK_BASE, STACK_TOP};
use super::locals::{Locals, Slot};
use crate::error::Error;
use crate::isa::{Cond, Imm64, Insn, MapIdx, Operand, Pc, Reg, Width};
use crate::limits::STACK_BYTES;
use crate::verify::helpers::{TAIL_CALL, calls_back};
use wasm_encoder::{BlockType, InstructionSink};

/// Registers that a function called by another receives, in order.
pub(super) const CALL_PARAMS: [Reg; 6] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::FP];

/// Opcode of `local.tee`; that of `local.set` is one less, with the same operand.
const LOCAL_TEE: u8 = 0x22;

/// Emits the code of one function.
pub(super) struct Lower<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) imports: &'a Imports,
    /// The function is the entry: its r10 is a constant.
    pub(super) entry: bool,
    pub(super) locals: Locals,
    pub(super) code: Vec<u8>,
    /// The latest `local.set`: where it starts and ends in `code`, and the local.
    last_set: (usize, usize, u32),
    /// (offset in `code`, instruction), ascending.
    pub(super) pcs: Vec<(u32, Pc)>,
}

impl<'a> Lower<'a> {
    pub(super) fn new(input: &'a Input<'a>, imports: &'a Imports, entry: bool) -> Lower<'a> {
        let locals = Locals::new(if entry { &CALL_PARAMS[..2] } else { &CALL_PARAMS });
        Lower { input, imports, entry, locals, code: Vec::new(), last_set: (0, 0, 0), pcs: Vec::new() }
    }

    pub(super) fn ops(&mut self) -> InstructionSink<'_> {
        InstructionSink::new(&mut self.code)
    }

    /// Pushes a register.
    pub(super) fn get(&mut self, reg: Reg) {
        if self.entry && reg == Reg::FP {
            self.ops().i64_const(pointer(PRIVATE_TAG, STACK_TOP));
        } else {
            self.get_slot(Slot::Reg(reg));
        }
    }

    /// Pops into a register.
    pub(super) fn set(&mut self, reg: Reg) {
        if self.entry && reg == Reg::FP {
            // Decode lets no instruction write r10 but a call's frame set-up; an unverified one is ignored.
            self.ops().drop();
        } else {
            self.set_slot(Slot::Reg(reg));
        }
    }

    pub(super) fn get_slot(&mut self, slot: Slot) {
        let index = self.locals.index(slot);
        let (start, end, local) = self.last_set;
        if end > start && end == self.code.len() && local == index {
            // The value was set by the instruction just before: it stays on the stack.
            self.code[start] = LOCAL_TEE;
            self.last_set = (0, 0, 0);
        } else {
            self.ops().local_get(index);
        }
    }

    pub(super) fn set_slot(&mut self, slot: Slot) {
        let index = self.locals.index(slot);
        let start = self.code.len();
        self.ops().local_set(index);
        self.last_set = (start, self.code.len(), index);
    }

    pub(super) fn tee_slot(&mut self, slot: Slot) {
        let index = self.locals.index(slot);
        self.ops().local_tee(index);
    }

    /// Pushes an operand as i64; an immediate is sign-extended.
    pub(super) fn operand64(&mut self, src: Operand) {
        match src {
            Operand::Reg(r) => self.get(r),
            Operand::Imm(i) => {
                self.ops().i64_const(i64::from(i));
            }
        }
    }

    /// Pushes the low half of a register.
    pub(super) fn get32(&mut self, reg: Reg) {
        self.get(reg);
        self.ops().i32_wrap_i64();
    }

    /// Pushes an operand as i32.
    pub(super) fn operand32(&mut self, src: Operand) {
        match src {
            Operand::Reg(r) => self.get32(r),
            Operand::Imm(i) => {
                self.ops().i32_const(i);
            }
        }
    }

    /// Pops an i32 into a register, the upper half zero.
    pub(super) fn set32(&mut self, reg: Reg) {
        self.ops().i64_extend_i32_u();
        self.set(reg);
    }

    /// Emits the instructions from `start` to `end`, none of which ends a block.
    pub(super) fn insns(&mut self, start: Pc, end: Pc) -> Result<(), Error> {
        let mut pc = start;
        while pc < end {
            let Some(insn) = self.input.program.insn(pc) else { break };
            self.mark(pc);
            self.insn(pc, insn)?;
            pc = pc.plus(insn.slots());
        }
        Ok(())
    }

    fn insn(&mut self, pc: Pc, insn: &Insn) -> Result<(), Error> {
        match *insn {
            Insn::Alu { width, op, dst, src } => self.alu(width, op, dst, src),
            Insn::Neg { width, dst } => self.neg(width, dst),
            Insn::MovSx { width, bits, dst, src } => self.movsx(width, bits, dst, src),
            Insn::Endian { op, bits, dst } => self.endian(op, bits, dst),
            Insn::LoadImm64 { dst, imm } => self.load_imm(dst, imm),
            Insn::Load { size, sign, dst, base, off } => self.load(pc, size, sign, dst, (base, off)),
            Insn::Store { size, base, off, src } => self.store(pc, size, (base, off), src),
            Insn::Atomic { width, op, fetch, base, off, src } => {
                self.atomic(pc, width, op, fetch, (base, off), src);
            }
            Insn::CallHelper { id } if calls_back(id) => self.call_back(pc, id)?,
            Insn::CallHelper { id } => self.call_helper(pc, id),
            Insn::CallReg { reg } => self.call_reg(reg),
            Insn::CallLocal { target } => self.call_local(target),
            Insn::Jump { .. } | Insn::JumpIf { .. } | Insn::Exit => {
                debug_assert!(false, "{insn:?} ends a block");
            }
        }
        Ok(())
    }

    /// Remembers that the code from here on is of `pc`.
    fn mark(&mut self, pc: Pc) {
        self.pcs.push((self.code.len() as u32, pc));
    }

    fn load_imm(&mut self, dst: Reg, imm: Imm64) {
        let value = match imm {
            Imm64::Value(v) => v as i64,
            Imm64::Map(map) => pointer(MAP_OBJECT_TAG + u32::from(map.0), 0),
            Imm64::MapValue { map, offset } => pointer(map_tag(map), offset),
            // No address: a number that tells functions apart.
            Imm64::Func(start) => start.0.into(),
        };
        self.ops().i64_const(value);
        self.set(dst);
    }

    /// `exit`; as the function's last code it leaves the result on the stack.
    pub(super) fn exit(&mut self, pc: Pc, last: bool) {
        self.mark(pc);
        self.get(Reg::R0);
        if !last {
            self.ops().return_();
        }
    }

    /// Code that cannot be reached (proved), or follows a function's last instruction.
    pub(super) fn stop(&mut self, pc: Pc) {
        self.mark(pc);
        self.ops().unreachable();
    }

    /// Leaves a number for the dispatch block.
    pub(super) fn select(&mut self, number: u32) {
        self.ops().i32_const(number as i32);
        self.set_slot(Slot::Select);
    }

    /// Branches to the label of the number that was left.
    pub(super) fn dispatch(&mut self, labels: &[u32]) {
        self.get_slot(Slot::Select);
        match labels.split_last() {
            Some((last, rest)) => self.ops().br_table(rest.iter().copied(), *last),
            None => self.ops().unreachable(),
        };
    }

    /// Pushes whether the conditional jump at `pc` is taken, or if `invert`, not taken.
    pub(super) fn condition(&mut self, pc: Pc, invert: bool) -> Result<(), Error> {
        self.mark(pc);
        let Some(&Insn::JumpIf { width, cond, dst, src, .. }) = self.input.program.insn(pc) else {
            debug_assert!(false, "no conditional jump at {pc}");
            self.ops().unreachable();
            return Ok(());
        };
        let cond = if invert { inverse(cond) } else { Test::Is(cond) };
        match width {
            Width::W64 => self.condition64(cond, dst, src),
            Width::W32 => self.condition32(cond, dst, src),
        }
        Ok(())
    }

    fn condition64(&mut self, test: Test, dst: Reg, src: Operand) {
        self.get(dst);
        if test == Test::Is(Cond::Eq) && src == Operand::Imm(0) {
            self.ops().i64_eqz();
            return;
        }
        self.operand64(src);
        let mut ops = self.ops();
        match test {
            Test::NoneSet => ops.i64_and().i64_eqz(),
            Test::Is(Cond::Set) => ops.i64_and().i64_const(0).i64_ne(),
            Test::Is(Cond::Eq) => ops.i64_eq(),
            Test::Is(Cond::Ne) => ops.i64_ne(),
            Test::Is(Cond::Gt) => ops.i64_gt_u(),
            Test::Is(Cond::Ge) => ops.i64_ge_u(),
            Test::Is(Cond::Lt) => ops.i64_lt_u(),
            Test::Is(Cond::Le) => ops.i64_le_u(),
            Test::Is(Cond::SGt) => ops.i64_gt_s(),
            Test::Is(Cond::SGe) => ops.i64_ge_s(),
            Test::Is(Cond::SLt) => ops.i64_lt_s(),
            Test::Is(Cond::SLe) => ops.i64_le_s(),
        };
    }

    fn condition32(&mut self, test: Test, dst: Reg, src: Operand) {
        self.get32(dst);
        match (test, src) {
            (Test::Is(Cond::Eq), Operand::Imm(0)) => {
                self.ops().i32_eqz();
                return;
            }
            // The value is its own condition.
            (Test::Is(Cond::Ne), Operand::Imm(0)) => return,
            _ => {}
        }
        self.operand32(src);
        let mut ops = self.ops();
        match test {
            Test::NoneSet => ops.i32_and().i32_eqz(),
            Test::Is(Cond::Set) => ops.i32_and(),
            Test::Is(Cond::Eq) => ops.i32_eq(),
            Test::Is(Cond::Ne) => ops.i32_ne(),
            Test::Is(Cond::Gt) => ops.i32_gt_u(),
            Test::Is(Cond::Ge) => ops.i32_ge_u(),
            Test::Is(Cond::Lt) => ops.i32_lt_u(),
            Test::Is(Cond::Le) => ops.i32_le_u(),
            Test::Is(Cond::SGt) => ops.i32_gt_s(),
            Test::Is(Cond::SGe) => ops.i32_ge_s(),
            Test::Is(Cond::SLt) => ops.i32_lt_s(),
            Test::Is(Cond::SLe) => ops.i32_le_s(),
        };
    }

    fn call_helper(&mut self, pc: Pc, id: u32) {
        if let Some(map) = self.input.array_lookup(pc, id) {
            self.array_lookup(pc, map);
            return;
        }
        if id == TAIL_CALL {
            return self.tail_call(pc);
        }
        self.call_import(id);
        self.set(Reg::R0);
    }

    /// Calls an imported helper; its result stays on the stack.
    fn call_import(&mut self, id: u32) {
        let arity = self.imports.helpers.get(&id).copied().unwrap_or(0);
        for reg in &CALL_PARAMS[..arity as usize] {
            self.get(*reg);
        }
        match self.imports.helper(id) {
            Some(index) => self.ops().call(index),
            None => self.ops().unreachable(),
        };
    }

    /// `callx`: compares the number with that of each helper on offer. No verified program has it.
    fn call_reg(&mut self, reg: Reg) {
        let ids: Vec<u32> = self.imports.helpers.keys().copied().collect();
        self.ops().block(BlockType::Empty);
        for id in ids {
            self.get(reg);
            self.ops().i64_const(i64::from(id)).i64_eq().if_(BlockType::Empty);
            self.call_import(id);
            self.set(Reg::R0);
            self.ops().br(1).end();
        }
        self.ops().unreachable().end();
    }

    fn call_local(&mut self, target: Pc) {
        let funcs = self.input.program.funcs();
        let Ok(callee) = funcs.binary_search_by_key(&target, |f| f.start) else {
            self.ops().unreachable();
            return;
        };
        if self.input.facts.is_none() && !self.entry {
            // The verifier bounds the depth of calls; without it the frames end here.
            let lowest = STACK_BASE + 2 * STACK_BYTES;
            self.get(Reg::FP);
            self.ops().i64_const(pointer(PRIVATE_TAG, lowest)).i64_lt_u().if_(BlockType::Empty);
            self.ops().unreachable().end();
        }
        for reg in &CALL_PARAMS[..5] {
            self.get(*reg);
        }
        if self.entry {
            self.ops().i64_const(pointer(PRIVATE_TAG, STACK_TOP - STACK_BYTES));
        } else {
            self.get(Reg::FP);
            self.ops().i64_const(i64::from(STACK_BYTES)).i64_sub();
        }
        let index = self.imports.func(callee);
        self.ops().call(index);
        self.set(Reg::R0);
    }
}

/// A condition that Wasm can test; `Set` alone has no inverse among the jumps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Test {
    Is(Cond),
    /// `dst & src == 0`
    NoneSet,
}

fn inverse(cond: Cond) -> Test {
    Test::Is(match cond {
        Cond::Set => return Test::NoneSet,
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
        Cond::Gt => Cond::Le,
        Cond::Le => Cond::Gt,
        Cond::Ge => Cond::Lt,
        Cond::Lt => Cond::Ge,
        Cond::SGt => Cond::SLe,
        Cond::SLe => Cond::SGt,
        Cond::SGe => Cond::SLt,
        Cond::SLt => Cond::SGe,
    })
}

/// Tag of a map's memory.
pub(super) fn map_tag(map: MapIdx) -> u32 {
    MAP_TAG + u32::from(map.0)
}

/// A pointer, or a map object, as Wasm writes constants.
pub(super) fn pointer(tag: u32, offset: u32) -> i64 {
    (u64::from(tag) << 32 | u64::from(offset)) as i64
}
