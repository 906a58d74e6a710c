//! CPU time of the profiler's events, called through the plugins' exported symbols as NCCL calls them, with events that were laid out
//! before: an empty native profiler, and ours with nothing in force, with a policy that updates a hash for each finished collective
//! (latency_map), with one that updates a hash for each event, and with one that looks up and updates a hash for each event. One turn is a collective of four channels: 14 calls.
//!
//! Bars (design.md section 8, issue 4): 150 ns an event with a policy that updates a hash, 10 ns where nobody wants it.

use anyhow::{Context, Result, bail};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use ringfence_benches::{Subject, built, cpu_per_call, header, root};
use ringfence_host::ffi::profiler::types::{ArgsV4, BodyV6, CollV4, CollV5, DescrV6, KernelChV4, ProfilerV6};
use std::ffi::c_void;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

const CHANNELS: u8 = 4;
/// Calls of one turn: the collective's start and stop, and three for each channel.
const CALLS: u64 = 2 + 3 * CHANNELS as u64;
const ROUNDS: usize = 31;
const TURNS: u64 = 10_000;
const KERNEL_CH_STOP: i32 = 22;

/// What is in force, its manifest, and the bar in ns an event.
const CASES: [(&str, &str, f64); 4] = [
    ("nothing", "policy = []\n", 10.0),
    ("latency_map", "[[policy]]\nfile = 'latency_map.bpf.o'\n", 150.0),
    (
        "event_update",
        "[[policy]]\nfile = 'event_update.bpf.o'\nevents = ['coll', 'kernel_ch']\n[[policy]]\nfile = 'latency_map.bpf.o'\n",
        150.0,
    ),
    (
        "event_hash",
        "[[policy]]\nfile = 'event_hash.bpf.o'\nevents = ['coll', 'kernel_ch']\n[[policy]]\nfile = 'latency_map.bpf.o'\n",
        150.0,
    ),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, case] = args.as_slice()
        && child == "child"
    {
        return measure(case);
    }
    header("profiler events, CPU ns per event (median of 31 x 140000 calls), process with a second thread");
    println!("{:<14} {:>8} {:>10} {:>7} {:>10}", "in force", "native", "ringfence", "ratio", "bar");
    let dir = tempfile::tempdir()?;
    std::fs::copy(built("policies/latency_map.bpf.o")?, dir.path().join("latency_map.bpf.o"))?;
    for name in ["event_update", "event_hash"] {
        let (source, object) = (format!("{name}.bpf.c"), dir.path().join(format!("{name}.bpf.o")));
        compile("clang-19", &["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-c"], &source, &object)?;
    }
    let native = root().join("target/native_profiler.so");
    compile("cc", &["-O2", "-shared", "-fPIC", "-Wall", "-Wextra"], "native_profiler.c", &native)?;
    for (case, manifest, _) in CASES {
        std::fs::write(dir.path().join("ringfence.toml"), manifest)?;
        let status = Command::new(std::env::current_exe()?)
            .args(["child", case])
            .env("RINGFENCE_POLICY", dir.path())
            .env("RINGFENCE_LOG", "error")
            .env("NATIVE_PROFILER", &native)
            .status()?;
        if !status.success() {
            bail!("the run of {case} failed");
        }
    }
    Ok(())
}

fn compile(compiler: &str, flags: &[&str], source: &str, out: &Path) -> Result<()> {
    let status = Command::new(compiler)
        .args(flags)
        .arg("-I")
        .arg(root().join("policies/include"))
        .arg("-o")
        .arg(out)
        .arg(root().join("benches").join(source))
        .status()
        .with_context(|| format!("{compiler} is needed"))?;
    if !status.success() {
        bail!("{compiler} failed on benches/{source}");
    }
    Ok(())
}

