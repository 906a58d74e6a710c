//! CPU time of a whole `getCollInfo`, called through the plugins' exported symbols as NCCL calls it, in a process with
//! a second thread: ours, a native plugin, and rbpf's interpreter and JIT behind an equivalent of our context and
//! cost-table code. Each policy runs in a process of its own, with its native baseline in the same run.
//!
//! Bars (design.md section 8, issue 2), as ratios to the native plugin: noop 9, size_aware 9, lookup_only 15,
//! lookup_update 23; NCCLbpf: 53, 55, 71, 80.

use anyhow::{Context, Result, bail};
use ringfence_benches::{Subject, built, cpu_per_call, header, native_plugin};
use ringfence_guest::abi;
use ringfence_host::ffi::driver::{Comm, Plugin, Table};
use ringfence_translator::Object;
use ringfence_translator::isa::{Imm64, Insn};
use std::fs::Permissions;
use std::hint::black_box;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Policy, what the native plugin does beside it, bar in CPU ns, bar as a ratio.
const POLICIES: [(&str, &str, f64, f64); 6] = [
    ("noop", "noop", 35.0, 9.0),
    ("size_aware", "size_aware", 36.0, 9.0),
    ("lookup_only", "noop", 60.0, 15.0),
    ("lookup_update", "noop", 90.0, 23.0),
    ("adaptive_channels", "noop", 90.0, 23.0),
    ("slo_enforcer", "noop", 110.0, 28.0),
];
/// Name of the child that measures a chain, and the bar of issue 4: four noop policies against one.
const CHAIN: &str = "chain";
const CHAIN_BAR: f64 = 2.2;
const ROUNDS: usize = 31;
const BATCH: u64 = 200_000;
const SIZES: [usize; 8] = [1 << 10, 1 << 14, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28];

fn main() -> Result<()> {
    // Under `cargo bench` the arguments hold `--bench`; a child gets `child POLICY`.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, policy] = args.as_slice()
        && child == "child"
    {
        return if policy == CHAIN { measure_chain() } else { measure(policy) };
    }
    header("whole getCollInfo, CPU ns per call (median of 31 x 200000 calls), process with a second thread");
    println!(
        "{:<18} {:>8} {:>10} {:>7} {:>12} {:>10} {:>10}",
        "policy", "native", "ringfence", "ratio", "bar", "rbpf-int", "rbpf-jit"
    );
    let native = native_plugin()?;
    for (policy, baseline, ..) in POLICIES {
        let status = Command::new(std::env::current_exe()?)
            .args(["child", policy])
            .env("RINGFENCE_POLICY", built(&format!("policies/{policy}.bpf.o"))?)
            .env("RINGFENCE_LOG", "error")
            .env("NATIVE_PLUGIN", &native)
            .env("NATIVE_POLICY", baseline)
            .status()?;
        if !status.success() {
            bail!("the run of {policy} failed");
        }
    }
    chain(&native)
}

/// A chain of four noop policies against one, in one process.
fn chain(native: &Path) -> Result<()> {
    let dir = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?;
    let status = Command::new(std::env::current_exe()?)
        .args(["child", CHAIN])
        .env("RINGFENCE_POLICY", dir.path())
        .env("RINGFENCE_LOG", "error")
        .env("NATIVE_PLUGIN", native)
        .env("NATIVE_POLICY", "noop")
        .status()?;
    if !status.success() {
        bail!("the run of the chain failed");
    }
    Ok(())
}

fn measure_chain() -> Result<()> {
    let dir = PathBuf::from(std::env::var_os("RINGFENCE_POLICY").context("a directory")?);
    let copies = tempfile::tempdir()?;
    // A copy of the library is another plugin with a state of its own. Communicators of several ranks keep their set.
    let plugin_with = |policies: usize| -> Result<Comm> {
        std::fs::copy(built("policies/noop.bpf.o")?, dir.join("noop.bpf.o"))?;
        std::fs::write(dir.join("ringfence.toml"), "[[policy]]\nfile = 'noop.bpf.o'\n".repeat(policies))?;
        let copy = copies.path().join(format!("libringfence{policies}.so"));
        std::fs::copy(built("release/libnccl_ringfence.so")?, &copy)?;
        Ok(Plugin::open(copy)?.init(8, 1, 7).0)
    };
    let (mut one, mut four) = (plugin_with(1)?, plugin_with(4)?);
    let mut native = Plugin::open_version(std::env::var("NATIVE_PLUGIN")?, 5)?.init(8, 1, 7).0;
    let mut subjects = [plugin("native", &mut native), plugin("one", &mut one), plugin("four", &mut four)];
    let ns = cpu_per_call(&mut subjects, ROUNDS, BATCH);
    let ratio = ns[2] / ns[1];
    let verdict = if ratio <= CHAIN_BAR { "ok" } else { "OVER" };
    println!(
        "\nchain: native {:.1} ns, one noop {:.1}, four noops {:.1}: {ratio:.2}x of one (bar {CHAIN_BAR}x {verdict})",
        ns[0], ns[1], ns[2]
    );
    Ok(())
}

