//! [`decide`]: what each policy should do, written as directly as possible and with no thought of eBPF.

use crate::harness::Case;
use ringfence_guest::abi::func::ALL_REDUCE;
use ringfence_guest::telemetry::{SloConfig, TELEMETRY_ENTRIES, Telemetry, TelemetryKey};
use ringfence_host::{Algo, Decision, Proto};
use ringfence_tests::random::Rng;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The maps.
#[derive(Default)]
pub(crate) struct State {
    telemetry: BTreeMap<(u32, u32), Telemetry>,
    pub(crate) config: [SloConfig; 5],
}

impl State {
    pub(crate) fn get(&self, key: TelemetryKey) -> Option<Telemetry> {
        self.telemetry.get(&(key.func, key.n_nodes)).copied()
    }
    /// False if there is no room.
    pub(crate) fn insert(&mut self, key: TelemetryKey, value: Telemetry) -> bool {
        let key = (key.func, key.n_nodes);
        let fits = self.telemetry.contains_key(&key) || self.telemetry.len() < TELEMETRY_ENTRIES;
        if fits {
            self.telemetry.insert(key, value);
        }
        fits
    }
    pub(crate) fn len(&self) -> usize {
        self.telemetry.len()
    }
}

pub(crate) fn key(case: &Case) -> TelemetryKey {
    TelemetryKey { func: case.func, n_nodes: case.n_nodes }
}

/// The decision, and what the policy leaves in its maps.
pub(crate) fn decide(policy: &str, case: &Case, state: &mut State) -> Decision {
    let so_far = case.so_far;
    let with_channels = |n| Decision { channels: NonZeroU32::new(n), ..so_far };
    match policy {
        "noop" | "lookup_only" => so_far,
        "lookup_update" => {
            lookup_update(case, state);
            so_far
        }
        "size_aware" => size_aware(case.n_bytes),
        "size_aware_v2" => size_aware_v2(case),
        "adaptive_channels" => with_channels(adaptive_channels(case, state)),
        "slo_enforcer" => slo_enforcer(case, state),
        "nvlink_ring_mid" if (2 * MIB..=192 * MIB).contains(&case.n_bytes) => ring_simple(so_far),
        "nvlink_ring_mid" => so_far,
        "ring_simple_all" => ring_simple(so_far),
        "bad_channels" => with_channels(1),
        _ => panic!("no model of {policy}"),
    }
}

fn ring_simple(so_far: Decision) -> Decision {
    Decision { route: Some((Algo::Ring, Proto::Simple)), ..so_far }
}

fn both(algo: Algo, proto: Proto, channels: u32) -> Decision {
    Decision { route: Some((algo, proto)), channels: NonZeroU32::new(channels) }
}

fn size_aware(bytes: u64) -> Decision {
    if bytes < 4 * KIB {
        both(Algo::Tree, Proto::Simple, 2)
    } else if bytes < MIB {
        both(Algo::Ring, Proto::Ll, 4)
    } else {
        both(Algo::Ring, Proto::Simple, 8)
    }
}

fn size_aware_v2(case: &Case) -> Decision {
    let all_reduce = case.func == ALL_REDUCE;
    let algo = if all_reduce && case.n_bytes <= 32 * KIB { Algo::Tree } else { Algo::Ring };
    if case.n_bytes < 4 * KIB {
        both(algo, Proto::Simple, 2)
    } else if case.n_bytes < MIB {
        both(algo, Proto::Ll, 4)
    } else if all_reduce && case.n_ranks >= 8 {
        both(algo, Proto::Simple, 10)
    } else {
        both(algo, Proto::Simple, 8)
    }
}

fn lookup_update(case: &Case, state: &mut State) {
    let mut t = state.get(key(case)).unwrap_or_default();
    t.last_n_bytes = case.n_bytes;
    t.samples = t.samples.saturating_add(1);
    if t.recommended_channels == 0 {
        t.recommended_channels = case.so_far.channels.map_or(1, NonZeroU32::get);
    }
    state.insert(key(case), t);
}

