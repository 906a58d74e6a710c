//! [`Op`]: the opcode table of RFC 9669, one row per instruction form. Decoding, encoding, the text form and the
//! tests' coverage list all derive from [`TABLE`]; nothing else in the crate knows an opcode byte.
//!
//! A row says for each field of a slot whether the form uses it, needs one value there, or leaves it unused (it
//! must then be zero). Forms that share an opcode byte differ in the value that they need.

use super::insn::{AluOp, AtomicOp, Cond, Endian, Imm64, Insn, Operand, Size, Width};
use std::fmt;
use std::sync::LazyLock;

/// What a form wants in a field of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Must be zero.
    Unused,
    /// Carries an operand.
    Used,
    /// Selects the form.
    Is(i32),
}

/// What a 64-bit immediate load refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WideForm {
    /// A number.
    Value,
    /// A map object.
    Map,
    /// A byte of a map's first value.
    MapValue,
    /// A function.
    Func,
}

/// An instruction form: an [`Insn`] without its registers, offsets and immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Form {
    /// Two-operand arithmetic; `reg` tells the second operand's kind.
    Alu { width: Width, op: AluOp, reg: bool },
    /// Negation.
    Neg { width: Width },
    /// Move with sign extension from `bits`.
    MovSx { width: Width, bits: u8 },
    /// Byte-order conversion.
    Endian { op: Endian, bits: u8 },
    /// `lddw`.
    Wide(WideForm),
    /// Load.
    Load { size: Size, sign: bool },
    /// Store; `reg` tells the kind of what is stored.
    Store { size: Size, reg: bool },
    /// Atomic read-modify-write.
    Atomic { width: Width, op: AtomicOp, fetch: bool },
    /// `ja`, or `gotol` if `long`.
    Jump { long: bool },
    /// Conditional jump; `reg` tells the second operand's kind.
    JumpIf { width: Width, cond: Cond, reg: bool },
    /// Call of a helper by number.
    CallHelper,
    /// `callx`: call of a helper whose number is in a register.
    CallReg,
    /// bpf-to-bpf call.
    CallLocal,
    /// Return.
    Exit,
    /// Defined somewhere, refused here; the text says what it is.
    Refused(&'static str),
}

/// Conformance group of RFC 9669, 2.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Group {
    Base32,
    Base64,
    Divmul32,
    Divmul64,
    Atomic32,
    Atomic64,
    /// Not in RFC 9669: the group `callx` of bpf_conformance.
    Callx,
    /// Outside the groups that Ringfence implements.
    None,
}

/// A row of the opcode table.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub(crate) code: u8,
    pub(crate) form: Form,
    pub(crate) dst: Field,
    pub(crate) src: Field,
    pub(crate) off: Field,
    pub(crate) imm: Field,
}

use Field::{Is, Unused, Used};
use Width::{W32, W64};

const fn row(code: u8, form: Form, dst: Field, src: Field, off: Field, imm: Field) -> Op {
    Op { code, form, dst, src, off, imm }
}

/// Both widths and both operand kinds of an ALU operation, whose offset must hold `off`.
const fn alu(op: AluOp, off: Field) -> [Op; 4] {
    let code = alu_code(op);
    // Moves with sign extension, which the offset selects, take registers alone.
    let imm_off = if matches!(op, AluOp::Mov) { Unused } else { off };
    [
        row(code | 0x04, Form::Alu { width: W32, op, reg: false }, Used, Unused, imm_off, Used),
        row(code | 0x0c, Form::Alu { width: W32, op, reg: true }, Used, Used, off, Unused),
        row(code | 0x07, Form::Alu { width: W64, op, reg: false }, Used, Unused, imm_off, Used),
        row(code | 0x0f, Form::Alu { width: W64, op, reg: true }, Used, Used, off, Unused),
    ]
}

const fn alu_code(op: AluOp) -> u8 {
    match op {
        AluOp::Add => 0x00,
        AluOp::Sub => 0x10,
        AluOp::Mul => 0x20,
        AluOp::Div | AluOp::SDiv => 0x30,
        AluOp::Or => 0x40,
        AluOp::And => 0x50,
        AluOp::Lsh => 0x60,
        AluOp::Rsh => 0x70,
        AluOp::Mod | AluOp::SMod => 0x90,
        AluOp::Xor => 0xa0,
        AluOp::Mov => 0xb0,
        AluOp::Arsh => 0xc0,
    }
}

