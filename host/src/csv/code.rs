//! [`compile`]: the program of an imported table.
//!
//! Find the segment of the size by binary search, without a branch; then look at the rows that it lists, in the order of
//! the file, until one matches whose pair NCCL offers. In C it would be
//!
//! ```c
//! for (i = 0; i < len; i++) {
//!     struct row *row = first + i;
//!     if (row->min <= n_bytes && n_bytes <= row->max && (row->nodes == -1 || row->nodes == ctx->n_nodes) && ..
//!         && ctx->available >> row->pair & 1) { decide; return RF_SUBMIT; }
//! }
//! return RF_KEEP;
//! ```

use super::row::FUNCS;
use super::table::{Index, KEEP, LAST_START, ROW, SEGMENT, Table, at};
use ringfence_guest::abi::CollContext;
use ringfence_translator::isa::{AluOp, Cond, Imm64, Insn, Operand, Pc, Reg, Size, Width};
use std::mem::offset_of;

/// Machine code with what an object says about it.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) bytes: Vec<u8>,
    /// Byte offsets of `lddw` instructions that hold an offset in the table.
    pub(super) relocs: Vec<u64>,
    /// Byte offset, line of the configuration, what the code from there on does.
    pub(super) lines: Vec<(u32, u32, String)>,
}

/// A place that jumps go to.
#[derive(Clone, Copy)]
struct Label(usize);

/// Instructions with labels for targets.
#[derive(Default)]
struct Builder {
    insns: Vec<Insn>,
    /// Slot of each label, once it is known.
    labels: Vec<Option<Pc>>,
    slots: u32,
    /// Slots of loads of an address in the table.
    tables: Vec<u32>,
    lines: Vec<(u32, u32, String)>,
}

const CTX: Reg = reg(9);
const BYTES: Reg = Reg::R0;
const NODES: Reg = Reg::R1;
const RANKS: Reg = Reg::R2;
/// A row or segment.
const HERE: Reg = Reg::R3;
const A: Reg = Reg::R4;
const B: Reg = Reg::R5;
const I: Reg = reg(6);
const LEN: Reg = reg(7);
const BASE: Reg = reg(8);

const fn reg(n: u8) -> Reg {
    match Reg::new(n) {
        Some(reg) => reg,
        None => panic!("a number of a register"),
    }
}

macro_rules! field {
    ($name:ident) => {
        offset_of!(CollContext, $name) as i16
    };
}

/// What the program does where no row applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMatch {
    /// The decision so far stays.
    Keep,
    /// One channel is asked for, as the example tuner does.
    OneChannel,
}

/// Compiles the program.
///
/// # Errors
/// As text, if an instruction cannot be encoded, which a table within its limits does not cause.
pub(super) fn compile(table: &Table, no_match: NoMatch) -> Result<Code, String> {
    let mut b = Builder::default();
    let none = b.label();
    b.note(line_of(table), "the call");
    b.mov(CTX, Reg::R1);
    if !table.indices.is_empty() {
        b.find(table, none);
    }
    b.set(none);
    b.note(line_of(table), "no row applies");
    b.no_match(no_match);
    b.finish()
}

/// The line that stands for the table as a whole: that of the first row of the collective with the most.
fn line_of(table: &Table) -> u32 {
    table.indices.first().map_or(1, |index| index.line)
}

