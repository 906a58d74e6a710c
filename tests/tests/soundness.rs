//! *Facts contain the trace*: generated programs, verified, then run by the reference interpreter on random
//! contexts and maps. No accepted program may fault, and at each instruction the registers and the stack must lie in a state
//! that the verifier's second pass saw there, and in the facts.
//!
//! Seeded; `RINGFENCE_SOUNDNESS_PROGRAMS=N` and `RINGFENCE_SOUNDNESS_SEED=N` make a soak run of it.

use ringfence_translator::interp::Interp;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, MapDecl, MapKind, Program};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

const CTX_BYTES: u32 = 64;
/// Lowest stack byte that the generator uses.
const STACK: i64 = 64;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Numbers near the borders where verifiers have failed.
    fn edge(&mut self) -> u64 {
        let border = self.pick(&[0, 1 << 31, 1 << 32, 1 << 63, u64::MAX, 1 << 16, 1 << 8, 64]);
        match self.below(4) {
            0 => border.wrapping_add(self.below(5)).wrapping_sub(2),
            1 => self.below(70),
            2 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }

    fn imm(&mut self) -> i32 {
        match self.below(3) {
            0 => self.below(70) as i32 - 3,
            _ => self.edge() as i32,
        }
    }
}

/// What the generator believes of a register: programs that ignore it would be refused at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Unset,
    Number,
    /// A pointer that is in bounds as it stands: to the context, the stack or global data.
    Pointer,
}

struct Generator<'a> {
    r: &'a mut Random,
    text: String,
    regs: [Kind; 10],
    /// Stack slots of 8 bytes, by index below r10, that are initialised on all paths.
    slots: [bool; 8],
    /// Labels to be placed: name, instructions to wait, and what is believed there.
    pending: Vec<(String, u32, [Kind; 10], [bool; 8])>,
    labels: u32,
    in_loop: u32,
    callees: u32,
}

fn maps() -> Vec<MapDecl> {
    let map = |name: &str, kind, value_size, max_entries, read_only, init: Vec<u8>| MapDecl {
        name: name.into(),
        kind,
        key_size: 4,
        value_size,
        max_entries,
        flags: 0,
        read_only,
        init,
    };
    vec![
        map("hash", MapKind::Hash, 24, 8, false, vec![]),
        map("array", MapKind::Array, 20, 4, false, vec![]),
        map("global", MapKind::Global, 40, 1, false, vec![7; 40]),
        map("table", MapKind::Global, 16, 1, true, (0..16).map(|i| i * 3 % 17).collect()),
    ]
}

