//! A long run of the profiler: `ringfence-profiler-soak [EVENTS]` (default 10^8) tells the plugin of collectives as NCCL does, good and
//! bad, from several threads, and looks that memory stays flat: no allocation inside any call once all is warm, and a resident set that
//! does not grow. `RINGFENCE_POLICY` names the policies, as ever. Ends with 1 if anything grew or nothing was measured.

use anyhow::{Context, Result, bail};
use ringfence_host::ffi::driver::{CollEvent, Enqueued, Profiler, ProfilerComm, Start};
use ringfence_host::profiler::counters;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

const DEFAULT: u64 = 100_000_000;
/// Ranks, each a communicator with an application thread and a proxy thread.
const RANKS: i32 = 2;
/// The resident set may grow by this much: pages of stacks and of the allocator's own that are touched late.
const SLACK: u64 = 4 << 20;

/// Counts allocations that are made inside calls of the plugin.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn note() {
    if INSIDE.get() {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: passes everything on to the system's allocator; counting touches an atomic and a thread-local without destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A call of the plugin.
fn inside<R>(call: impl FnOnce() -> R) -> R {
    INSIDE.set(true);
    let result = call();
    INSIDE.set(false);
    result
}

fn main() -> Result<()> {
    let events = match std::env::args().nth(1) {
        Some(text) => text.parse().with_context(|| format!("{text} is no number of events"))?,
        None => DEFAULT,
    };
    if std::env::var_os("RINGFENCE_POLICY").is_none() {
        bail!("RINGFENCE_POLICY is not set: without a policy NCCL tells of nothing");
    }
    let profiler = Profiler::built_in(6).context("version 6 is built in")?;
    let ranks: Vec<_> = (0..RANKS).map(|rank| profiler.init(0xabc, rank, RANKS, 1, "soak")).collect();
    if profiler.mask() == 0 {
        bail!("the policies ask for no events");
    }
    let stop = AtomicBool::new(false);
    let grown = std::thread::scope(|scope| {
        for (seed, comm) in ranks.iter().enumerate() {
            let (send, receive) = sync_channel(256);
            let stop = &stop;
            scope.spawn(move || application(comm, &send, stop, seed as u64 + 1));
            scope.spawn(move || proxy(comm, &receive, seed as u64 + 77));
        }
        let grown = watch(events);
        stop.store(true, Relaxed);
        grown
    });
    ranks.into_iter().for_each(drop);
    for (name, value) in counters().named().into_iter().filter(|(_, value)| *value != 0) {
        println!("  {name:<18} {value}");
    }
    if grown? {
        bail!("memory is not flat");
    }
    Ok(())
}

fn told() -> u64 {
    let c = counters();
    c.started + c.stopped + c.states
}

/// Waits until that many events were told of, and reports. True if memory grew once a twentieth of them was through.
fn watch(events: u64) -> Result<bool> {
    let begun = Instant::now();
    while told() < events / 20 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (warm, allocations) = (resident()?, ALLOCATIONS.load(Relaxed));
    let mut most = warm;
    while told() < events {
        std::thread::sleep(Duration::from_millis(20));
        most = most.max(resident()?);
    }
    let (took, all) = (begun.elapsed(), told());
    let allocated = ALLOCATIONS.load(Relaxed) - allocations;
    println!(
        "{all} events in {took:.1?} ({:.0} ns each over {RANKS} ranks), resident {} KiB when warm, at most {} KiB, {allocated} allocations in calls",
        took.as_nanos() as f64 / all as f64,
        warm >> 10,
        most >> 10,
    );
    if counters().samples == 0 {
        bail!("no collective was measured");
    }
    Ok(most > warm + SLACK || allocated != 0)
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("no resident set")?.parse()?;
    Ok(pages * 4096)
}

/// What the proxy thread is to do with a collective.
#[derive(Clone, Copy)]
enum Task {
    Kernels(Enqueued),
    Twice(Enqueued),
    Half(Enqueued),
    Steps(usize),
    Garbage(usize),
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

fn application(comm: &ProfilerComm, send: &SyncSender<Task>, stop: &AtomicBool, seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut seq = 0;
    while !stop.load(Relaxed) {
        seq += 1;
        let start_ns = 1_000_000 + 1000 * seq;
        let event = CollEvent {
            func: (next(&mut random) % 5) as u32,
            count: 1 << (next(&mut random) % 24),
            datatype: 7,
            algo: 1,
            proto: 2,
            channels: (next(&mut random) % 9) as u8,
            seq,
            start_ns,
            stop_ns: start_ns + next(&mut random) % 100_000,
        };
        let enqueued = inside(|| comm.enqueue(&event));
        let task = match next(&mut random) % 100 {
            // It never ends: its kernels are symmetric ones, say.
            0..5 => continue,
            5..10 => Task::Twice(enqueued),
            10..13 => Task::Half(enqueued),
            13..16 => Task::Garbage(enqueued.handle()),
            16..22 => Task::Steps(enqueued.handle()),
            _ => Task::Kernels(enqueued),
        };
        if send.send(task).is_err() {
            return;
        }
    }
}

fn proxy(comm: &ProfilerComm, tasks: &Receiver<Task>, seed: u64) {
    let mut random = seed | 1;
    for task in tasks {
        match task {
            Task::Kernels(e) => inside(|| comm.kernels(&e)),
            Task::Twice(e) => inside(|| {
                comm.kernels(&e);
                comm.kernels(&e);
            }),
            Task::Half(e) => inside(|| {
                let kernel = comm.start(Start::KernelCh { channel: 0, timer: 5 }, e.handle());
                comm.stop(kernel);
                comm.stop(kernel);
            }),
            Task::Steps(coll) => inside(|| steps(comm, coll)),
            Task::Garbage(coll) => {
                let wild = next(&mut random) as usize;
                inside(|| {
                    for handle in [0, wild, coll ^ 1, coll] {
                        comm.state(handle, 22, Some(wild as u64));
                        comm.stop(handle);
                    }
                    comm.start_at(wild, Start::KernelCh { channel: 1, timer: 0 }, wild, 0);
                });
            }
        }
    }
}

/// A proxy operation with its steps, every other one of a foreign process, some without a stop.
fn steps(comm: &ProfilerComm, coll: usize) {
    let own = std::process::id();
    for pid in [own, own + 1] {
        let op = Start::ProxyOp { pid, channel: 0, peer: 1, steps: 4, chunk: 4096, send: true };
        let op = comm.start(op, coll);
        for n in 0..4 {
            let step = comm.start(Start::ProxyStep(n), op);
            comm.state(step, 9, Some(4096));
            if n != 3 {
                comm.stop(step);
            }
        }
        comm.stop(op);
    }
}
