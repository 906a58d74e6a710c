//! Our verifier and our interpreter beside this machine's kernel: `BPF_PROG_LOAD` and `BPF_PROG_TEST_RUN` of the same generated
//! and mutated programs, as type `BPF_PROG_TYPE_SYSCALL`, whose context is a plain buffer.
//!
//! - What both accept gives the same r0, context and maps.
//! - What we accept and the kernel refuses is one of [`RULES`], a path that we proved dead, or a matter of [`PRECISION`], by the kernel's log; else the test fails.
//! - What the kernel accepts and we refuse is counted by our reason.
//!
//! Needs root, `bpf(2)` and a C compiler; says so and passes where they are missing. `RINGFENCE_KERNEL_PROGRAMS=N` and
//! `RINGFENCE_KERNEL_SEED=N` change the run.

use ringfence_soak::code::Item;
use ringfence_soak::kernel::{CTX_BYTES, Kernel, Refusal, Verdict, World};
use ringfence_soak::oracle::{Oracle, Tally, fill_maps, interp, random_context};
use ringfence_soak::{Code, Random, Shape, generate, maps, mutate};
use ringfence_translator::interp::{FaultKind, Regs};
use ringfence_translator::isa::semantics::operand;
use ringfence_translator::isa::{AluOp, Cond, Imm64, Insn, MapIdx, Operand, Pc, Reg, Width};
use ringfence_translator::verify::{Region, ReturnRule, Verifier};
use ringfence_translator::{Env, Program, Verified};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Steps that a run may take.
const STEPS: u64 = 2_000_000;

/// Differences of rules: a piece of the kernel's message, and why we accept.
const RULES: &[(&str, &str)] = &[
    (
        "subtraction from stack pointer prohibited",
        "kernel: nothing is subtracted from a stack pointer; ours has bounds",
    ),
    ("misaligned stack access", "kernel: stack accesses are aligned; RFC 9669 does not ask for it"),
    ("variable ctx access", "kernel: context at constant offsets alone; ours is a buffer"),
    ("dereference of modified ctx ptr", "kernel: context at constant offsets alone; ours is a buffer"),
    (
        "variable offset stack pointer cannot be passed into helper",
        "kernel: helpers get stack at constant offsets alone; ours has bounds",
    ),
    (
        "cannot return stack pointer to the caller",
        "kernel: no function gives a stack pointer; ours points into a frame that still runs",
    ),
    ("verifier bug: No program to jit", "kernel: stumbles over a callback that only dead code names"),
    ("div by zero", "kernel: no division by the immediate 0; RFC 9669 says what it gives"),
    ("invalid shift", "kernel: no shift by the width or more; RFC 9669 masks the amount"),
    ("unreachable insn", "kernel: no code that nothing leads to; ours is never translated"),
    ("last insn is not an exit or jmp", "kernel: no code that nothing leads to; ours is never translated"),
    ("BPF program is too large", "kernel: a million instructions visited; our states meet sooner"),
    ("jumps is too complex", "kernel: 8192 open branches; our states meet sooner"),
    ("combined stack size", "kernel: 512 bytes of stack for all frames; ours has 512 for each"),
];

/// Reasons that are a matter of precision, where the kernel knows less of a number than we proved. The traces of such a program are held
/// against our proof [`PRECISION_RUNS`] times.
const PRECISION: &[(&str, &str)] = &[
    ("math between", "precision: the kernel has no bounds of a number that is added to a pointer"),
    ("unbounded memory access", "precision: the kernel has no upper bound of an offset"),
    ("outside of the allowed memory range", "precision: the kernel has wider bounds of an offset"),
    ("invalid access to map value", "precision: the kernel has wider bounds of an offset"),
    ("invalid read from stack R", "precision: the kernel has wider bounds of a stack offset"),
    ("invalid unbounded variable-offset", "precision: the kernel has wider bounds of a stack offset"),
    ("invalid variable-offset", "precision: the kernel has wider bounds of a stack offset"),
    ("invalid write to stack", "precision: the kernel has wider bounds of a stack offset"),
    ("value is outside of", "precision: the kernel has wider bounds of an offset"),
    ("At callback return", "precision: the kernel has wider bounds of what a callback gives"),
    // It divides without bounds, so that a counter that is divided seems to stand still.
    ("infinite loop detected", "precision: the kernel sees no progress of a counter"),
];
const PRECISION_RUNS: u32 = 60;