impl Builder {
    fn push(&mut self, insn: Insn) {
        self.slots += insn.slots();
        self.insns.push(insn);
    }
    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }
    fn set(&mut self, label: Label) {
        self.labels[label.0] = Some(Pc(self.slots));
    }
    fn note(&mut self, line: u32, text: impl Into<String>) {
        self.lines.push((self.slots * 8, line, text.into()));
    }
    fn mov(&mut self, dst: Reg, src: Reg) {
        self.alu(AluOp::Mov, dst, Operand::Reg(src));
    }
    fn alu(&mut self, op: AluOp, dst: Reg, src: Operand) {
        self.push(Insn::Alu { width: Width::W64, op, dst, src });
    }
    fn load(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        self.push(Insn::Load { size, sign: false, dst, base, off });
    }
    fn store(&mut self, off: i16, src: Operand) {
        self.push(Insn::Store { size: Size::W, base: CTX, off, src });
    }
    fn jump(&mut self, to: Label) {
        self.push(Insn::Jump { target: Pc(to.0 as u32) });
    }
    fn jump_if(&mut self, width: Width, cond: Cond, dst: Reg, src: Operand, to: Label) {
        self.push(Insn::JumpIf { width, cond, dst, src, target: Pc(to.0 as u32) });
    }
    /// The address of a byte of the table.
    fn table(&mut self, dst: Reg, offset: usize) {
        self.tables.push(self.slots);
        self.push(Insn::LoadImm64 { dst, imm: Imm64::Value(offset as u64) });
    }

    /// All but the end.
    fn find(&mut self, table: &Table, none: Label) {
        self.note(line_of(table), "which collective is it?");
        self.load(Size::Dw, BYTES, CTX, field!(n_bytes));
        self.load(Size::W, A, CTX, field!(func));
        self.load(Size::W, NODES, CTX, field!(n_nodes));
        self.load(Size::W, RANKS, CTX, field!(n_ranks));
        // The size for the search, in which all from LAST_START on are one.
        let small = self.label();
        self.mov(B, BYTES);
        self.jump_if(Width::W64, Cond::SGe, B, Operand::Imm(0), small);
        self.push(Insn::LoadImm64 { dst: B, imm: Imm64::Value(LAST_START) });
        self.set(small);
        let starts: Vec<Label> = table.indices.iter().map(|_| self.label()).collect();
        for (index, start) in table.indices.iter().zip(&starts) {
            self.jump_if(Width::W32, Cond::Eq, A, Operand::Imm(index.func.into()), *start);
        }
        self.jump(none);
        let found = self.label();
        for (index, start) in table.indices.iter().zip(&starts) {
            self.set(*start);
            self.search(index, found);
        }
        self.set(found);
        self.rows(table, none);
    }

    /// Leaves the list of the size's segment in `BASE` (bytes from the first row) and `LEN` (rows).
    fn search(&mut self, index: &Index, found: Label) {
        let name = FUNCS.get(usize::from(index.func)).copied().unwrap_or("?");
        self.note(index.line, format!("{name}: {} rows; which can match this size?", index.rows));
        self.table(BASE, index.at);
        let mut step = index.len / 2;
        while step > 0 {
            let bytes = (step * SEGMENT) as i32;
            // `start - 1 - size` is negative if the segment begins at or below the size.
            self.mov(HERE, BASE);
            self.alu(AluOp::Add, HERE, Operand::Imm(bytes));
            self.load(Size::Dw, A, HERE, at::START);
            self.alu(AluOp::Sub, A, Operand::Reg(B));
            self.alu(AluOp::Arsh, A, Operand::Imm(63));
            self.alu(AluOp::And, A, Operand::Imm(bytes));
            self.alu(AluOp::Add, BASE, Operand::Reg(A));
            step /= 2;
        }
        self.load(Size::W, LEN, BASE, at::LEN);
        self.load(Size::W, BASE, BASE, at::FIRST);
        self.jump(found);
    }

    /// Looks at the rows of the list.
    fn rows(&mut self, table: &Table, none: Label) {
        let (line, next) = (line_of(table), self.label());
        let last = (table.bytes.len() - table.rows_at - table.longest * ROW) as i32;
        // Both hold for every segment; so says the data, which the verifier does not look into.
        self.note(line, "the list of rows lies in the table");
        self.jump_if(Width::W64, Cond::Gt, LEN, Operand::Imm(table.longest as i32), none);
        self.jump_if(Width::W64, Cond::Gt, BASE, Operand::Imm(last), none);
        self.table(I, table.rows_at);
        self.alu(AluOp::Add, BASE, Operand::Reg(I));
        self.alu(AluOp::Mov, I, Operand::Imm(0));
        self.set(next);
        self.note(line, "next row");
        // The counter goes up by one, and the row's place is computed from it: so the loop has an invariant that says how
        // long it can be, however long the list.
        self.jump_if(Width::W64, Cond::Ge, I, Operand::Reg(LEN), none);
        self.mov(HERE, I);
        self.alu(AluOp::Mul, HERE, Operand::Imm(ROW as i32));
        self.alu(AluOp::Add, HERE, Operand::Reg(BASE));
        self.alu(AluOp::Add, I, Operand::Imm(1));
        self.note(line, "minBytes <= size <= maxBytes");
        self.load(Size::Dw, A, HERE, at::MIN);
        self.jump_if(Width::W64, Cond::Gt, A, Operand::Reg(BYTES), next);
        self.load(Size::Dw, A, HERE, at::MAX);
        self.jump_if(Width::W64, Cond::Lt, A, Operand::Reg(BYTES), next);
        self.note(line, "nNodes and nRanks are -1, or the communicator's");
        self.any_or(at::NODES, NODES, next);
        self.any_or(at::RANKS, RANKS, next);
        let more = [
            (table.uses_pipe_ops, at::PIPE_OPS, field!(num_pipe_ops), "numPipeOps is -1, or the call's"),
            (table.uses_reg_buff, at::REG_BUFF, field!(reg_buff), "regBuff is -1, or the call's"),
        ];
        for (_, row, ctx, text) in more.into_iter().filter(|(used, ..)| *used) {
            self.note(line, text);
            self.load(Size::W, B, CTX, ctx);
            self.any_or(row, B, next);
        }
        self.take(line, next);
    }

    /// On to the next row unless the field of this one is -1 or `what`.
    fn any_or(&mut self, field: i16, what: Reg, next: Label) {
        let fits = self.label();
        self.load(Size::W, A, HERE, field);
        self.jump_if(Width::W32, Cond::Eq, A, Operand::Reg(what), fits);
        self.jump_if(Width::W32, Cond::Ne, A, Operand::Imm(-1), next);
        self.set(fits);
    }

    /// Takes this row if NCCL offers its pair.
    fn take(&mut self, line: u32, next: Label) {
        self.note(line, "does NCCL offer algorithm/protocol?");
        self.load(Size::W, B, CTX, field!(available));
        self.load(Size::B, A, HERE, at::PAIR);
        self.alu(AluOp::Rsh, B, Operand::Reg(A));
        self.alu(AluOp::And, B, Operand::Imm(1));
        self.jump_if(Width::W64, Cond::Eq, B, Operand::Imm(0), next);
        self.note(line, "take algorithm/protocol and channels");
        self.load(Size::B, A, HERE, at::ALGO);
        self.store(field!(decision_algo), Operand::Reg(A));
        self.load(Size::B, A, HERE, at::PROTO);
        self.store(field!(decision_proto), Operand::Reg(A));
        self.load(Size::B, A, HERE, at::CHANNELS);
        let keep = self.label();
        self.jump_if(Width::W64, Cond::Eq, A, Operand::Imm(KEEP.into()), keep);
        self.store(field!(decision_channels), Operand::Reg(A));
        self.set(keep);
        self.leave(0);
    }

    fn no_match(&mut self, no_match: NoMatch) {
        match no_match {
            NoMatch::Keep => self.leave(1),
            NoMatch::OneChannel => {
                self.store(field!(decision_channels), Operand::Imm(1));
                self.leave(0);
            }
        }
    }

    fn leave(&mut self, r0: i32) {
        self.alu(AluOp::Mov, Reg::R0, Operand::Imm(r0));
        self.push(Insn::Exit);
    }

    fn finish(self) -> Result<Code, String> {
        let place = |label: Pc| {
            let place = self.labels.get(label.index()).copied().flatten();
            place.ok_or_else(|| format!("label {label} is nowhere"))
        };
        let mut code = Code { lines: self.lines, ..Code::default() };
        let mut pc = Pc(0);
        for mut insn in self.insns {
            match &mut insn {
                Insn::Jump { target } | Insn::JumpIf { target, .. } => *target = place(*target)?,
                _ => {}
            }
            code.bytes.extend(insn.encode(pc)?);
            pc = pc.plus(insn.slots());
        }
        code.relocs = self.tables.iter().map(|slot| u64::from(*slot) * 8).collect();
        Ok(code)
    }
}