impl Generator<'_> {
    fn line(&mut self, text: impl AsRef<str>) {
        self.text.push_str(text.as_ref());
        self.text.push('\n');
        let mut due = Vec::new();
        for p in &mut self.pending {
            p.1 = p.1.saturating_sub(1);
        }
        while self.pending.last().is_some_and(|p| p.1 == 0) {
            due.extend(self.pending.pop());
        }
        for (name, _, regs, slots) in due {
            writeln!(self.text, "{name}:").unwrap();
            self.meet(&regs, &slots);
        }
    }

    fn meet(&mut self, regs: &[Kind; 10], slots: &[bool; 8]) {
        for (a, b) in self.regs.iter_mut().zip(regs) {
            if a != b {
                *a = Kind::Unset;
            }
        }
        self.slots.iter_mut().zip(slots).for_each(|(a, b)| *a &= b);
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }

    fn number(&mut self) -> Option<usize> {
        let all: Vec<usize> = (0..9).filter(|&i| self.regs[i] == Kind::Number).collect();
        if all.is_empty() { None } else { Some(self.r.pick(&all)) }
    }

    /// A register that may be overwritten: r8 counts loops, r9 holds the context.
    fn target(&mut self) -> usize {
        self.r.below(8) as usize
    }

    fn set(&mut self, reg: usize, kind: Kind) {
        self.regs[reg] = kind;
    }

    fn alu(&mut self) {
        let Some(src) = self.number() else { return self.load_ctx() };
        let Some(dst) = self.number().filter(|&d| d < 8) else { return self.load_ctx() };
        let wide = self.r.chance(60);
        let w = if wide { 'r' } else { 'w' };
        let op = self
            .r
            .pick(&["+=", "-=", "*=", "/=", "s/=", "%=", "s%=", "|=", "&=", "^=", "<<=", ">>=", "s>>=", "="]);
        match self.r.below(10) {
            0..=3 => self.line(format!("{w}{dst} {op} {w}{src}")),
            4..=7 => {
                let shift = op.contains("<<") || op.contains(">>");
                let imm = if shift { self.r.below(if wide { 64 } else { 32 }) as i32 } else { self.r.imm() };
                let imm = if (op.ends_with("/=") || op.ends_with("%=")) && imm == 0 { 3 } else { imm };
                self.line(format!("{w}{dst} {op} {imm}"));
            }
            8 => {
                let form =
                    self.r.pick(&["be16", "be32", "be64", "le16", "le32", "bswap16", "bswap32", "bswap64"]);
                self.line(format!("r{dst} = {form} r{dst}"));
            }
            _ => {
                let t = self.target();
                let form = self.r.pick(&["(s8)", "(s16)", "(s32)", ""]);
                let wide = wide || form == "(s32)";
                let w = if wide { 'r' } else { 'w' };
                self.line(format!("{w}{t} = {form}{w}{src}"));
                self.set(t, Kind::Number);
            }
        }
    }

    fn access_form(&mut self) -> (&'static str, i64) {
        self.r.pick(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8), ("s8", 1), ("s16", 2), ("s32", 4)])
    }

    fn load_ctx(&mut self) {
        let (form, size) = self.access_form();
        let off = self.r.below((i64::from(CTX_BYTES) - size + 1) as u64);
        let dst = self.target();
        self.line(format!("r{dst} = *({form} *)(r9 + {off})"));
        self.set(dst, Kind::Number);
    }

    fn store_ctx(&mut self) {
        let Some(src) = self.number() else { return };
        let (form, size) = self.r.pick(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)]);
        let off = self.r.below((CTX_BYTES - size + 1).into());
        self.line(format!("*({form} *)(r9 + {off}) = r{src}"));
    }

    fn store_stack(&mut self) {
        let slot = self.r.below(8) as usize;
        let off = 8 * (slot as i64 + 1);
        match self.number() {
            Some(src) if self.r.chance(80) => {
                let (form, add) =
                    self.r.pick(&[("u64", 0), ("u64", 0), ("u32", 4), ("u32", 0), ("u8", 3), ("u16", 2)]);
                self.line(format!("*({form} *)(r10 - {}) = r{src}", off - add));
                self.slots[slot] |= form == "u64";
            }
            _ => {
                let imm = if self.r.chance(50) { 0 } else { self.r.imm() };
                self.line(format!("*(u64 *)(r10 - {off}) = {imm}"));
                self.slots[slot] = true;
            }
        }
    }

    fn load_stack(&mut self) {
        let all: Vec<usize> = (0..8).filter(|&i| self.slots[i] || self.r.chance(2)).collect();
        if all.is_empty() {
            return self.store_stack();
        }
        let off = 8 * (self.r.pick(&all) as i64 + 1);
        let dst = self.target();
        let (form, size) = self.access_form();
        let add = self.r.below((8 / size) as u64) as i64 * size;
        self.line(format!("r{dst} = *({form} *)(r10 - {})", off - add));
        self.set(dst, Kind::Number);
    }

    /// A pointer goes to the stack and comes back, perhaps with its last byte spoilt.
    fn spill_pointer(&mut self) {
        let slot = self.r.below(8) as usize;
        let off = 8 * (slot as i64 + 1);
        let dst = self.target();
        self.line(format!("*(u64 *)(r10 - {off}) = r9"));
        if self.r.chance(3) {
            self.line(format!("*(u8 *)(r10 - {off}) = 0"));
        }
        self.line(format!("r{dst} = *(u64 *)(r10 - {off})"));
        self.line(format!("r{dst} = *(u64 *)(r{dst} + 8)"));
        self.line(format!("*(u64 *)(r10 - {off}) = r{dst}"));
        self.set(dst, Kind::Number);
        self.slots[slot] = true;
    }

    fn condition(&mut self, reg: usize) -> String {
        let w = if self.r.chance(65) { 'r' } else { 'w' };
        let cond = self.r.pick(&["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"]);
        let other = self.number().filter(|_| self.r.chance(35));
        let right = other.map_or_else(|| self.r.imm().to_string(), |o| format!("{w}{o}"));
        format!("{w}{reg} {cond} {right}")
    }

    fn branch(&mut self) {
        let Some(reg) = self.number() else { return self.load_ctx() };
        let name = self.label();
        let cond = self.condition(reg);
        self.text += &format!("if {cond} goto {name}\n");
        let wait = 1 + self.r.below(6) as u32;
        // Labels nest: an inner one comes before an outer one.
        let wait = self.pending.last().map_or(wait, |p| wait.min(p.1));
        self.pending.push((name, wait, self.regs, self.slots));
    }

    /// Bounds a number in one of the usual ways (or fails to), adds it to a pointer, and goes there.
    fn indexed(&mut self) {
        let Some(src) = self.number() else { return self.load_ctx() };
        let (room, base) = self.r.pick(&[
            (64i64, "r9"),
            (64, "r9"),
            (40, "map[global][0] + 0 ll"),
            (16, "map[table][0] + 0 ll"),
            (STACK, "r10"),
        ]);
        let (size, form) = self.r.pick(&[(1i64, "u8"), (2, "u16"), (4, "u32"), (8, "u64"), (1, "s8")]);
        let (i, p) = (self.r.below(4) as usize, 4 + self.r.below(4) as usize);
        self.line(format!("r{i} = r{src}"));
        self.set(i, Kind::Number);
        let slack = if self.r.chance(85) { 0 } else { 1 + self.r.below(3) as i64 };
        let last = room - size + slack;
        let skip = self.label();
        let mut guards = Vec::new();
        match self.r.below(8) {
            0 | 1 => self.line(format!("r{i} &= {}", (last as u64 + 1).next_power_of_two() / 2 - 1)),
            2 => self.line(format!("r{i} %= {}", last + 1)),
            3 => guards.push(format!("if r{i} > {last} goto {skip}")),
            4 => {
                guards.push(format!("if r{i} s> {last} goto {skip}"));
                guards.push(format!("if r{i} s< 0 goto {skip}"));
            }
            5 => {
                self.line(format!("w{i} = w{i}"));
                guards.push(format!("if w{i} > {last} goto {skip}"));
            }
            6 => {
                // The copy, or one at a distance, is compared; the original is used.
                let copy = (i + 1) % 4;
                let apart = if self.r.chance(50) { 0 } else { self.r.below(9) as i64 };
                if apart > 0 {
                    self.line(format!("w{i} = w{i}"));
                }
                self.line(format!("r{copy} = r{i}"));
                self.line(format!("r{copy} += {apart}"));
                self.set(copy, Kind::Number);
                guards.push(format!("if r{copy} >= {} goto {skip}", last + 1 + apart));
            }
            _ => self.line(format!("r{i} >>= {}", 64 - (last as u64 + 1).ilog2())),
        }
        let (mut at_skip, slots) = (self.regs, self.slots);
        let guarded = !guards.is_empty();
        for g in guards {
            self.text += &(g + "\n");
        }
        let _ = writeln!(self.text, "r{p} = {base}");
        if base == "r10" {
            let _ = writeln!(self.text, "r{p} += -{STACK}");
        }
        let _ = writeln!(self.text, "r{p} += r{i}");
        let table = base.contains("table");
        let stack = base == "r10";
        let all_set = self.slots.iter().all(|s| *s);
        if self.r.chance(60) && (!stack || all_set) || table {
            let dst = self.r.below(4) as usize;
            let _ = writeln!(self.text, "r{dst} = *({form} *)(r{p} + 0)");
            at_skip[dst] = if at_skip[dst] == Kind::Number { Kind::Number } else { Kind::Unset };
            self.set(dst, Kind::Number);
        } else {
            let _ = writeln!(self.text, "*({} *)(r{p} + 0) = r{i}", form.replace('s', "u"));
        }
        self.set(p, Kind::Pointer);
        if guarded {
            let _ = writeln!(self.text, "{skip}:");
            self.meet(&at_skip, &slots);
        }
        self.set(p, Kind::Unset);
    }

    fn lookup(&mut self) {
        let (map, size) = self.r.pick(&[("hash", 24u64), ("array", 20)]);
        let off = 8 * (1 + self.r.below(8));
        let done = self.label();
        let key = self.number().filter(|_| self.r.chance(50));
        let key = key.map_or_else(|| self.r.below(5).to_string(), |k| format!("r{k}"));
        self.line(format!("*(u32 *)(r10 - {off}) = {key}"));
        let update = self.r.chance(30) && self.slots[..4].iter().all(|s| *s);
        self.line(format!("r1 = map[{map}] ll"));
        self.line("r2 = r10");
        self.line(format!("r2 += -{off}"));
        if update {
            self.line("r3 = r10");
            self.line("r3 += -32");
            let flags = self.r.below(4);
            self.line(format!("r4 = {flags}"));
            self.set(1, Kind::Unset);
            self.text += "call map_update_elem\n";
            self.after_call();
            return;
        }
        self.text += "call map_lookup_elem\n";
        self.after_call();
        self.set(0, Kind::Unset);
        if self.r.chance(97) {
            let _ = writeln!(self.text, "if r0 == 0 goto {done}");
        }
        let (regs, slots) = (self.regs, self.slots);
        let (form, bytes) = self.access_form();
        let past = u64::from(self.r.chance(4));
        let at = self.r.below(size - bytes as u64 + 1 + past);
        if self.r.chance(50) {
            let _ = writeln!(self.text, "r1 = *({form} *)(r0 + {at})");
        } else if let Some(src) = self.number() {
            let _ = writeln!(self.text, "*({} *)(r0 + {at}) = r{src}", form.replace('s', "u"));
        }
        let _ = writeln!(self.text, "{done}:");
        self.meet(&regs, &slots);
        self.line("r0 = 1");
        self.set(0, Kind::Number);
    }

    fn after_call(&mut self) {
        self.regs[..6].fill(Kind::Unset);
        self.regs[0] = Kind::Number;
        // Labels inside the sequence of a call were not counted.
    }

    fn helper(&mut self) {
        let id = self.r.pick(&[5, 7, 8]);
        self.text += &format!("call {id}\n");
        self.after_call();
    }

    fn atomic(&mut self) {
        let Some(src) = self.number().filter(|&s| s < 8) else { return };
        let (form, size) = self.r.pick(&[("u32", 4u64), ("u64", 8)]);
        let at = self.r.below(u64::from(CTX_BYTES) / size) * size;
        let op = self.r.pick(&["+=", "|=", "&=", "^="]);
        match self.r.below(3) {
            0 => self.line(format!("lock *({form} *)(r9 + {at}) {op} r{src}")),
            1 => self.line(format!("r{src} = xchg_64(r9 + {}, r{src})", at & !7)),
            _ => {
                if self.regs[0] != Kind::Number {
                    let old = self.r.imm();
                    self.line(format!("r0 = {old}"));
                    self.set(0, Kind::Number);
                }
                self.line(format!("r0 = cmpxchg_64(r9 + {}, r0, r{src})", at & !7));
            }
        }
    }

    /// Counts r8 up, down, or by a step; what is believed at the head must hold at its end too.
    fn repeat(&mut self) {
        if self.in_loop > 0 || !self.pending.is_empty() {
            return;
        }
        let head = self.label();
        let times = 2 + self.r.below(6);
        self.line("r8 = 0");
        let regs = self.regs;
        let _ = writeln!(self.text, "{head}:");
        self.in_loop += 1;
        for _ in 0..1 + self.r.below(5) {
            self.statement();
        }
        self.flush();
        self.in_loop -= 1;
        // Registers that the body lost are set again, so that the next round finds them.
        for (i, before) in regs.iter().enumerate().take(8) {
            if *before == Kind::Number && self.regs[i] != Kind::Number {
                self.line(format!("r{i} = {}", i + 1));
                self.set(i, Kind::Number);
            }
        }
        self.line("r8 += 1");
        self.line(format!("if r8 < {times} goto {head}"));
        self.set(8, Kind::Number);
    }

    fn call(&mut self) {
        if self.in_loop > 0 {
            return;
        }
        let Some(a) = self.number() else { return };
        self.line(format!("r1 = r{a}"));
        self.line("r2 = r9");
        self.line("r3 = r10");
        self.line("r3 += -8");
        self.line("*(u64 *)(r10 - 8) = 5");
        self.slots[0] = true;
        let callee = self.r.below(3);
        self.callees |= 1 << callee;
        self.text += &format!("call fn f{callee}\n");
        self.after_call();
    }

    fn statement(&mut self) {
        match self.r.below(100) {
            0..=34 => self.alu(),
            35..=44 => self.load_ctx(),
            45..=50 => self.store_ctx(),
            51..=57 => self.store_stack(),
            58..=63 => self.load_stack(),
            64..=65 => self.spill_pointer(),
            66..=75 => self.branch(),
            76..=84 => self.indexed(),
            85..=88 => self.lookup(),
            89..=90 => self.helper(),
            91..=93 => self.atomic(),
            94..=96 => self.repeat(),
            _ => self.call(),
        }
    }

    fn flush(&mut self) {
        while let Some((name, _, regs, slots)) = self.pending.pop() {
            writeln!(self.text, "{name}:").unwrap();
            self.meet(&regs, &slots);
        }
    }
}