/// What a program with the kernel's rules looks like: aligned, with constant offsets into the context.
fn shape() -> Shape {
    Shape {
        aligned: true,
        fixed_ctx: true,
        ctx_atomics: false,
        helpers: vec![],
        stale_values: false,
        long_loops: 0,
        rounds: 3,
        statements: 12,
        ..Shape::generic()
    }
}

fn env() -> Env {
    Env { ret: ReturnRule::Scalar, insn_budget: 100_000, ..ringfence_soak::env() }
}

#[derive(Default)]
struct Table {
    both_accept: u64,
    both_refuse: u64,
    runs: u64,
    /// By the explanation.
    only_we: BTreeMap<&'static str, u64>,
    /// By our kind.
    only_kernel: BTreeMap<&'static str, u64>,
    not_run: u64,
    /// What the kernel accepts and we refuse, with our reason.
    precise: Vec<String>,
    failures: Vec<String>,
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

/// Why the kernel refuses what we accept; `None` if we cannot tell.
fn explained(v: &Verified, refusal: &Refusal) -> Option<&'static str> {
    if let Some((_, why)) = RULES.iter().find(|(pattern, _)| refusal.reason.contains(pattern)) {
        return Some(why);
    }
    if unaligned_ctx(&refusal.reason) {
        return Some("kernel: context accesses are aligned; ours is a buffer");
    }
    let last = refusal.path.last()?;
    if v.fact(*last).is_none() {
        return Some("dead: we proved that no path leads to the instruction");
    }
    if refusal.path.windows(2).any(|w| impossible(v, w[0], w[1])) {
        return Some("dead: we proved that no path takes a branch on the kernel's path");
    }
    PRECISION.iter().find(|(pattern, _)| refusal.reason.contains(pattern)).map(|(_, why)| *why)
}

/// `invalid bpf_context access off=3 size=4`, inside the context.
fn unaligned_ctx(reason: &str) -> bool {
    let Some(rest) = reason.strip_prefix("invalid bpf_context access off=") else { return false };
    let Some((off, size)) = rest.split_once(" size=") else { return false };
    match (off.parse::<usize>(), size.parse::<usize>()) {
        (Ok(off), Ok(size)) => size > 0 && off % size != 0 && off + size <= CTX_BYTES,
        _ => false,
    }
}

/// A conditional jump that we proved never to go there.
fn impossible(v: &Verified, from: Pc, to: Pc) -> bool {
    let (Some(Insn::JumpIf { target, .. }), Some(fact)) = (v.program().insn(from), v.fact(from)) else {
        return false;
    };
    let falls = to == from.plus(1);
    (falls && *target != to && !fact.ways.fallthrough) || (!falls && *target == to && !fact.ways.taken)
}

/// r2 holds the context's size in our environment; in the kernel nothing.
fn with_size(code: &Code) -> Code {
    let src = Operand::Imm(CTX_BYTES as i32);
    let set = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R2, src };
    let items = std::iter::once(Item::Insn(set)).chain(code.items.iter().copied()).collect();
    Code { items, labels: code.labels }
}