const fn mov_sx(width: Width, bits: u8) -> Op {
    let class = if matches!(width, W64) { 0x0f } else { 0x0c };
    row(0xb0 | class, Form::MovSx { width, bits }, Used, Used, Is(bits as i32), Unused)
}

const fn endian(code: u8, op: Endian) -> [Op; 3] {
    const fn one(code: u8, op: Endian, bits: u8) -> Op {
        row(code, Form::Endian { op, bits }, Used, Unused, Unused, Is(bits as i32))
    }
    [one(code, op, 16), one(code, op, 32), one(code, op, 64)]
}

const fn size_code(size: Size) -> u8 {
    match size {
        Size::W => 0x00,
        Size::H => 0x08,
        Size::B => 0x10,
        Size::Dw => 0x18,
    }
}

/// Load, store of an immediate and store of a register, of one size.
const fn mem(size: Size) -> [Op; 3] {
    let code = 0x60 | size_code(size);
    [
        row(code | 1, Form::Load { size, sign: false }, Used, Used, Used, Unused),
        row(code | 2, Form::Store { size, reg: false }, Used, Unused, Used, Used),
        row(code | 3, Form::Store { size, reg: true }, Used, Used, Used, Unused),
    ]
}

const fn load_sx(size: Size) -> Op {
    row(0x81 | size_code(size), Form::Load { size, sign: true }, Used, Used, Used, Unused)
}

/// Both widths of an atomic operation, selected by the immediate.
const fn atomic(op: AtomicOp, fetch: bool, imm: i32) -> [Op; 2] {
    [
        row(0xc3, Form::Atomic { width: W32, op, fetch }, Used, Used, Used, Is(imm)),
        row(0xdb, Form::Atomic { width: W64, op, fetch }, Used, Used, Used, Is(imm)),
    ]
}

/// Both widths and both operand kinds of a conditional jump.
const fn jump(cond: Cond) -> [Op; 4] {
    let code = cond_code(cond);
    [
        row(code | 0x05, Form::JumpIf { width: W64, cond, reg: false }, Used, Unused, Used, Used),
        row(code | 0x0d, Form::JumpIf { width: W64, cond, reg: true }, Used, Used, Used, Unused),
        row(code | 0x06, Form::JumpIf { width: W32, cond, reg: false }, Used, Unused, Used, Used),
        row(code | 0x0e, Form::JumpIf { width: W32, cond, reg: true }, Used, Used, Used, Unused),
    ]
}

const fn cond_code(cond: Cond) -> u8 {
    match cond {
        Cond::Eq => 0x10,
        Cond::Gt => 0x20,
        Cond::Ge => 0x30,
        Cond::Set => 0x40,
        Cond::Ne => 0x50,
        Cond::SGt => 0x60,
        Cond::SGe => 0x70,
        Cond::Lt => 0xa0,
        Cond::Le => 0xb0,
        Cond::SLt => 0xc0,
        Cond::SLe => 0xd0,
    }
}

const fn wide(src: i32, form: Form) -> Op {
    row(0x18, form, Used, Is(src), Unused, Used)
}

const fn refused(code: u8, what: &'static str) -> Op {
    row(code, Form::Refused(what), Used, Used, Used, Used)
}

const ABS: &str = "deprecated packet access (BPF_ABS)";
const IND: &str = "deprecated packet access (BPF_IND)";

