//! [`Interp`]: a slow reference interpreter, for tests and tools. It follows RFC 9669 to the letter, checks every
//! access against the regions of its [`Memory`], and uses the addresses of translated modules ([`crate::wasm::layout`]),
//! so that what it computes can be compared with what Wasm computes.

mod laps;
mod maps;
mod memory;
mod ring;

use crate::isa::semantics::{alu, atomic, compare, endian, neg, operand, sign_extend};
use crate::isa::{AtomicOp, Imm64, Insn, MapIdx, Pc, Reg, Size, Width};
use crate::limits::{MAX_FRAMES, MAX_TAIL_CALLS, STACK_BYTES};
use crate::program::Program;
use crate::verify::helpers;
use crate::wasm::layout::{CTX_PTR, MAP_OBJECT_TAG, MAP_TAG, PRIVATE_TAG, STACK_TOP};
pub use maps::MapMemory;
pub use memory::Memory;
pub(crate) use memory::key_address;
use std::fmt;

/// Registers r0 to r10.
pub type Regs = [u64; Reg::COUNT];

/// A helper that is not built in (those are 1 to 3 and 12, the spin locks, ring buffers and callbacks): number and r1 to r5 in, r0 out; `None` for a number that it does not know.
pub type HelperFn<'a> = dyn FnMut(u32, [u64; 5], &mut Memory) -> Option<u64> + 'a;

/// Why a run ended without `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Access of `len` bytes at `addr`, which is not wholly inside one region.
    OutOfBounds {
        /// Address.
        addr: u64,
        /// Bytes.
        len: u32,
    },
    /// Write to a read-only map.
    ReadOnly(MapIdx),
    /// Atomic access at an address that is not a multiple of its size.
    Misaligned {
        /// Address.
        addr: u64,
    },
    /// The step budget is used up.
    Budget,
    /// Execution ran past the end of a function.
    FallsThrough,
    /// More than eight frames.
    CallDepth,
    /// No helper of that number.
    UnknownHelper(u32),
    /// r1 of a map helper is no map object.
    NotMap(u64),
    /// r2 of a helper that calls back is no function.
    NotFunction(u64),
    /// There is no spin lock at that address, or it is held already, or not held.
    BadLock(u64),
    /// There is no ring-buffer record at that address, or it was given back.
    BadRecord(u64),
    /// A spin lock or a ring-buffer record is still held at the end.
    Held,
}

/// A fault and the instruction that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The instruction, or the slot where one was expected.
    pub pc: Pc,
    /// What happened.
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}: ", self.pc)?;
        match self.kind {
            FaultKind::OutOfBounds { addr, len } => {
                write!(f, "access of {len} bytes at {addr:#x}, outside every region")
            }
            FaultKind::ReadOnly(map) => write!(f, "write to map {}, which is read-only", map.0),
            FaultKind::Misaligned { addr } => write!(f, "atomic access at {addr:#x}, which is not aligned"),
            FaultKind::Budget => f.write_str("step budget used up"),
            FaultKind::FallsThrough => f.write_str("ran past the end of the function"),
            FaultKind::CallDepth => write!(f, "more than {MAX_FRAMES} frames"),
            FaultKind::UnknownHelper(id) => write!(f, "there is no helper {id}"),
            FaultKind::NotMap(value) => write!(f, "r1 is {value:#x}, which is no map object"),
            FaultKind::NotFunction(value) => write!(f, "r2 is {value:#x}, which is no function"),
            FaultKind::BadLock(addr) => write!(f, "the spin lock at {addr:#x} cannot be taken or given back"),
            FaultKind::BadRecord(addr) => write!(f, "no record is held at {addr:#x}"),
            FaultKind::Held => f.write_str("a spin lock or a record is still held at the end"),
        }
    }
}

impl std::error::Error for Fault {}

type Result<T> = std::result::Result<T, FaultKind>;

/// The interpreter: a program, its memory and its helpers. Maps keep their contents between runs.
pub struct Interp<'a> {
    program: &'a Program,
    memory: Memory,
    helpers: Box<HelperFn<'a>>,
    budget: u64,
}

/// What a run changes besides memory.
struct Machine {
    regs: Regs,
    pc: Pc,
    frames: Vec<Frame>,
    tail_calls: u32,
}

/// An active function.
struct Frame {
    end: Pc,
    /// Where the caller goes on, and its r0 to r9.
    back: Pc,
    saved: [u64; Reg::COUNT - 1],
    callback: bool,
    /// Of the helper that it called, and that is not done.
    laps: laps::Laps,
}

/// What an instruction does to the flow of control.
enum Flow {
    Next,
    To(Pc),
    Done(u64),
}