impl Table {
    fn judge(
        &mut self,
        kernel: &mut Kernel,
        verifier: &Verifier,
        program: Program,
        comparable: bool,
        r: &mut Random,
    ) {
        let worlds: Vec<World> = (0..3).map(|_| world(&program, r)).collect();
        let verdict = kernel.judge(&program, &worlds).expect("bpf-run answers");
        let text = program.disassemble();
        match (verifier.verify(program), verdict) {
            (Ok(v), Verdict::Accepted(runs)) => {
                self.both_accept += 1;
                for (world, got) in worlds.iter().zip(runs) {
                    // EINVAL: dead code, which the kernel does not know to be dead, looks beyond the context.
                    let larger =
                        matches!(got, Err(22)) && v.program().iter().any(|(pc, _)| v.fact(pc).is_none());
                    if !comparable || larger || reads_record(&v) {
                        self.not_run += 1;
                        continue;
                    }
                    self.runs += 1;
                    if let Err(why) = same(v.program(), world, got) {
                        self.failures.push(format!("{why}\n{text}"));
                        return;
                    }
                }
            }
            (Ok(v), Verdict::Refused(refusal)) => match explained(&v, &refusal) {
                Some(why) => {
                    *self.only_we.entry(why).or_default() += 1;
                    if why.starts_with("precision") || why.starts_with("dead") {
                        self.trace(v.program().clone(), r);
                    }
                }
                None => self.failures.push(format!("we accept, the kernel says: {}\n{text}", refusal.reason)),
            },
            (Err(e), Verdict::Accepted(_)) => {
                *self.only_kernel.entry(e.kind().name()).or_default() += 1;
                self.precise.push(format!("{e}\n{text}"));
            }
            (Err(_), Verdict::Refused(_)) => self.both_refuse += 1,
        }
    }
}

impl Table {
    /// What we believe beyond the kernel is held against traces.
    fn trace(&mut self, program: Program, r: &mut Random) {
        let oracle = Oracle::new(&Shape { helpers: vec![5, 7, 8], ..shape() }, env()).runs(PRECISION_RUNS);
        if let Err(v) = oracle.judge(program, r, &mut Tally::default()) {
            self.failures.push(format!("{}\n{}", v.why, v.text));
        }
    }
}

fn world(program: &Program, r: &mut Random) -> World {
    let ctx = random_context(CTX_BYTES as u32, r);
    let mut run = interp(program, ctx, &[], 1);
    fill_maps(&mut run, r);
    World::new(run.memory().ctx(), run.memory().maps())
}

/// Runs the program on that world; does it leave what the kernel's run left?
fn same(program: &Program, start: &World, kernel: Result<(u32, World), u32>) -> Result<(), String> {
    let mut run = interp(program, start.ctx.clone(), &[], 1).budget(STEPS);
    for (map, content) in run.memory_mut().maps_mut().iter_mut().zip(&start.maps) {
        for (key, value) in content {
            map.update(key, value, 0).map_err(|e| format!("cannot set a value: {e}"))?;
        }
    }
    let mut address_tested = false;
    let end = run.run_hooked(|pc, regs, _| address_tested |= tests_address(program.insn(pc), regs));
    let ours = match end {
        Ok(r0) => r0 as u32,
        Err(f) if f.kind == FaultKind::Budget => return Ok(()),
        Err(f) => return Err(format!("our run faults: {f}")),
    };
    // Addresses are other numbers in the kernel.
    if address_tested {
        return Ok(());
    }
    let (r0, end) = kernel.map_err(|e| format!("the kernel's run gives error {e}"))?;
    let left = World::new(run.memory().ctx(), run.memory().maps());
    if ours != r0 {
        return Err(format!("r0 is {ours:#x}, in the kernel {r0:#x}; context {:x?}", start.ctx));
    }
    if left != end {
        return Err(format!("context and maps differ\nstart  {start:x?}\nours   {left:x?}\nkernel {end:x?}"));
    }
    Ok(())
}

/// Does it compare a pointer otherwise than with null?
fn tests_address(insn: Option<&Insn>, regs: &Regs) -> bool {
    let Some(&Insn::JumpIf { cond, dst, src, .. }) = insn else { return false };
    let address = |x: u64| match (x >> 32, x & 0xffff_ffff) {
        (1, low) => (4096..=16384 + CTX_BYTES as u64).contains(&low),
        (tag, low) => (2..10).contains(&tag) && low < 16384,
    };
    let (a, b) = (regs[dst.index()], operand(src, regs));
    let null = matches!(cond, Cond::Eq | Cond::Ne) && (a == 0 || b == 0);
    (address(a) || address(b)) && !null
}