fn adaptive_channels(case: &Case, state: &mut State) -> u32 {
    let mut t = state.get(key(case)).unwrap_or_default();
    let mut channels = i64::from(t.recommended_channels);
    if channels == 0 {
        channels =
            [(16 * KIB, 2), (MIB, 4)].iter().find(|(below, _)| case.n_bytes < *below).map_or(8, |(_, n)| *n);
    } else {
        channels = channels.clamp(1, 12);
        if t.samples > t.applied_samples {
            t.applied_samples = t.samples;
            if t.last_latency_ns > t.avg_latency_ns.wrapping_add(32) {
                channels -= 1;
            } else if case.n_bytes >= MIB && t.last_latency_ns <= t.avg_latency_ns {
                channels += 1;
            }
            channels = channels.clamp(1, 12);
        }
    }
    t.recommended_channels = channels as u32;
    state.insert(key(case), t);
    channels as u32
}

fn slo_enforcer(case: &Case, state: &mut State) -> Decision {
    let config = state.config.get(case.func as usize).copied().filter(|c| c.max_channels != 0);
    let config = config.unwrap_or(SloConfig {
        target_p99_ns: 150,
        min_channels: 1,
        max_channels: 8,
        step: 1,
        reserved: 0,
    });
    let (low, high, step) =
        (i64::from(config.min_channels), i64::from(config.max_channels), i64::from(config.step));
    let mut t = state.get(key(case)).unwrap_or_default();
    let so_far = case.so_far.channels.map_or(0, NonZeroU32::get);
    let start = i64::from(if t.recommended_channels == 0 { so_far } else { t.recommended_channels });
    // With bounds that cross, the lower one wins, then each move ends at the bound that it moves towards.
    let start = if start < low { low } else { start.min(high) };
    let late = t.p99_latency_ns > config.target_p99_ns;
    let channels = if late {
        if start >= high { high } else { (start + step).min(high) }
    } else if start <= low {
        low
    } else {
        (start - step).max(low)
    };
    let (tree_below, ll_below) = if late { (64 * KIB, MIB) } else { (16 * KIB, 0) };

    let last = t.last_latency_ns;
    t.avg_latency_ns =
        if t.samples == 0 { last } else { t.avg_latency_ns.wrapping_mul(7).wrapping_add(last) / 8 };
    t.p99_latency_ns = t.p99_latency_ns.max(last);
    t.last_n_bytes = case.n_bytes;
    t.samples = t.samples.saturating_add(1);
    t.recommended_channels = channels as u32;
    state.insert(key(case), t);

    both(
        if case.n_bytes < tree_below { Algo::Tree } else { Algo::Ring },
        if case.n_bytes < ll_below { Proto::Ll } else { Proto::Simple },
        channels as u32,
    )
}

/// Telemetry as profilers leave it, and as nobody would.
pub(crate) fn random_telemetry(rng: &mut Rng) -> Telemetry {
    let mut ns = || match rng.below(8) {
        0 => 0,
        1 => u64::MAX - rng.below(40),
        _ => 100 + rng.below(100),
    };
    let (last_latency_ns, avg_latency_ns, p99_latency_ns) = (ns(), ns(), ns());
    let mut count = || match rng.below(8) {
        0 => 0,
        1 => u32::MAX - rng.below(2) as u32,
        _ => rng.below(16) as u32,
    };
    Telemetry {
        last_latency_ns,
        avg_latency_ns,
        p99_latency_ns,
        samples: count(),
        recommended_channels: count(),
        applied_samples: count(),
        reserved: count(),
        last_n_bytes: rng.bits(),
    }
}

/// A configuration, sensible or not.
pub(crate) fn random_config(rng: &mut Rng) -> SloConfig {
    let mut n = || match rng.below(8) {
        0 => u32::MAX - rng.below(3) as u32,
        _ => rng.below(12) as u32,
    };
    let (min_channels, max_channels, step, reserved) = (n(), n(), n(), n());
    SloConfig { target_p99_ns: 120 + rng.below(60), min_channels, max_channels, step, reserved }
}
