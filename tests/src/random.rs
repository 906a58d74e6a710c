//! [`program`]: random programs as text, for differential tests. The same seed gives the same program.
//!
//! Programs compute on r0 to r7 with every operation of the instruction set, read and write a context of
//! [`CTX_BYTES`] through r9, eight stack slots and the maps of [`maps`], call functions, and end by folding all they
//! computed into r0. r8 counts blocks down, so that every program ends.

use ringfence_translator::{MapDecl, MapKind};
use std::fmt::Write;

/// Bytes of the context that the programs use.
pub const CTX_BYTES: usize = 64;

/// Where jumps may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Anywhere in the function: loops, and jumps into loops.
    Any,
    /// Forward only, which a verifier can follow.
    Forward,
}

/// xorshift: small, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Rng {
        // Spreads small seeds over all bits; never 0, which xorshift would keep.
        Rng(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.bits() >> 16) % n
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Initial contents of the context.
pub fn context(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ 0xc0de);
    (0..CTX_BYTES).map(|_| rng.bits() as u8).collect()
}

/// Maps that the programs use: arrays whose values need a shift and a multiplication, a small hash map, global data.
pub fn maps() -> Vec<MapDecl> {
    let map = |name: &str, kind, key_size, value_size, max_entries| {
        let init = if kind == MapKind::Global { vec![0x5a; value_size as usize] } else { Vec::new() };
        let name = name.to_owned();
        MapDecl { name, kind, key_size, value_size, max_entries, init, ..MapDecl::default() }
    };
    vec![
        map("even", MapKind::Array, 4, 16, 5),
        map("odd", MapKind::Array, 4, 24, 3),
        map("hash", MapKind::Hash, 8, 16, 4),
        map(".bss", MapKind::Global, 4, 64, 1),
    ]
}

/// The text of a program, for [`assemble`](ringfence_translator::isa::asm::assemble).
pub fn program(seed: u64, shape: Shape) -> String {
    let mut rng = Rng::new(seed);
    let funcs = rng.below(4);
    let mut g = Gen { rng, text: String::new(), shape, func: 0, funcs, labels: 0 };
    for func in 0..=funcs {
        g.func = func;
        g.function();
    }
    g.text
}

struct Gen {
    rng: Rng,
    text: String,
    shape: Shape,
    /// Function being written: 0 is the entry, and calls go to higher numbers only.
    func: u64,
    funcs: u64,
    /// Labels inside blocks so far.
    labels: u64,
}

macro_rules! line {
    ($g:expr, $($arg:tt)*) => {{
        // Writing to a string cannot fail.
        let _ = writeln!($g.text, $($arg)*);
    }};
}

const ALU: &[&str] =
    &["+=", "-=", "*=", "/=", "s/=", "%=", "s%=", "|=", "&=", "^=", "<<=", ">>=", "s>>=", "="];
const CONDS: &[&str] = &["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"];
const TYPES: &[(&str, u64)] =
    &[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8), ("s8", 1), ("s16", 2), ("s32", 4)];
const EDGES: &[i64] = &[0, 1, -1, 2, 7, 8, 31, 32, 33, 63, 255, 65535, 0x7fff_ffff, -0x8000_0000];
const WIDE_EDGES: &[u64] = &[0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 32, 0xffff_ffff, 0x8000_0000];

impl Gen {
    fn function(&mut self) {
        let f = self.func;
        line!(self, "fn f{f}:");
        line!(self, "r9 = r1");
        for r in 0..8 {
            self.constant(r);
        }
        line!(self, "r8 = {}", if f == 0 { 40 } else { 16 });
        for slot in 1..=8 {
            line!(self, "*(u64 *)(r10 - {}) = r{}", 8 * slot, self.rng.below(8));
        }
        let blocks = 2 + self.rng.below(8);
        for block in 0..blocks {
            self.block(block, blocks);
        }
        line!(self, "f{f}_out:");
        for r in 1..8 {
            line!(self, "r0 *= 31\nr0 += r{r}");
        }
        for slot in 1..=8 {
            line!(self, "r1 = *(u64 *)(r10 - {})\nr0 *= 31\nr0 ^= r1", 8 * slot);
        }
        line!(self, "exit");
    }

    fn constant(&mut self, reg: u64) {
        let value = if self.rng.chance(40) { self.rng.pick(WIDE_EDGES) } else { self.rng.bits() };
        line!(self, "r{reg} = {value:#x} ll");
    }