/// All forms, in families. Of two rows with one [`Form`] the first is what encoding writes.
static TABLE: &[&[Op]] = &[
    &alu(AluOp::Add, Unused),
    &alu(AluOp::Sub, Unused),
    &alu(AluOp::Mul, Unused),
    &alu(AluOp::Div, Is(0)),
    &alu(AluOp::SDiv, Is(1)),
    &alu(AluOp::Mod, Is(0)),
    &alu(AluOp::SMod, Is(1)),
    &alu(AluOp::Or, Unused),
    &alu(AluOp::And, Unused),
    &alu(AluOp::Xor, Unused),
    &alu(AluOp::Lsh, Unused),
    &alu(AluOp::Rsh, Unused),
    &alu(AluOp::Arsh, Unused),
    &alu(AluOp::Mov, Is(0)),
    &[mov_sx(W32, 8), mov_sx(W32, 16), mov_sx(W64, 8), mov_sx(W64, 16), mov_sx(W64, 32)],
    &[
        row(0x84, Form::Neg { width: W32 }, Used, Unused, Unused, Unused),
        row(0x87, Form::Neg { width: W64 }, Used, Unused, Unused, Unused),
    ],
    &endian(0xd4, Endian::ToLe),
    &endian(0xdc, Endian::ToBe),
    &endian(0xd7, Endian::Swap),
    &[
        wide(0, Form::Wide(WideForm::Value)),
        wide(1, Form::Wide(WideForm::Map)),
        wide(2, Form::Wide(WideForm::MapValue)),
        wide(3, Form::Refused("address of a platform variable (lddw with src 3)")),
        wide(4, Form::Wide(WideForm::Func)),
        wide(5, Form::Wide(WideForm::Map)),
        wide(6, Form::Wide(WideForm::MapValue)),
    ],
    &mem(Size::B),
    &mem(Size::H),
    &mem(Size::W),
    &mem(Size::Dw),
    &[load_sx(Size::B), load_sx(Size::H), load_sx(Size::W)],
    &atomic(AtomicOp::Add, false, 0x00),
    &atomic(AtomicOp::Add, true, 0x01),
    &atomic(AtomicOp::Or, false, 0x40),
    &atomic(AtomicOp::Or, true, 0x41),
    &atomic(AtomicOp::And, false, 0x50),
    &atomic(AtomicOp::And, true, 0x51),
    &atomic(AtomicOp::Xor, false, 0xa0),
    &atomic(AtomicOp::Xor, true, 0xa1),
    &atomic(AtomicOp::Xchg, true, 0xe1),
    &atomic(AtomicOp::Cmpxchg, true, 0xf1),
    &[
        row(0x05, Form::Jump { long: false }, Unused, Unused, Used, Unused),
        row(0x06, Form::Jump { long: true }, Unused, Unused, Unused, Used),
    ],
    &jump(Cond::Eq),
    &jump(Cond::Ne),
    &jump(Cond::Gt),
    &jump(Cond::Ge),
    &jump(Cond::Lt),
    &jump(Cond::Le),
    &jump(Cond::SGt),
    &jump(Cond::SGe),
    &jump(Cond::SLt),
    &jump(Cond::SLe),
    &jump(Cond::Set),
    &[
        row(0x85, Form::CallHelper, Unused, Is(0), Unused, Used),
        row(0x85, Form::CallLocal, Unused, Is(1), Unused, Used),
        row(0x85, Form::Refused("call of a helper by BTF id (call with src 2)"), Used, Is(2), Used, Used),
        row(0x8d, Form::CallReg, Used, Unused, Unused, Unused),
        row(0x95, Form::Exit, Unused, Unused, Unused, Unused),
    ],
    &[
        refused(0x20, ABS),
        refused(0x28, ABS),
        refused(0x30, ABS),
        refused(0x40, IND),
        refused(0x48, IND),
        refused(0x50, IND),
        refused(0xe5, "bounded jump (may_goto)"),
    ],
];

/// Rows by opcode byte.
static BY_CODE: LazyLock<Vec<Vec<&'static Op>>> = LazyLock::new(|| {
    let mut rows = vec![Vec::new(); 256];
    Op::all().for_each(|op| rows[usize::from(op.code)].push(op));
    rows
});

impl Op {
    /// All rows.
    pub fn all() -> impl Iterator<Item = &'static Op> {
        TABLE.iter().copied().flatten()
    }
    /// Rows with that opcode byte; none if RFC 9669 does not define it.
    pub(crate) fn with_code(code: u8) -> &'static [&'static Op] {
        &BY_CODE[usize::from(code)]
    }
    /// The row that encoding writes for a form. `None` for [`Form::Refused`].
    pub(crate) fn for_form(form: Form) -> Option<&'static Op> {
        if matches!(form, Form::Refused(_)) {
            return None;
        }
        Op::all().find(|op| op.form == form)
    }
    /// The form.
    pub fn form(&self) -> Form {
        self.form
    }
    /// The opcode byte.
    pub fn code(&self) -> u8 {
        self.code
    }
    /// What the immediate field holds.
    pub fn imm(&self) -> Field {
        self.imm
    }
    /// The conformance group.
    pub fn group(&self) -> Group {
        let by_width = |width, narrow, full| if width == W32 { narrow } else { full };
        match self.form {
            Form::Alu {
                width, op: AluOp::Mul | AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, ..
            } => by_width(width, Group::Divmul32, Group::Divmul64),
            Form::Alu { width, .. }
            | Form::Neg { width }
            | Form::MovSx { width, .. }
            | Form::JumpIf { width, .. } => by_width(width, Group::Base32, Group::Base64),
            Form::Endian { op: Endian::Swap, .. } | Form::Endian { bits: 64, .. } | Form::Wide(_) => {
                Group::Base64
            }
            // Sign extension to 64 bits is what makes MEMSX part of base64.
            Form::Load { sign: true, .. } => Group::Base64,
            Form::Load { size: Size::Dw, .. } | Form::Store { size: Size::Dw, .. } => Group::Base64,
            Form::Atomic { width, .. } => by_width(width, Group::Atomic32, Group::Atomic64),
            Form::Endian { .. } | Form::Load { .. } | Form::Store { .. } | Form::Jump { .. } => Group::Base32,
            Form::CallHelper | Form::CallLocal | Form::Exit => Group::Base32,
            Form::CallReg => Group::Callx,
            Form::Refused(_) => Group::None,
        }
    }
}