const CALLEES: [&str; 3] = [
    "fn f0:\nr0 = r1\nif r1 < 40 goto +1\nr0 = 40\nr2 += r0\nr0 = *(u8 *)(r2 + 0)\nexit\n",
    "fn f1:\n*(u64 *)(r10 - 8) = r1\nr4 = *(u64 *)(r3 + 0)\n*(u64 *)(r3 + 0) = r1\nr0 = *(u32 *)(r10 - 8)\nr0 += r4\nexit\n",
    "fn f2:\nr0 = 0\nr6 = 0\nagain:\nr0 += r1\nr6 += 1\nif r6 < 5 goto again\n*(u8 *)(r3 + 0) = r0\nexit\n",
];

fn generate(r: &mut Random) -> String {
    let mut g = Generator {
        r,
        text: String::new(),
        regs: [Kind::Unset; 10],
        slots: [false; 8],
        pending: Vec::new(),
        labels: 0,
        in_loop: 0,
        callees: 0,
    };
    g.text += "r9 = r1\n";
    g.set(2, Kind::Number);
    g.set(9, Kind::Pointer);
    for i in 0..8 {
        if g.r.chance(60) {
            let _ = writeln!(g.text, "*(u64 *)(r10 - {}) = {}", 8 * (i + 1), i);
            g.slots[i] = true;
        }
    }
    for _ in 0..6 + g.r.below(24) {
        g.statement();
    }
    g.flush();
    match g.number() {
        Some(n) => g.line(format!("r0 = r{n}")),
        None => g.line("r0 = 0"),
    }
    g.line("exit");
    let callees = (0..3).filter(|i| g.callees >> i & 1 != 0).map(|i| CALLEES[i]);
    g.text + &callees.collect::<String>()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

fn random_ctx(r: &mut Random) -> Vec<u8> {
    (0..CTX_BYTES / 8).flat_map(|_| r.edge().to_le_bytes()).collect()
}

/// One run, checked at each step.
fn run(
    program: &Program,
    r: &mut Random,
    check: impl Fn(
        ringfence_translator::isa::Pc,
        &[u64; 11],
        &ringfence_translator::interp::Memory,
    ) -> Result<(), String>,
) -> Result<u64, String> {
    let ctx = random_ctx(r);
    let (mut seed, mut steps) = (Random(r.next() | 1), 0);
    let mut interp =
        Interp::new(program, ctx).helpers(move |id, _, _| matches!(id, 5 | 7 | 8).then(|| seed.edge()));
    for map in interp.memory_mut().maps_mut() {
        if map.decl().kind != MapKind::Global {
            for key in 0..3u32 {
                let value: Vec<u8> = (0..map.decl().value_size).map(|_| r.edge() as u8).collect();
                let _ = map.update(&key.to_le_bytes(), &value, 0);
            }
        }
    }
    let mut wrong = None;
    let end = interp.run_hooked(|pc, regs, memory| {
        steps += 1;
        if wrong.is_none() {
            wrong = check(pc, regs, memory).err();
        }
    });
    match (wrong, end) {
        (Some(w), _) => Err(w),
        (None, Err(fault)) => Err(fault.to_string()),
        (None, Ok(_)) => Ok(steps),
    }
}

#[derive(Default)]
struct Tally {
    accepted: u64,
    steps: u64,
    refused: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Verifies a program and, if it is accepted, holds three runs of it against what was proved.
    fn judge(&mut self, verifier: &Verifier, program: Program, r: &mut Random, text: &dyn Fn() -> String) {
        let (verified, invariants) = match verifier.verify_traced(program) {
            Ok(v) => v,
            Err(e) => {
                assert_ne!(e.kind().name(), "internal", "{e}\n{}", text());
                *self.refused.entry(e.kind().name()).or_default() += 1;
                return;
            }
        };
        self.accepted += 1;
        for _ in 0..3 {
            let check = |pc, regs: &_, memory: &_| invariants.admit(&verified, pc, regs, memory);
            match run(verified.program(), r, check) {
                Ok(k) => self.steps += k,
                Err(why) => panic!("{why}\n{}", text()),
            }
        }
    }

    fn report(&self, programs: u64) {
        let Tally { accepted, steps, refused } = self;
        println!("{accepted} of {programs} programs accepted, {steps} steps checked; refused: {refused:?}");
    }
}

#[test]
fn accepted_programs_stay_inside_what_was_proved() {
    let programs = setting("RINGFENCE_SOUNDNESS_PROGRAMS", 20_000);
    let mut r = Random(setting("RINGFENCE_SOUNDNESS_SEED", 0x0dd5_eed5) | 1);
    let verifier = Verifier::new(Arc::new(Env::generic(CTX_BYTES)));
    let maps = maps();
    let mut tally = Tally::default();
    for n in 0..programs {
        let text = generate(&mut r);
        let program = assemble(&text, &maps).unwrap_or_else(|e| panic!("program {n}: {e}\n{text}"));
        tally.judge(&verifier, program, &mut r, &|| format!("program {n}:\n{text}"));
    }
    tally.report(programs);
    assert!(tally.accepted * 100 > programs * 30, "{} of {programs}", tally.accepted);
}

/// Generated programs with a few bytes changed: shapes that no generator thinks of.
#[test]
fn mutated_programs_stay_inside_what_was_proved() {
    let programs = setting("RINGFENCE_SOUNDNESS_PROGRAMS", 20_000) / 2;
    let mut r = Random(setting("RINGFENCE_SOUNDNESS_SEED", 0x0dd5_eed5).rotate_left(9) | 1);
    let env = Env { insn_budget: 20_000, ..Env::generic(CTX_BYTES) };
    let verifier = Verifier::new(Arc::new(env));
    let maps = maps();
    let (mut tally, mut decoded) = (Tally::default(), 0);
    for n in 0..programs {
        let mut code = assemble(&generate(&mut r), &maps).expect("the generator's output").encode();
        for _ in 0..1 + r.below(3) {
            mutate(&mut code, &mut r);
        }
        let Ok(program) = Program::with_maps("mutant", &code, maps.clone()) else { continue };
        decoded += 1;
        let listing = program.clone();
        tally.judge(&verifier, program, &mut r, &|| {
            let lines = listing.iter().map(|(pc, insn)| format!("{pc}: {insn:?}\n"));
            format!("mutant {n}:\n{}", lines.collect::<String>())
        });
    }
    tally.report(decoded);
    assert!(decoded * 4 > programs && tally.accepted > decoded / 20, "{} of {decoded}", tally.accepted);
}

/// Changes registers, offset, immediate or opcode of one slot, or copies a slot over another.
fn mutate(code: &mut [u8], r: &mut Random) {
    let slots = code.len() as u64 / 8;
    let at = 8 * r.below(slots) as usize;
    match r.below(6) {
        0 => code[at + 1] = (r.below(11) as u8) | (code[at + 1] & 0xf0),
        1 => code[at + 1] = (r.below(11) as u8) << 4 | (code[at + 1] & 0x0f),
        2 => code[at + 2] = code[at + 2].wrapping_add(r.below(9) as u8).wrapping_sub(4),
        3 => code[at + 4..at + 8].copy_from_slice(&r.imm().to_le_bytes()),
        4 => code[at] ^= 1 << (3 + r.below(5)),
        _ => {
            let from = 8 * r.below(slots) as usize;
            code.copy_within(from..from + 8, at);
        }
    }
}

/// The oracle itself can fail: what the verifier refuses does break when it is run all the same.
#[test]
fn the_interpreter_catches_what_a_blind_verifier_would_let_pass() {
    let mut r = Random(99);
    let verifier = Verifier::new(Arc::new(Env::generic(CTX_BYTES)));
    let maps = maps();
    let mut faults = 0;
    for _ in 0..3000 {
        let program = assemble(&generate(&mut r), &maps).unwrap();
        if verifier.verify(program.clone()).is_err() {
            faults += u32::from((0..3).any(|_| run(&program, &mut r, |_, _, _| Ok(())).is_err()));
        }
    }
    assert!(faults > 20, "{faults}");
}