/// Can its results be compared? No random numbers; no value that outlives its key, which the kernel may have handed out again;
/// no walk over a hash, whose order is the kernel's own.
fn comparable(program: &Program, mutant: bool) -> bool {
    let hash = |i: &Insn| matches!(i, Insn::LoadImm64 { imm: Imm64::Map(MapIdx(0)), .. });
    let with_hash = program.iter().any(|(_, i)| hash(i));
    program.iter().all(|(_, i)| match i {
        Insn::CallHelper { id: 1 | 93 | 94 | 131..=133 | 181 } => true,
        Insn::CallHelper { id: 2 | 3 } => !mutant,
        Insn::CallHelper { id: 164 } => !with_hash,
        Insn::CallHelper { .. } => false,
        _ => true,
    })
}

/// Does it look into a record? There lies what earlier runs left.
fn reads_record(v: &Verified) -> bool {
    let reads = |i: &Insn| matches!(i, Insn::Load { .. } | Insn::Atomic { .. });
    let ring = |r: Region| matches!(r, Region::Mixed | Region::Map(MapIdx(5)));
    let access = |pc| v.fact(pc).and_then(|f| f.access);
    v.program().iter().any(|(pc, i)| reads(i) && access(pc).is_some_and(|a| ring(a.region)))
}

#[test]
fn the_kernel_agrees() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/bpf-run.c");
    let maps = maps();
    let mut kernel = match Kernel::start(&source, Path::new(env!("CARGO_TARGET_TMPDIR")), &maps) {
        Ok(k) => k,
        Err(why) => {
            println!("SKIPPED: nothing was compared with the kernel: {why}");
            return;
        }
    };
    let (programs, seed) = (setting("RINGFENCE_KERNEL_PROGRAMS", 800), setting("RINGFENCE_KERNEL_SEED", 1));
    let verifier = Verifier::new(Arc::new(env()));
    let (mut r, shape) = (Random::new(seed), shape());
    let mut table = Table::default();
    for _ in 0..programs {
        let mut code = generate(&mut r, &shape);
        let mutant = r.chance(40);
        if mutant {
            mutate::mutate(&mut code, &mut r);
        }
        let Ok(program) = with_size(&code).program(&maps) else { continue };
        let comparable = comparable(&program, mutant);
        table.judge(&mut kernel, &verifier, program, comparable, &mut r);
    }
    report(&table, seed);
}

fn report(t: &Table, seed: u64) {
    println!(
        "seed {seed}: both accept {}, both refuse {}, {} runs compared",
        t.both_accept, t.both_refuse, t.runs
    );
    println!("only we accept: {:#?}", t.only_we);
    println!("only the kernel accepts, by our reason: {:#?}", t.only_kernel);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for f in &t.failures {
        let first = f.lines().next().unwrap_or_default();
        let class: String = first.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
        *kinds.entry(class.replace("##", "#").replace("##", "#")).or_default() += 1;
    }
    println!("unexplained: {kinds:#?}");
    if let Some(dir) = std::env::var_os("RINGFENCE_KERNEL_DUMP") {
        for (i, f) in t.failures.iter().enumerate() {
            std::fs::write(Path::new(&dir).join(format!("{i}.txt")), f).expect("a place for finds");
        }
        for (i, f) in t.precise.iter().enumerate() {
            std::fs::write(Path::new(&dir).join(format!("k{i}.txt")), f).expect("a place for finds");
        }
    }
    let shown =
        t.failures.iter().take(setting("RINGFENCE_KERNEL_SHOWN", 5) as usize).cloned().collect::<Vec<_>>();
    assert!(t.failures.is_empty(), "{} unexplained\n{}", t.failures.len(), shown.join("\n"));
    assert!(t.both_accept > 100 && t.runs > 100, "too little was compared");
}