fn measure(case: &str) -> Result<()> {
    let (.., bar) = *CASES.iter().find(|c| c.0 == case).context("unknown case")?;
    let mut native = Plugin::open(std::env::var("NATIVE_PROFILER")?.into())?;
    let ours = match std::env::var_os("RINGFENCE_SO") {
        Some(path) => path.into(),
        None => built("release/libnccl_ringfence.so")?,
    };
    let mut ours = Plugin::open(ours)?;
    // The bar is for a process with a second thread: glibc and others have cheaper paths while there is one.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::park();
            }
        });
        let mut subjects =
            [("native", &mut native), ("ringfence", &mut ours)].map(|(name, plugin)| Subject {
                name: name.to_owned(),
                calls: Box::new(move |turns| (0..turns).for_each(|n| plugin.turn(n))),
            });
        let ns = cpu_per_call(&mut subjects, ROUNDS, TURNS);
        let (native, ours) = (ns[0] / CALLS as f64, ns[1] / CALLS as f64);
        let verdict = if ours <= bar { "ok" } else { "OVER" };
        println!(
            "{case:<14} {native:>8.1} {ours:>10.1} {:>6.1}x {:>10}",
            ours / native,
            format!("{bar} {verdict}")
        );
        stop.store(true, Ordering::Relaxed);
        second.thread().unpark();
    });
    Ok(())
}

/// A plugin with one communicator, and the events that it is told of.
struct Plugin {
    table: &'static ProfilerV6,
    context: *mut c_void,
    coll: DescrV6,
    kernel: DescrV6,
}

impl Plugin {
    fn open(path: PathBuf) -> Result<Plugin> {
        // SAFETY: the two plugins of this benchmark. They are never closed.
        let library = Box::leak(Box::new(unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?));
        // SAFETY: the symbol is NCCL's structure of that version.
        let table: &'static ProfilerV6 = unsafe { &**library.get::<*const ProfilerV6>(b"ncclProfiler_v6")? };
        let mask: &'static AtomicI32 = Box::leak(Box::new(AtomicI32::new(0)));
        let mut context = null_mut();
        let init = table.init.context("no init")?;
        // SAFETY: NCCL's arguments; the mask lives for good.
        unsafe { init(&mut context, 7, mask.as_ptr(), null(), 1, 8, 0, None) };
        let coll = CollV4 {
            seq: 0,
            func: c"AllReduce".as_ptr(),
            send: null(),
            recv: null_mut(),
            count: 1 << 20,
            root: 0,
            datatype: c"ncclFloat32".as_ptr(),
            n_channels: CHANNELS,
            n_warps: 16,
            algo: c"RING".as_ptr(),
            proto: c"SIMPLE".as_ptr(),
        };
        let descr = |event, body| DescrV6 { event, parent: null_mut(), rank: 0, body };
        Ok(Plugin {
            table,
            context,
            coll: descr(2, BodyV6 { coll: CollV5 { base: coll, parent_group: null_mut() } }),
            kernel: descr(0x40, BodyV6 { kernel_ch: KernelChV4 { channel: 0, timer: 0 } }),
        })
    }

    fn turn(&mut self, n: u64) {
        let (Some(start), Some(stop), Some(state)) =
            (self.table.start_event, self.table.stop_event, self.table.record_event_state)
        else {
            return;
        };
        let mut coll = null_mut();
        let mut kernels = [null_mut(); CHANNELS as usize];
        // SAFETY: calls as NCCL makes them, with events and arguments that live across each.
        unsafe {
            self.coll.body.coll.base.seq = n;
            start(self.context, &mut coll, black_box(&mut self.coll));
            stop(coll);
            self.kernel.parent = coll;
            for (channel, kernel) in (0..CHANNELS).zip(&mut kernels) {
                self.kernel.body.kernel_ch = KernelChV4 { channel, timer: 1000 + n };
                start(self.context, kernel, black_box(&mut self.kernel));
            }
            for kernel in kernels {
                let mut args = ArgsV4 { timer: 2000 + 2 * n };
                state(kernel, KERNEL_CH_STOP, black_box(&mut args));
                stop(kernel);
            }
        }
    }
}