fn measure(policy: &str) -> Result<()> {
    let (.., bar, bar_ratio) = *POLICIES.iter().find(|p| p.0 == policy).context("unknown policy")?;
    let ours = Plugin::open(built("release/libnccl_ringfence.so")?)?;
    let native = Plugin::open_version(std::env::var("NATIVE_PLUGIN")?, 5)?;
    // The bar is for a process with a second thread: glibc and others have cheaper paths while there is one.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::park();
            }
        });
        let (mut native, _) = native.init(8, 1, 7);
        let (mut ours, _) = ours.init(8, 1, 7);
        let code = code_for_rbpf(policy)?;
        let mut subjects = vec![plugin("native", &mut native), plugin("ringfence", &mut ours)];
        if let Some(code) = &code {
            subjects.push(rbpf(code, false)?);
            subjects.push(rbpf(code, true)?);
        }
        let ns = cpu_per_call(&mut subjects, ROUNDS, BATCH);
        let cell = |i: usize| ns.get(i).map_or("-".to_owned(), |n| format!("{n:.1}"));
        let ratio = ns[1] / ns[0];
        println!(
            "{policy:<18} {:>8.1} {:>10.1} {ratio:>6.1}x {:>12} {:>10} {:>10}",
            ns[0],
            ns[1],
            format!("{bar}/{bar_ratio}x {}", if ns[1] <= bar || ratio <= bar_ratio { "ok" } else { "OVER" }),
            cell(2),
            cell(3)
        );
        stop.store(true, Ordering::Relaxed);
        second.thread().unpark();
        Ok(())
    })
}

fn table() -> Table {
    let mut costs: Vec<f32> = (0..21).map(|i| 10.0 + i as f32).collect();
    // CollNet (rows 2 and 3) and NVLS (4 and 5) are not available, as on a plain node.
    costs[6..18].fill(-1.0);
    Table::new(7, 3, costs)
}

fn plugin<'a>(name: &str, comm: &'a mut Comm) -> Subject<'a> {
    let mut table = table();
    let calls = move |n: u64| {
        for i in 0..n {
            let size = SIZES[i as usize % SIZES.len()];
            black_box(comm.get_coll_info(
                abi::func::ALL_REDUCE as i32,
                black_box(size),
                1,
                &mut table,
                false,
            ));
        }
    };
    Subject { name: name.to_owned(), calls: Box::new(calls) }
}

/// The policy's code for rbpf, if it uses no map: rbpf has none.
fn code_for_rbpf(policy: &str) -> Result<Option<Vec<u8>>> {
    let bytes = std::fs::read(built(&format!("policies/{policy}.bpf.o"))?)?;
    let object = Object::parse(&bytes)?;
    let name = object.programs().next().context("no program")?.name().to_owned();
    let program = object.program(&name)?;
    let uses_map = program.iter().any(|(_, insn)| {
        matches!(
            insn,
            Insn::LoadImm64 { imm: Imm64::Map(_) | Imm64::MapValue { .. }, .. } | Insn::CallLocal { .. }
        )
    });
    Ok((!uses_map).then(|| program.encode()))
}

/// rbpf behind the same duties: fill the context, run, read the decision, apply it to the table.
fn rbpf<'a>(code: &'a [u8], jit: bool) -> Result<Subject<'a>> {
    let mut vm = rbpf::EbpfVmRaw::new(Some(code)).map_err(|e| anyhow::anyhow!("rbpf: {e}"))?;
    if jit {
        vm.jit_compile().map_err(|e| anyhow::anyhow!("rbpf: {e}"))?;
    }
    let mut table = table();
    let mut context = [0u8; size_of::<abi::CollContext>()];
    let calls = move |n: u64| {
        for i in 0..n {
            fill(&mut context, SIZES[i as usize % SIZES.len()], table.costs());
            let r0 = match jit {
                // SAFETY: the verifier accepted this program for a context of this size (it is a shipped policy),
                // and rbpf's JIT is only measured here, never part of the product.
                true => unsafe { vm.execute_program_jit(&mut context) },
                false => vm.execute_program(&mut context),
            };
            if matches!(r0, Ok(0)) {
                apply(&context, table.costs_mut());
            }
        }
    };
    Ok(Subject { name: if jit { "rbpf-jit" } else { "rbpf-int" }.to_owned(), calls: Box::new(calls) })
}

fn fill(context: &mut [u8], n_bytes: usize, costs: &[f32]) {
    let mut put = |at: usize, v: u32| context[at..at + 4].copy_from_slice(&v.to_le_bytes());
    let available = costs.iter().enumerate().fold(0, |mask, (i, c)| mask | u32::from(*c >= 0.0) << i);
    for (at, v) in
        [(0, n_bytes as u32), (4, 0), (16, 4), (20, 8), (24, 1), (28, 1), (36, 7), (40, 3), (44, 64)]
    {
        put(at, v);
    }
    put(48, available);
    put(64, abi::UNSET);
    put(68, abi::UNSET);
    put(72, 0);
}

fn apply(context: &[u8], costs: &mut [f32]) {
    let get = |at: usize| context[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or(0);
    let (algo, proto) = (get(64), get(68));
    if algo < 7 && proto < 3 {
        let entry = &mut costs[(algo * 3 + proto) as usize];
        if *entry >= 0.0 {
            *entry = 0.0;
        }
    }
    black_box(get(72));
}
