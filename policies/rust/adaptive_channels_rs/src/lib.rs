//! adaptive_channels: hill climbing on the number of channels, a step for each new sample. Decides as
//! `c/adaptive_channels.bpf.c`, and shares its telemetry.
#![no_std]

use ringfence_guest::telemetry::{TELEMETRY_ENTRIES, Telemetry, TelemetryKey};
use ringfence_guest::{HashMap, Verdict, license, maps, tuner};

const LARGE_BYTES: u64 = 1 << 20;
/// Latencies closer than this to the average are noise.
const NOISE_NS: u64 = 32;
const MIN_CHANNELS: u32 = 1;
const MAX_CHANNELS: u32 = 12;

maps! {
    static TELEMETRY: HashMap<TelemetryKey, Telemetry, TELEMETRY_ENTRIES> = "telemetry_map";
}

fn start_channels(bytes: u64) -> u32 {
    match bytes {
        0..0x4000 => 2,
        0x4000..LARGE_BYTES => 4,
        _ => 8,
    }
}

/// The channels that new telemetry suggests.
fn step(channels: u32, seen: &Telemetry, bytes: u64) -> u32 {
    if seen.last_latency_ns > seen.avg_latency_ns.wrapping_add(NOISE_NS) {
        channels.saturating_sub(1).max(MIN_CHANNELS)
    } else if bytes >= LARGE_BYTES && seen.last_latency_ns <= seen.avg_latency_ns {
        (channels + 1).min(MAX_CHANNELS)
    } else {
        channels
    }
}

tuner! {
    fn adaptive_channels(ctx) {
        let key = TelemetryKey { func: ctx.func_id(), n_nodes: ctx.n_nodes() };
        let mut seen = TELEMETRY.get(&key).unwrap_or_default();
        let bytes = ctx.n_bytes();
        let channels = if seen.recommended_channels == 0 {
            // Telemetry can come before the first decision: then there is nothing to step from.
            start_channels(bytes)
        } else {
            let channels = seen.recommended_channels.clamp(MIN_CHANNELS, MAX_CHANNELS);
            if seen.samples > seen.applied_samples {
                seen.applied_samples = seen.samples;
                step(channels, &seen, bytes)
            } else {
                channels
            }
        };
        seen.recommended_channels = channels;
        // A full map only means that the next call starts afresh.
        let _ = TELEMETRY.insert(&key, &seen);
        ctx.set_channels(channels);
        Verdict::Submit
    }
}

license!("Dual MIT/GPL");
