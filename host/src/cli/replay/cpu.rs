//! [`per_call`]: CPU time of a decision, from batches without a clock inside.

use super::group::{Group, Line};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Instant;

/// Calls of one batch.
const BATCH: usize = 20_000;
/// Batches; the median counts.
const BATCHES: usize = 9;

/// CPU nanoseconds of this thread so far.
fn thread_cpu_ns() -> i128 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec)
}

/// Median CPU nanoseconds per call over the lines of a trace, refilling the cost table taken off.
pub(super) fn per_call(group: &mut Group, lines: &[Line]) -> f64 {
    let calls = median(|| batch(lines, |line| black_box(group.call_first(line))));
    let refill = median(|| batch(lines, |line| black_box(group.refill(line))));
    (calls - refill).max(0.0)
}

fn batch<R>(lines: &[Line], mut f: impl FnMut(&Line) -> R) -> f64 {
    let start = thread_cpu_ns();
    for line in lines.iter().cycle().take(BATCH) {
        f(line);
    }
    (thread_cpu_ns() - start) as f64 / BATCH as f64
}

fn median(mut f: impl FnMut() -> f64) -> f64 {
    f();
    let mut all: Vec<f64> = (0..BATCHES).map(|_| f()).collect();
    all.sort_by(f64::total_cmp);
    all.get(BATCHES / 2).copied().unwrap_or(0.0)
}

/// Median nanoseconds that reading the clock twice adds to a measured latency.
pub(super) fn clock_overhead_ns() -> u64 {
    let mut all: Vec<u64> = (0..10_001).map(|_| Instant::now().elapsed().as_nanos() as u64).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}
