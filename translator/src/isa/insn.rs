//! [`Insn`]: one decoded eBPF instruction, with [`Reg`], [`Pc`] and their kin.

use std::fmt;

/// A register, r0 to r10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(u8);

impl Reg {
    /// r0: return value.
    pub const R0: Reg = Reg(0);
    /// r1: first argument.
    pub const R1: Reg = Reg(1);
    /// r2: second argument.
    pub const R2: Reg = Reg(2);
    /// r3: third argument.
    pub const R3: Reg = Reg(3);
    /// r4: fourth argument.
    pub const R4: Reg = Reg(4);
    /// r5: last argument.
    pub const R5: Reg = Reg(5);
    /// r10: read-only frame pointer.
    pub const FP: Reg = Reg(10);
    /// Number of registers.
    pub const COUNT: usize = 11;

    /// The register of that number; `None` above 10.
    pub const fn new(n: u8) -> Option<Reg> {
        if n <= 10 { Some(Reg(n)) } else { None }
    }

    /// 0 to 10.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All registers, r0 first.
    pub fn all() -> impl Iterator<Item = Reg> {
        (0..=10).map(Reg)
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Position in a program in 8-byte slots (a wide `lddw` takes two), as the kernel counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pc(pub u32);

impl Pc {
    /// As an index into slot-indexed vectors.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// `self + n` slots.
    pub const fn plus(self, n: u32) -> Pc {
        Pc(self.0 + n)
    }
}

impl fmt::Display for Pc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Width of an ALU operation or a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 32 bits; the upper half of the destination becomes zero.
    W32,
    /// 64 bits.
    W64,
}

/// Size of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// 1 byte.
    B,
    /// 2 bytes.
    H,
    /// 4 bytes.
    W,
    /// 8 bytes.
    Dw,
}

impl Size {
    /// Bytes: 1, 2, 4 or 8.
    pub const fn bytes(self) -> u32 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::Dw => 8,
        }
    }
}

/// Second operand of an ALU operation, a comparison or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A 32-bit immediate; sign-extended for 64-bit operations (RFC 9669, 4.1).
    Imm(i32),
}

/// Two-operand arithmetic. `Div`, `Mod` are unsigned; `SDiv`, `SMod` signed.
/// Division by zero gives 0, modulo by zero leaves the dividend (RFC 9669, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    Div,
    SDiv,
    Mod,
    SMod,
    Or,
    And,
    Xor,
    Lsh,
    Rsh,
    Arsh,
    Mov,
}

/// Byte-order operation. The host is little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// `le16/32/64`: truncates to the width.
    ToLe,
    /// `be16/32/64`: swaps and truncates.
    ToBe,
    /// `bswap16/32/64`: swaps unconditionally and truncates.
    Swap,
}

/// Condition of a jump: unsigned `Gt, Ge, Lt, Le`; signed with `S`; `Set` is `dst & src != 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Cond {
    Eq,
    Ne,
    Gt,
    Ge,
    Lt,
    Le,
    SGt,
    SGe,
    SLt,
    SLe,
    Set,
}

/// Atomic operation. `Xchg` and `Cmpxchg` always fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum AtomicOp {
    Add,
    Or,
    And,
    Xor,
    Xchg,
    /// Compares with r0, stores `src` if equal; r0 receives the old value.
    Cmpxchg,
}

/// What a 64-bit immediate load puts into the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Imm64 {
    /// A plain number.
    Value(u64),
    /// The map object of that index in [`Program::maps`](crate::Program::maps) (src 1, `BPF_PSEUDO_MAP_FD`).
    Map(MapIdx),
    /// Address `offset` bytes into the first value of that map (src 2, `BPF_PSEUDO_MAP_VALUE`).
    MapValue {
        /// The map.
        map: MapIdx,
        /// Byte offset into its value.
        offset: u32,
    },
    /// A static function of the program, for callbacks (src 4, `BPF_PSEUDO_FUNC`).
    Func(Pc),
}

/// Index of a map in [`Program::maps`](crate::Program::maps).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapIdx(pub u16);

/// One decoded instruction. Jump targets are absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Insn {
    /// `dst = dst op src`, or `dst = src` for `Mov`.
    Alu { width: Width, op: AluOp, dst: Reg, src: Operand },
    /// `dst = -dst`.
    Neg { width: Width, dst: Reg },
    /// `dst = (s8|s16|s32) src`; `bits` is 8, 16 or 32 (32 only with `W64`).
    MovSx { width: Width, bits: u8, dst: Reg, src: Reg },
    /// Byte-order conversion; `bits` is 16, 32 or 64.
    Endian { op: Endian, bits: u8, dst: Reg },
    /// `lddw`: takes two slots.
    LoadImm64 { dst: Reg, imm: Imm64 },
    /// `dst = *(size *)(base + off)`, sign-extended to 64 bits if `sign`.
    Load { size: Size, sign: bool, dst: Reg, base: Reg, off: i16 },
    /// `*(size *)(base + off) = src`.
    Store { size: Size, base: Reg, off: i16, src: Operand },
    /// Atomic read-modify-write at `base + off`, on 4 or 8 bytes. With `fetch`,
    /// `src` (r0 for `Cmpxchg`) receives the old value.
    Atomic { width: Width, op: AtomicOp, fetch: bool, base: Reg, off: i16, src: Reg },
    /// `ja` or `gotol`.
    Jump { target: Pc },
    /// Conditional jump.
    JumpIf { width: Width, cond: Cond, dst: Reg, src: Operand, target: Pc },
    /// `call` of a helper by number.
    CallHelper { id: u32 },
    /// `callx` (0x8d): `call` of the helper whose number is in the register of the *dst* field. RFC 9669 does not
    /// list it, but bpf_conformance's test `callx` (group `callx`) needs it. The verifier refuses it as
    /// `Unsupported`; `translate_unverified` translates it.
    CallReg { reg: Reg },
    /// bpf-to-bpf call.
    CallLocal { target: Pc },
    /// `exit`.
    Exit,
}

impl Insn {
    /// Slots that the instruction takes: 2 for `lddw`, else 1.
    pub const fn slots(&self) -> u32 {
        match self {
            Insn::LoadImm64 { .. } => 2,
            _ => 1,
        }
    }
}