impl Form {
    /// The form of an instruction. A jump counts as the short one.
    pub fn of(insn: &Insn) -> Form {
        let is_reg = |operand: Operand| matches!(operand, Operand::Reg(_));
        match *insn {
            Insn::Alu { width, op, src, .. } => Form::Alu { width, op, reg: is_reg(src) },
            Insn::Neg { width, .. } => Form::Neg { width },
            Insn::MovSx { width, bits, .. } => Form::MovSx { width, bits },
            Insn::Endian { op, bits, .. } => Form::Endian { op, bits },
            Insn::LoadImm64 { imm, .. } => Form::Wide(WideForm::of(imm)),
            Insn::Load { size, sign, .. } => Form::Load { size, sign },
            Insn::Store { size, src, .. } => Form::Store { size, reg: is_reg(src) },
            Insn::Atomic { width, op, fetch, .. } => Form::Atomic { width, op, fetch },
            Insn::Jump { .. } => Form::Jump { long: false },
            Insn::JumpIf { width, cond, src, .. } => Form::JumpIf { width, cond, reg: is_reg(src) },
            Insn::CallHelper { .. } => Form::CallHelper,
            Insn::CallReg { .. } => Form::CallReg,
            Insn::CallLocal { .. } => Form::CallLocal,
            Insn::Exit => Form::Exit,
        }
    }
}

impl WideForm {
    fn of(imm: Imm64) -> WideForm {
        match imm {
            Imm64::Value(_) => WideForm::Value,
            Imm64::Map(_) => WideForm::Map,
            Imm64::MapValue { .. } => WideForm::MapValue,
            Imm64::Func(_) => WideForm::Func,
        }
    }
}

impl AluOp {
    /// All operations.
    pub const ALL: [AluOp; 14] = {
        use AluOp::*;
        [Add, Sub, Mul, Div, SDiv, Mod, SMod, Or, And, Xor, Lsh, Rsh, Arsh, Mov]
    };
    /// Assignment operator of the text form, and mnemonic.
    pub const fn symbol(self) -> (&'static str, &'static str) {
        match self {
            AluOp::Add => ("+=", "add"),
            AluOp::Sub => ("-=", "sub"),
            AluOp::Mul => ("*=", "mul"),
            AluOp::Div => ("/=", "div"),
            AluOp::SDiv => ("s/=", "sdiv"),
            AluOp::Mod => ("%=", "mod"),
            AluOp::SMod => ("s%=", "smod"),
            AluOp::Or => ("|=", "or"),
            AluOp::And => ("&=", "and"),
            AluOp::Xor => ("^=", "xor"),
            AluOp::Lsh => ("<<=", "lsh"),
            AluOp::Rsh => (">>=", "rsh"),
            AluOp::Arsh => ("s>>=", "arsh"),
            AluOp::Mov => ("=", "mov"),
        }
    }
}

impl Cond {
    /// All conditions.
    pub const ALL: [Cond; 11] = {
        use Cond::*;
        [Eq, Ne, Gt, Ge, Lt, Le, SGt, SGe, SLt, SLe, Set]
    };
    /// Operator of the text form, and mnemonic.
    pub const fn symbol(self) -> (&'static str, &'static str) {
        match self {
            Cond::Eq => ("==", "jeq"),
            Cond::Ne => ("!=", "jne"),
            Cond::Gt => (">", "jgt"),
            Cond::Ge => (">=", "jge"),
            Cond::Lt => ("<", "jlt"),
            Cond::Le => ("<=", "jle"),
            Cond::SGt => ("s>", "jsgt"),
            Cond::SGe => ("s>=", "jsge"),
            Cond::SLt => ("s<", "jslt"),
            Cond::SLe => ("s<=", "jsle"),
            Cond::Set => ("&", "jset"),
        }
    }
}