impl<'a> Interp<'a> {
    /// An interpreter with that context, empty maps (global data as initialised), no helpers besides the map helpers, and a
    /// budget of a million steps.
    pub fn new(program: &'a Program, ctx: Vec<u8>) -> Interp<'a> {
        let memory = Memory::new(program.maps(), ctx);
        Interp { program, memory, helpers: Box::new(|_, _, _| None), budget: 1_000_000 }
    }
    /// Sets the most instructions that a run may execute.
    pub fn budget(mut self, steps: u64) -> Interp<'a> {
        self.budget = steps;
        self
    }
    /// Sets the helpers beyond the map helpers.
    pub fn helpers(
        mut self,
        helpers: impl FnMut(u32, [u64; 5], &mut Memory) -> Option<u64> + 'a,
    ) -> Interp<'a> {
        self.helpers = Box::new(helpers);
        self
    }
    /// The memory as the last run left it.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
    /// The memory, to prepare maps and the context.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Runs the program with r1 at the context (0 if that is empty) and its size in r2; gives r0.
    ///
    /// # Errors
    /// The fault that ended the run.
    pub fn run(&mut self) -> std::result::Result<u64, Fault> {
        self.run_hooked(|_, _, _| ())
    }

    /// [`run`](Interp::run), with `hook` called before each instruction.
    ///
    /// # Errors
    /// The fault that ended the run.
    pub fn run_hooked(
        &mut self,
        mut hook: impl FnMut(Pc, &Regs, &Memory),
    ) -> std::result::Result<u64, Fault> {
        let mut machine = Machine { regs: [0; Reg::COUNT], pc: Pc(0), frames: Vec::new(), tail_calls: 0 };
        let end = self.program.func_at(Pc(0)).end;
        let entry =
            Frame { end, back: Pc(0), saved: Default::default(), callback: false, laps: Default::default() };
        machine.frames.push(entry);
        let len = self.memory.ctx().len() as u64;
        machine.regs[1] = if len == 0 { 0 } else { CTX_PTR };
        machine.regs[2] = len;
        machine.regs[10] = u64::from(PRIVATE_TAG) << 32 | u64::from(STACK_TOP);
        self.memory.set_frames(1);
        for _ in 0..self.budget {
            let pc = machine.pc;
            let fault = |kind| Fault { pc, kind };
            let insn = self.fetch(&machine).ok_or(fault(FaultKind::FallsThrough))?;
            hook(pc, &machine.regs, &self.memory);
            match self.step(&mut machine, &insn).map_err(fault)? {
                Flow::Next => machine.pc = pc.plus(insn.slots()),
                Flow::To(target) => machine.pc = target,
                Flow::Done(_) if self.memory.holds_something() => return Err(fault(FaultKind::Held)),
                Flow::Done(r0) => return Ok(r0),
            }
        }
        Err(Fault { pc: machine.pc, kind: FaultKind::Budget })
    }

    fn fetch(&self, machine: &Machine) -> Option<Insn> {
        let inside = machine.frames.last().is_some_and(|frame| machine.pc < frame.end);
        if inside { self.program.insn(machine.pc).copied() } else { None }
    }

    fn step(&mut self, m: &mut Machine, insn: &Insn) -> Result<Flow> {
        let regs = &mut m.regs;
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                regs[dst.index()] = alu(width, op, regs[dst.index()], operand(src, regs));
            }
            Insn::Neg { width, dst } => regs[dst.index()] = neg(width, regs[dst.index()]),
            Insn::MovSx { width, bits, dst, src } => {
                regs[dst.index()] = sign_extend(width, bits, regs[src.index()])
            }
            Insn::Endian { op, bits, dst } => regs[dst.index()] = endian(op, bits, regs[dst.index()]),
            Insn::LoadImm64 { dst, imm } => regs[dst.index()] = wide(imm),
            Insn::Load { size, sign, dst, base, off } => {
                let value = self.memory.read(address(regs, base, off), size)?;
                let bits = (size.bytes() * 8) as u8;
                regs[dst.index()] = if sign { sign_extend(Width::W64, bits, value) } else { value };
            }
            Insn::Store { size, base, off, src } => {
                self.memory.write(address(regs, base, off), size, operand(src, regs))?;
            }
            Insn::Atomic { width, op, fetch, base, off, src } => {
                let addr = address(regs, base, off);
                self.atomic(regs, (width, op, fetch), addr, src)?;
            }
            Insn::Jump { target } => return Ok(Flow::To(target)),
            Insn::JumpIf { width, cond, dst, src, target } => {
                if compare(width, cond, regs[dst.index()], operand(src, regs)) {
                    return Ok(Flow::To(target));
                }
            }
            Insn::CallHelper { id: helpers::TAIL_CALL } => return self.tail_call(m),
            Insn::CallHelper { id: helpers::LOOP } => return self.lap_of_loop(m),
            Insn::CallHelper { id: helpers::FOR_EACH_MAP_ELEM } => return self.lap_of_map(m),
            Insn::CallHelper { id } => regs[0] = self.helper(id, regs)?,
            Insn::CallReg { reg } => regs[0] = self.helper(regs[reg.index()] as u32, regs)?,
            Insn::CallLocal { target } => return self.enter(m, target),
            Insn::Exit => return Ok(self.leave(m)),
        }
        Ok(Flow::Next)
    }

    fn atomic(&mut self, regs: &mut Regs, what: (Width, AtomicOp, bool), addr: u64, src: Reg) -> Result<()> {
        let (width, op, fetch) = what;
        let size = if width == Width::W32 { Size::W } else { Size::Dw };
        if !addr.is_multiple_of(size.bytes().into()) {
            return Err(FaultKind::Misaligned { addr });
        }
        let old = self.memory.read(addr, size)?;
        self.memory.write(addr, size, atomic(width, op, old, regs[src.index()], regs[0]))?;
        match op {
            AtomicOp::Cmpxchg => regs[0] = old,
            AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor | AtomicOp::Xchg if fetch => {
                regs[src.index()] = old;
            }
            AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor | AtomicOp::Xchg => {}
        }
        Ok(())
    }

    /// Goes on in the program of that slot in place of this function, if there is one and the run has tail calls left.
    fn tail_call(&mut self, m: &mut Machine) -> Result<Flow> {
        const ENOENT: i64 = -2;
        let map = ((m.regs[2] >> 32) as u32).checked_sub(MAP_OBJECT_TAG).and_then(|k| u16::try_from(k).ok());
        let map = map.ok_or(FaultKind::NotMap(m.regs[2]))?;
        let slot = self.program.tail_target(MapIdx(map), m.regs[3] as u32);
        let target = slot.filter(|_| m.tail_calls < MAX_TAIL_CALLS);
        let Some((target, frame)) = target.zip(m.frames.last_mut()) else {
            m.regs[0] = ENOENT as u64;
            return Ok(Flow::Next);
        };
        frame.end = self.program.func_at(target).end;
        m.tail_calls += 1;
        m.regs[2] = self.memory.ctx().len() as u64;
        Ok(Flow::To(target))
    }

    /// Enters a function one frame further down the stack.
    fn enter(&mut self, m: &mut Machine, target: Pc) -> Result<Flow> {
        let mut saved = [0; Reg::COUNT - 1];
        saved.copy_from_slice(&m.regs[..Reg::COUNT - 1]);
        let (end, back) = (self.program.func_at(target).end, m.pc.plus(1));
        self.push(m, Frame { end, back, saved, callback: false, laps: Default::default() })?;
        Ok(Flow::To(target))
    }

    fn push(&mut self, m: &mut Machine, frame: Frame) -> Result<()> {
        if m.frames.len() as u32 == MAX_FRAMES {
            return Err(FaultKind::CallDepth);
        }
        m.frames.push(frame);
        m.regs[10] = m.regs[10].wrapping_sub(STACK_BYTES.into());
        self.memory.set_frames(m.frames.len() as u32);
        Ok(())
    }

    /// Leaves a function; r0 stays, but that of a callback, which says whether to stop.
    fn leave(&mut self, m: &mut Machine) -> Flow {
        let frame = m.frames.pop();
        let Some(frame) = frame.filter(|_| !m.frames.is_empty()) else { return Flow::Done(m.regs[0]) };
        let kept = if frame.callback { 0 } else { 6 };
        if let Some(caller) = m.frames.last_mut().filter(|_| frame.callback) {
            caller.laps.stop = m.regs[0] != 0;
        }
        m.regs[kept..10].copy_from_slice(&frame.saved[kept..]);
        m.regs[10] = m.regs[10].wrapping_add(STACK_BYTES.into());
        self.memory.set_frames(m.frames.len() as u32);
        Flow::To(frame.back)
    }

    fn helper(&mut self, id: u32, regs: &Regs) -> Result<u64> {
        let args = [regs[1], regs[2], regs[3], regs[4], regs[5]];
        match id {
            1 => self.memory.map_lookup(args[0], args[1]),
            2 => self.memory.map_update(args[0], args[1], args[2], args[3]),
            3 => self.memory.map_delete(args[0], args[1]),
            helpers::SPIN_LOCK => self.memory.spin_lock(args[0], true),
            helpers::SPIN_UNLOCK => self.memory.spin_lock(args[0], false),
            helpers::MAP_LOOKUP_PERCPU => self.memory.map_lookup_percpu(args[0], args[1], args[2]),
            130 => self.memory.ring_output(args[0], args[1], args[2], args[3]),
            131 => self.memory.ring_reserve(args[0], args[1], args[2]),
            132 => self.memory.ring_commit(args[0], true),
            133 => self.memory.ring_commit(args[0], false),
            134 => self.memory.ring_query(args[0], args[1]),
            _ => (self.helpers)(id, args, &mut self.memory).ok_or(FaultKind::UnknownHelper(id)),
        }
    }
}

fn address(regs: &Regs, base: Reg, off: i16) -> u64 {
    regs[base.index()].wrapping_add(i64::from(off) as u64)
}

/// What a 64-bit immediate load puts into the register. A function is its slot.
fn wide(imm: Imm64) -> u64 {
    let tagged = |tag: u32, map: MapIdx| u64::from(tag + u32::from(map.0)) << 32;
    match imm {
        Imm64::Value(value) => value,
        Imm64::Map(map) => tagged(MAP_OBJECT_TAG, map),
        Imm64::MapValue { map, offset } => tagged(MAP_TAG, map) | u64::from(offset),
        Imm64::Func(pc) => pc.0.into(),
    }
}

#[cfg(all(test, feature = "asm"))]
mod tests;
