//! slo_enforcer: holds a target for the 99th percentile of latency. Decides as `c/slo_enforcer.bpf.c`, and shares
//! its maps.
#![no_std]

use ringfence_guest::telemetry::{SloConfig, TELEMETRY_ENTRIES, Telemetry, TelemetryKey};
use ringfence_guest::{Algo, Array, HashMap, Proto, Verdict, license, maps, tuner};

maps! {
    static TELEMETRY: HashMap<TelemetryKey, Telemetry, TELEMETRY_ENTRIES> = "telemetry_map";
    /// One entry per collective.
    static CONFIG: Array<SloConfig, 5> = "config_map";
}

const DEFAULT: SloConfig =
    SloConfig { target_p99_ns: 150, min_channels: 1, max_channels: 8, step: 1, reserved: 0 };

fn config_of(func: u32) -> SloConfig {
    CONFIG.get(func).filter(|c| c.max_channels != 0).unwrap_or(DEFAULT)
}

/// `value`, at least the configured minimum, else at most the maximum. (`clamp` would panic where they cross.)
fn bounded(value: u32, config: &SloConfig) -> u32 {
    if value < config.min_channels { config.min_channels } else { value.min(config.max_channels) }
}

/// A step up, to the maximum at most.
fn raise(value: u32, config: &SloConfig) -> u32 {
    let room = config.max_channels.saturating_sub(value);
    if config.step >= room { config.max_channels } else { value + config.step }
}

/// A step down, to the minimum at most.
fn lower(value: u32, config: &SloConfig) -> u32 {
    let room = value.saturating_sub(config.min_channels);
    if config.step >= room { config.min_channels } else { value - config.step }
}

/// Takes the last latency into the averages, and notes what was asked for.
fn note(t: &mut Telemetry, bytes: u64, channels: u32) {
    let last = t.last_latency_ns;
    t.avg_latency_ns =
        if t.samples == 0 { last } else { t.avg_latency_ns.wrapping_mul(7).wrapping_add(last) / 8 };
    t.p99_latency_ns = t.p99_latency_ns.max(last);
    t.last_n_bytes = bytes;
    t.samples = t.samples.saturating_add(1);
    t.recommended_channels = channels;
}

tuner! {
    fn slo_enforcer(ctx) {
        let key = TelemetryKey { func: ctx.func_id(), n_nodes: ctx.n_nodes() };
        let config = config_of(key.func);
        let mut seen = TELEMETRY.get(&key).unwrap_or_default();
        let bytes = ctx.n_bytes();
        let so_far = if seen.recommended_channels != 0 { seen.recommended_channels } else { ctx.channels() };
        let so_far = bounded(so_far, &config);

        let late = seen.p99_latency_ns > config.target_p99_ns;
        let channels = if late { raise(so_far, &config) } else { lower(so_far, &config) };
        let tree_below = if late { 64 << 10 } else { 16 << 10 };
        ctx.choose(
            if bytes < tree_below { Algo::Tree } else { Algo::Ring },
            if late && bytes < 1 << 20 { Proto::Ll } else { Proto::Simple },
        );
        ctx.set_channels(channels);

        note(&mut seen, bytes, channels);
        // A full map only means that the next call starts afresh.
        let _ = TELEMETRY.insert(&key, &seen);
        Verdict::Submit
    }
}

license!("Dual MIT/GPL");