impl AtomicOp {
    /// All operations.
    pub const ALL: [AtomicOp; 6] =
        [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg, AtomicOp::Cmpxchg];
    /// Assignment operator of the text form without fetch (empty where there is none), and mnemonic.
    pub const fn symbol(self) -> (&'static str, &'static str) {
        match self {
            AtomicOp::Add => ("+=", "add"),
            AtomicOp::Or => ("|=", "or"),
            AtomicOp::And => ("&=", "and"),
            AtomicOp::Xor => ("^=", "xor"),
            AtomicOp::Xchg => ("", "xchg"),
            AtomicOp::Cmpxchg => ("", "cmpxchg"),
        }
    }
}

impl Endian {
    /// All operations.
    pub const ALL: [Endian; 3] = [Endian::ToLe, Endian::ToBe, Endian::Swap];
    /// Prefix of the mnemonic; the bits follow.
    pub const fn symbol(self) -> &'static str {
        match self {
            Endian::ToLe => "le",
            Endian::ToBe => "be",
            Endian::Swap => "bswap",
        }
    }
}

impl Width {
    /// 32 or 64.
    pub const fn bits(self) -> u32 {
        match self {
            Width::W32 => 32,
            Width::W64 => 64,
        }
    }
}

/// The mnemonic, such as `add64_imm`, `jsgt32_reg` or `ldxw`.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = |reg| if reg { "reg" } else { "imm" };
        match *self {
            Form::Alu { width, op, reg } => write!(f, "{}{}_{}", op.symbol().1, width.bits(), kind(reg)),
            Form::Neg { width } => write!(f, "neg{}", width.bits()),
            Form::MovSx { width, bits } => write!(f, "movsx{bits}_{}", width.bits()),
            Form::Endian { op, bits } => write!(f, "{}{bits}", op.symbol()),
            Form::Wide(WideForm::Value) => f.write_str("lddw"),
            Form::Wide(WideForm::Map) => f.write_str("lddw_map"),
            Form::Wide(WideForm::MapValue) => f.write_str("lddw_map_value"),
            Form::Wide(WideForm::Func) => f.write_str("lddw_func"),
            Form::Load { size, sign } => write!(f, "ldx{}{}", if sign { "s" } else { "" }, size.letter()),
            Form::Store { size, reg } => write!(f, "st{}{}", if reg { "x" } else { "" }, size.letter()),
            Form::Atomic { width, op, fetch } => {
                let fetch = if fetch && !op.symbol().0.is_empty() { "_fetch" } else { "" };
                write!(f, "atomic{}_{}{fetch}", width.bits(), op.symbol().1)
            }
            Form::Jump { long: false } => f.write_str("ja"),
            Form::Jump { long: true } => f.write_str("gotol"),
            Form::JumpIf { width, cond, reg } => {
                write!(f, "{}{}_{}", cond.symbol().1, width.bits(), kind(reg))
            }
            Form::CallHelper => f.write_str("call"),
            Form::CallReg => f.write_str("callx"),
            Form::CallLocal => f.write_str("call_local"),
            Form::Exit => f.write_str("exit"),
            Form::Refused(what) => f.write_str(what),
        }
    }
}

impl Size {
    /// Suffix of the mnemonic.
    const fn letter(self) -> &'static str {
        match self {
            Size::B => "b",
            Size::H => "h",
            Size::W => "w",
            Size::Dw => "dw",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn selects(op: &Op) -> (u8, [Field; 3]) {
        let only = |f| if matches!(f, Is(_)) { f } else { Used };
        (op.code, [only(op.src), only(op.off), only(op.imm)])
    }

    #[test]
    fn no_two_rows_select_alike_and_counts_hold() {
        let mut seen = HashSet::new();
        for op in Op::all() {
            assert!(seen.insert(format!("{:?}", selects(op))), "{} is ambiguous", op.form);
        }
        let count = |g| Op::all().filter(|op| op.group() == g).count();
        let groups = [
            Group::Base32,
            Group::Base64,
            Group::Divmul32,
            Group::Divmul64,
            Group::Atomic32,
            Group::Atomic64,
        ];
        // Counted by hand from RFC 9669, appendix A, plus callbacks' and map indices' lddw.
        assert_eq!(groups.map(count), [61, 61, 10, 10, 10, 10]);
        assert_eq!((count(Group::Callx), count(Group::None)), (1, 9));
    }
}
