//! [`Summary`]: the finished operations of one communicator, summed up by function, size, algorithm and protocol, for metrics in the manner
//! of NCCL Inspector (plugins/profiler/inspector/inspector_prom.cc): mean time and geometric mean of the bus bandwidth.
//!
//! Any thread adds: a row is claimed by one compare-and-swap and then only counted up. Rows are as many as a training job has kinds of
//! collectives several times over; what finds none is counted in one sum of its own.

use ringfence_guest::abi::{ProfilerContext, func};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rows of a communicator, a power of two.
const ROWS: usize = 128;
/// Rows that are looked at for one key.
const PROBES: usize = 8;
/// Fixed point of logarithms: steps in a factor of 2.
const LOG_STEPS: f64 = (1u64 << 20) as f64;
/// Added to logarithms, so that those of a byte in an hour are positive.
const LOG_BIAS: f64 = 64.0;

/// Sums of one communicator. Fixed memory, 5 KiB.
pub(crate) struct Summary {
    rows: [Row; ROWS],
    /// Operations that found no row.
    others: AtomicU64,
}

#[derive(Default)]
struct Row {
    /// [`Key::word`]; 0 while the row is free.
    key: AtomicU64,
    count: AtomicU64,
    duration_ns: AtomicU64,
    /// Operations with a bandwidth, and the sum of their logarithms.
    rated: AtomicU64,
    logs: AtomicU64,
}

/// What operations are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) func: u32,
    pub(crate) algo: u32,
    pub(crate) proto: u32,
    /// Unit of 1024 to that power, and how many of them, rounded down: Inspector's ranges `4-5MB`.
    pub(crate) unit: u32,
    pub(crate) units: u32,
}

impl Key {
    fn of(context: &ProfilerContext) -> Key {
        let bytes = message_bytes(context);
        let unit = (u64::BITS - 1 - bytes.max(1).leading_zeros()) / 10;
        let unit = unit.min(4);
        let units = (bytes >> (10 * unit)).min(u64::from(u16::MAX)) as u32;
        Key { func: context.func, algo: context.algo, proto: context.proto, unit, units }
    }

    /// Never 0.
    fn word(self) -> u64 {
        let byte = |n: u32| u64::from(n.min(0xff));
        1 << 63
            | byte(self.func) << 40
            | byte(self.algo) << 32
            | byte(self.proto) << 24
            | u64::from(self.unit) << 16
            | u64::from(self.units & 0xffff)
    }

    fn of_word(word: u64) -> Key {
        let field = |shift: u32, mask: u64| (word >> shift & mask) as u32;
        Key {
            func: field(40, 0xff),
            algo: field(32, 0xff),
            proto: field(24, 0xff),
            unit: field(16, 0xff),
            units: field(0, 0xffff),
        }
    }
}

/// The bytes of the message as NCCL counts them: for AllGather and ReduceScatter one rank's part.
fn message_bytes(context: &ProfilerContext) -> u64 {
    match context.func {
        func::ALL_GATHER | func::REDUCE_SCATTER => context.n_bytes / u64::from(context.n_ranks.max(1)),
        _ => context.n_bytes,
    }
}

/// Bus bandwidth in GB/s by NCCL's factors (nccl-tests, doc/PERFORMANCE.md); `None` without time, bytes or ranks.
fn bus_gbs(context: &ProfilerContext) -> Option<f64> {
    let n = f64::from(context.n_ranks);
    let factor = match context.func {
        func::ALL_REDUCE => 2.0 * (n - 1.0) / n,
        func::ALL_GATHER | func::REDUCE_SCATTER => (n - 1.0) / n,
        _ => 1.0,
    };
    let gbs = context.n_bytes as f64 * factor / context.duration_ns as f64;
    (gbs.is_finite() && gbs > 0.0).then_some(gbs)
}

impl Summary {
    pub(crate) fn new() -> Summary {
        Summary { rows: std::array::from_fn(|_| Row::default()), others: AtomicU64::new(0) }
    }

    /// Adds a finished operation. Never waits; some 30 ns.
    pub(crate) fn add(&self, context: &ProfilerContext) {
        let Some(row) = self.row(Key::of(context).word()) else {
            self.others.fetch_add(1, Relaxed);
            return;
        };
        row.count.fetch_add(1, Relaxed);
        row.duration_ns.fetch_add(context.duration_ns, Relaxed);
        if let Some(gbs) = bus_gbs(context) {
            row.logs.fetch_add(((gbs.log2() + LOG_BIAS).max(0.0) * LOG_STEPS) as u64, Relaxed);
            row.rated.fetch_add(1, Relaxed);
        }
    }