    fn block(&mut self, block: u64, blocks: u64) {
        let f = self.func;
        line!(self, "f{f}_b{block}:");
        if self.shape == Shape::Any {
            line!(self, "r8 += -1\nif r8 s< 0 goto f{f}_out");
        }
        for _ in 0..self.rng.below(7) {
            self.insn();
        }
        let to = self.target(block, blocks);
        match self.rng.below(10) {
            0 => line!(self, "goto {to}"),
            1 => {}
            _ => self.jump_if(&to),
        }
    }

    fn target(&mut self, block: u64, blocks: u64) -> String {
        let (f, first) = (self.func, if self.shape == Shape::Any { 0 } else { block + 1 });
        if first >= blocks || self.rng.chance(8) {
            return format!("f{f}_out");
        }
        format!("f{f}_b{}", first + self.rng.below(blocks - first))
    }

    fn jump_if(&mut self, to: &str) {
        let (r, cond) = (self.rng.pick(&["r", "w"]), self.rng.pick(CONDS));
        let (dst, src) = (self.rng.below(8), self.source(r));
        line!(self, "if {r}{dst} {cond} {src} goto {to}");
    }

    /// A register of width `r`, or an immediate.
    fn source(&mut self, r: &str) -> String {
        if self.rng.chance(60) { format!("{r}{}", self.rng.below(8)) } else { self.immediate().to_string() }
    }

    fn immediate(&mut self) -> i64 {
        if self.rng.chance(60) { self.rng.pick(EDGES) } else { i64::from(self.rng.bits() as i32) }
    }

    fn insn(&mut self) {
        let dst = self.rng.below(8);
        match self.rng.below(24) {
            20 => self.array(),
            21 => self.hash(),
            22 => self.global(),
            23 => self.variable_offset(),
            0..=8 => self.alu(dst),
            9 => self.unary(dst),
            10 => self.constant(dst),
            11..=13 => self.load(dst),
            14..=15 => self.store(),
            16..=18 => self.atomic(dst),
            _ => self.call(),
        }
    }

    fn alu(&mut self, dst: u64) {
        let (r, op) = (self.rng.pick(&["r", "w"]), self.rng.pick(ALU));
        let src = match op {
            // An immediate amount must be below the width.
            "<<=" | ">>=" | "s>>=" if self.rng.chance(50) => {
                self.rng.below(if r == "r" { 64 } else { 32 }).to_string()
            }
            "<<=" | ">>=" | "s>>=" => format!("{r}{}", self.rng.below(8)),
            _ => self.source(r),
        };
        line!(self, "{r}{dst} {op} {src}");
    }

    fn unary(&mut self, dst: u64) {
        let src = self.rng.below(8);
        match self.rng.below(4) {
            0 => {
                let r = self.rng.pick(&["r", "w"]);
                line!(self, "{r}{dst} = -{r}{dst}");
            }
            1 => line!(self, "r{dst} = (s{})r{src}", self.rng.pick(&[8, 16, 32])),
            2 => line!(self, "w{dst} = (s{})w{src}", self.rng.pick(&[8, 16])),
            _ => {
                let (op, bits) = (self.rng.pick(&["le", "be", "bswap"]), self.rng.pick(&[16, 32, 64]));
                line!(self, "r{dst} = {op}{bits} r{dst}");
            }
        }
    }

    /// An address of `bytes` bytes in the context or the stack, aligned if wanted.
    fn address(&mut self, bytes: u64, aligned: bool) -> String {
        let (step, size) = (if aligned { bytes } else { 1 }, CTX_BYTES as u64);
        let offset = self.rng.below((size - bytes) / step + 1) * step;
        if self.rng.chance(50) { format!("r9 + {offset}") } else { format!("r10 - {}", size - offset) }
    }

    fn load(&mut self, dst: u64) {
        let (ty, bytes) = self.rng.pick(TYPES);
        let address = self.address(bytes, false);
        line!(self, "r{dst} = *({ty} *)({address})");
    }

    fn store(&mut self) {
        let (ty, bytes) = self.rng.pick(&TYPES[..4]);
        let (address, src) = (self.address(bytes, false), self.source("r"));
        line!(self, "*({ty} *)({address}) = {src}");
    }

