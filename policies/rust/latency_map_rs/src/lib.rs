//! latency_map: keeps the latency of each collective in `telemetry_map`, where tuner policies find it. Does as
//! `c/latency_map.bpf.c`, in the same map.
#![no_std]

use core::sync::atomic::Ordering::Relaxed;
use ringfence_guest::telemetry::{SharedTelemetry, TELEMETRY_ENTRIES, TelemetryKey};
use ringfence_guest::{HashMap, Timing, Verdict, license, maps, profiler};

maps! {
    static TELEMETRY: HashMap<TelemetryKey, SharedTelemetry, TELEMETRY_ENTRIES> = "telemetry_map";
}

/// Most that one sample moves the estimate: 99 parts in 1024 up, one part down.
const P99_SHIFT: u32 = 10;

/// A moving average over some eight samples.
fn toward(average: u64, latency: u64) -> u64 {
    if latency >= average {
        average.wrapping_add(latency.wrapping_sub(average) >> 3)
    } else {
        average.wrapping_sub(average.wrapping_sub(latency) >> 3)
    }
}

/// A step up for one sample in a hundred, 1/99 of it down for the others: where both balance, 99 % lie below.
fn percentile(p99: u64, latency: u64) -> u64 {
    let step = (p99 >> P99_SHIFT).wrapping_add(1);
    if latency <= p99 {
        if p99 > step { p99.wrapping_sub(step) } else { p99 }
    } else if latency.wrapping_sub(p99) < step.wrapping_mul(99) {
        latency
    } else {
        p99.wrapping_add(step.wrapping_mul(99))
    }
}

profiler! {
    fn latency_map(ctx) {
        let key = TelemetryKey { func: ctx.func_id(), n_nodes: ctx.n_nodes() };
        let (latency, bytes) = (ctx.duration_ns(), ctx.n_bytes());
        // No measure of the transfer, or of a part of it only.
        if ctx.timing() == Timing::Enqueue || !ctx.is_complete() {
            return Verdict::Keep;
        }
        let Some(seen) = TELEMETRY.get_ref(&key) else {
            // A full map keeps no more kinds of collectives.
            let _ = TELEMETRY.create(&key, &SharedTelemetry::first(latency, bytes));
            return Verdict::Submit;
        };
        let samples = seen.samples.load(Relaxed);
        let (average, p99) = if samples == 0 {
            // A tuner policy was here first.
            (latency, latency)
        } else {
            let (average, p99) = (seen.avg_latency_ns.load(Relaxed), seen.p99_latency_ns.load(Relaxed));
            (toward(average, latency), percentile(p99, latency))
        };
        seen.avg_latency_ns.store(average, Relaxed);
        seen.p99_latency_ns.store(p99, Relaxed);
        seen.last_latency_ns.store(latency, Relaxed);
        seen.last_n_bytes.store(bytes, Relaxed);
        // Last: a tuner policy takes a new number as word of new latencies. It stays at the most.
        if samples != u32::MAX {
            seen.samples.store(samples.wrapping_add(1), Relaxed);
        }
        Verdict::Submit
    }
}

license!("Dual MIT/GPL");