    /// The row of a key, claimed if it is new.
    fn row(&self, key: u64) -> Option<&Row> {
        let start = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..PROBES).map(|i| &self.rows[(start + i) % ROWS]).find(|row| {
            let there = row.key.load(Relaxed);
            there == key
                || there == 0
                    && row
                        .key
                        .compare_exchange(0, key, Relaxed, Relaxed)
                        .map_or_else(|now| now == key, |_| true)
        })
    }

    /// Another communicator moves in. Nobody adds meanwhile.
    pub(crate) fn clear(&self) {
        self.others.store(0, Relaxed);
        for row in &self.rows {
            for word in [&row.key, &row.count, &row.duration_ns, &row.rated, &row.logs] {
                word.store(0, Relaxed);
            }
        }
    }

    /// The sums so far, and how many operations are in none of them.
    pub(crate) fn read(&self) -> (Vec<Sums>, u64) {
        let rows = self.rows.iter().filter(|r| r.key.load(Relaxed) != 0 && r.count.load(Relaxed) != 0);
        let sums = rows.map(|row| Sums {
            key: Key::of_word(row.key.load(Relaxed)),
            count: row.count.load(Relaxed),
            duration_ns: row.duration_ns.load(Relaxed),
            rated: row.rated.load(Relaxed),
            log2_gbs: row.logs.load(Relaxed) as f64 / LOG_STEPS - row.rated.load(Relaxed) as f64 * LOG_BIAS,
        });
        (sums.collect(), self.others.load(Relaxed))
    }
}

/// A row as read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sums {
    pub(crate) key: Key,
    pub(crate) count: u64,
    pub(crate) duration_ns: u64,
    /// Operations with a bandwidth.
    pub(crate) rated: u64,
    /// Sum of the binary logarithms of their bandwidths in GB/s.
    pub(crate) log2_gbs: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(func: u32, n_bytes: u64, duration_ns: u64) -> ProfilerContext {
        ProfilerContext {
            func,
            n_bytes,
            duration_ns,
            n_ranks: 8,
            algo: 1,
            proto: 2,
            ..ProfilerContext::default()
        }
    }

    #[test]
    fn bandwidths_are_nccl_s_and_their_mean_is_geometric() {
        let summary = Summary::new();
        // 1 GiB in 10 ms and in 40 ms: 107.4 and 26.8 GB/s, times 7/4.
        summary.add(&context(func::ALL_REDUCE, 1 << 30, 10_000_000));
        summary.add(&context(func::ALL_REDUCE, 1 << 30, 40_000_000));
        let (sums, others) = summary.read();
        let [s] = sums[..] else { panic!("{sums:?}") };
        assert_eq!((s.count, s.rated, s.duration_ns, others), (2, 2, 50_000_000, 0));
        assert_eq!(
            (s.key.unit, s.key.units, s.key.func, s.key.algo, s.key.proto),
            (3, 1, func::ALL_REDUCE, 1, 2)
        );
        let mean = (s.log2_gbs / s.rated as f64).exp2();
        let want = (1u64 << 30) as f64 / 20_000_000.0 * 1.75;
        assert!((mean / want - 1.0).abs() < 1e-5, "{mean} {want}");
    }

    #[test]
    fn sizes_are_those_of_nccl_and_fall_into_inspector_s_ranges() {
        let key = |func, bytes| {
            let key = Key::of(&context(func, bytes, 1));
            assert_eq!(Key::of_word(key.word()), key);
            (key.units, key.unit)
        };
        for (bytes, want) in [
            (0, (0, 0)),
            (1, (1, 0)),
            (1023, (1023, 0)),
            (1024, (1, 1)),
            ((4 << 20) + 5, (4, 2)),
            (5 << 30, (5, 3)),
            (7 << 40, (7, 4)),
            (u64::MAX, (0xffff, 4)),
        ] {
            assert_eq!(key(func::ALL_REDUCE, bytes), want, "{bytes}");
        }
        assert_eq!(key(func::ALL_GATHER, 8 << 20), (1, 2), "one rank's part of eight");
    }

    #[test]
    fn what_has_no_time_has_no_bandwidth_and_too_many_kinds_are_counted() {
        let summary = Summary::new();
        summary.add(&context(func::ALL_REDUCE, 4096, 0));
        summary.add(&context(func::ALL_REDUCE, 0, 5));
        assert!(summary.read().0.iter().all(|s| s.rated == 0));
        summary.clear();
        assert_eq!(summary.read(), (Vec::new(), 0));
        for units in 0..1000u64 {
            summary.add(&context(func::ALL_REDUCE, units, 1));
        }
        let (sums, others) = summary.read();
        assert!(sums.len() <= ROWS && sums.len() > ROWS / 2);
        assert_eq!(sums.iter().map(|s| s.count).sum::<u64>() + others, 1000);
    }

    #[test]
    fn threads_lose_nothing() {
        let summary = Summary::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..5000u64).for_each(|i| summary.add(&context(func::ALL_REDUCE, i % 8 * 1024, 3)))
                });
            }
        });
        let (sums, others) = summary.read();
        assert_eq!((sums.len(), sums.iter().map(|s| s.count).sum::<u64>(), others), (8, 20_000, 0));
        assert!(sums.iter().all(|s| s.duration_ns == 3 * s.count));
    }
}