    fn atomic(&mut self, reg: u64) {
        let (ty, bytes, r) = self.rng.pick(&[("u32", 4, "w"), ("u64", 8, "r")]);
        let address = self.address(bytes, true);
        let suffix = if bytes == 4 { "32_32" } else { "_64" };
        match self.rng.below(4) {
            0 => line!(self, "{r}{reg} = xchg{suffix}({address}, {r}{reg})"),
            1 => {
                if self.rng.chance(50) {
                    // So that the comparison holds now and then.
                    line!(self, "r0 = *({ty} *)({address})");
                }
                line!(self, "{r}0 = cmpxchg{suffix}({address}, {r}0, {r}{reg})");
            }
            2 => {
                let op = self.rng.pick(&["add", "or", "and", "xor"]);
                line!(self, "{r}{reg} = atomic_fetch_{op}(({ty} *)({address}), {r}{reg})");
            }
            _ => {
                let op = self.rng.pick(&["+=", "|=", "&=", "^="]);
                line!(self, "lock *({ty} *)({address}) {op} {r}{reg}");
            }
        }
    }

    /// Looks an array up, at keys inside and outside, and uses the value; pointers may lie before it on the way.
    fn array(&mut self) {
        let (map, bytes) = self.rng.pick(&[("even", 16), ("odd", 24)]);
        self.labels += 1;
        let label = format!("f{}_m{}", self.func, self.labels);
        if self.rng.chance(50) {
            line!(self, "*(u32 *)(r10 - 68) = {}", self.rng.below(7));
        } else {
            line!(self, "r1 = r{}\nr1 &= 7\n*(u32 *)(r10 - 68) = r1", self.rng.below(8));
        }
        line!(self, "r1 = map[{map}] ll\nr2 = r10\nr2 += -68\ncall map_lookup_elem\nif r0 == 0 goto {label}");
        let before = self.rng.pick(&[0, 0, 8, 4096]);
        line!(self, "r0 += -{before}");
        let at = before + 8 * self.rng.below(bytes / 8);
        line!(self, "r6 = *(u64 *)(r0 + {at})\nlock *(u64 *)(r0 + {at}) += r7");
        line!(self, "*(u16 *)(r0 + {}) = r7", before + self.rng.below(bytes - 1));
        line!(self, "{label}:");
        self.clobbered();
    }

    /// Updates, finds or removes an entry of the hash map; what the helper says goes to r7.
    fn hash(&mut self) {
        self.labels += 1;
        let label = format!("f{}_m{}", self.func, self.labels);
        line!(self, "*(u64 *)(r10 - 80) = {}\nr1 = map[hash] ll\nr2 = r10\nr2 += -80", self.rng.below(7));
        match self.rng.below(4) {
            0 | 1 => {
                let flags = self.rng.pick(&[0, 0, 0, 1, 2, 3]);
                line!(self, "r3 = r10\nr3 += -64\nr4 = {flags}\ncall map_update_elem\nr7 = r0");
            }
            2 => {
                line!(self, "call map_lookup_elem\nif r0 == 0 goto {label}\nr7 = *(u32 *)(r0 + 4)");
                line!(self, "*(u8 *)(r0 + 15) = r6\n{label}:");
            }
            _ => line!(self, "call map_delete_elem\nr7 = r0"),
        }
        self.clobbered();
    }

    fn global(&mut self) {
        let (offset, at) = (self.rng.below(64), self.rng.below(57) as i64);
        line!(self, "r1 = map[.bss][0] + {offset} ll\nr6 ^= r0");
        line!(self, "r7 = *(u64 *)(r1 + {})\n*(u32 *)(r1 + {}) = r6", at - offset as i64, at - offset as i64);
        self.constant(1);
    }

    /// Accesses whose offset is not constant.
    fn variable_offset(&mut self) {
        let base = self.rng.pick(&["r9", "r10"]);
        let low = if base == "r9" { 0 } else { -64 };
        line!(self, "r2 = r{}\nr2 &= 31\nr1 = {base}\nr1 += r2", self.rng.below(8));
        line!(self, "r6 = *(u16 *)(r1 + {})\n*(u8 *)(r1 + {}) = r7", low + 1, low + 30);
        self.constant(1);
        self.constant(2);
    }

    /// A helper leaves r0 and r1 to r5 undefined, or a pointer in r0, of which no program may depend.
    fn clobbered(&mut self) {
        for r in 0..6 {
            self.constant(r);
        }
    }

    /// A call of a later function; a call leaves nothing defined in r1 to r5.
    fn call(&mut self) {
        if self.func == self.funcs {
            return;
        }
        let callee = self.func + 1 + self.rng.below(self.funcs - self.func);
        line!(self, "r1 = r9\ncall fn f{callee}");
        for r in 1..6 {
            self.constant(r);
        }
    }
}
