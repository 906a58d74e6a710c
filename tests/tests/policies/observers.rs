//! The policies that decide nothing: what they leave in their maps, against plain models.

use crate::harness::{Loaded, load};
use crate::object;
use ringfence_guest::abi::{ProfilerContext, ProfilerEventContext, profiler_flag, timing};
use ringfence_guest::telemetry::{TELEMETRY_ENTRIES, Telemetry, TelemetryKey};
use ringfence_tests::random::Rng;
use std::collections::BTreeMap;

/// The bytes of a sample's context, of which the policy reads these fields.
fn sample(func: u32, n_nodes: u32, duration: u64, n_bytes: u64, timing: u32, flags: u32) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<ProfilerContext>()];
    let mut put = |at: usize, v: &[u8]| bytes[at..at + v.len()].copy_from_slice(v);
    put(std::mem::offset_of!(ProfilerContext, func), &func.to_le_bytes());
    put(std::mem::offset_of!(ProfilerContext, n_nodes), &n_nodes.to_le_bytes());
    put(std::mem::offset_of!(ProfilerContext, duration_ns), &duration.to_le_bytes());
    put(std::mem::offset_of!(ProfilerContext, n_bytes), &n_bytes.to_le_bytes());
    put(std::mem::offset_of!(ProfilerContext, timing), &timing.to_le_bytes());
    put(std::mem::offset_of!(ProfilerContext, flags), &flags.to_le_bytes());
    bytes
}

/// What a sample makes of an entry.
fn model(before: Option<Telemetry>, latency: u64, n_bytes: u64) -> Telemetry {
    let Some(old) = before else {
        return Telemetry {
            last_latency_ns: latency,
            avg_latency_ns: latency,
            p99_latency_ns: latency,
            last_n_bytes: n_bytes,
            samples: 1,
            ..Telemetry::default()
        };
    };
    let (average, p99) = match old.samples {
        0 => (latency, latency),
        _ => {
            let average = match latency >= old.avg_latency_ns {
                true => old.avg_latency_ns + (latency - old.avg_latency_ns) / 8,
                false => old.avg_latency_ns - (old.avg_latency_ns - latency) / 8,
            };
            let step = old.p99_latency_ns / 1024 + 1;
            let p99 = match latency > old.p99_latency_ns {
                true => latency.min(old.p99_latency_ns + 99 * step),
                false if old.p99_latency_ns > step => old.p99_latency_ns - step,
                false => old.p99_latency_ns,
            };
            (average, p99)
        }
    };
    Telemetry {
        last_latency_ns: latency,
        avg_latency_ns: average,
        p99_latency_ns: p99,
        last_n_bytes: n_bytes,
        samples: old.samples.saturating_add(1),
        ..old
    }
}

#[test]
fn latency_maps_follow_the_model_in_both_languages() {
    for name in ["latency_map", "latency_map_rs"] {
        let mut policy = load(&object(name), None);
        let mut rng = Rng::new(5);
        let mut state: BTreeMap<(u32, u32), Telemetry> = BTreeMap::new();
        // A tuner policy was at these entries first, and its fields are kept.
        for (func, samples) in [(0, 0), (1, u32::MAX), (2, 9)] {
            let key = TelemetryKey { func, n_nodes: 1 };
            let value = Telemetry {
                avg_latency_ns: 500,
                p99_latency_ns: 900,
                samples,
                recommended_channels: 7,
                applied_samples: 3,
                ..Telemetry::default()
            };
            assert!(policy.set_telemetry(key, &value));
            state.insert((func, 1), value);
        }
        for _ in 0..5000 {
            let (func, n_nodes) = (rng.below(12) as u32, 1 + rng.below(8) as u32);
            let (latency, n_bytes) = (rng.bits() >> (24 + rng.below(40)), rng.bits() >> 20);
            let (timing, flags) = (rng.below(3) as u32, u32::from(rng.below(5) == 0));
            let counts = timing != timing::ENQUEUE && flags & profiler_flag::INCOMPLETE == 0;
            let submitted = policy.observe(&mut sample(func, n_nodes, latency, n_bytes, timing, flags));
            assert_eq!(submitted, counts, "{name}");
            let before = state.get(&(func, n_nodes)).copied();
            if counts && (before.is_some() || state.len() < TELEMETRY_ENTRIES) {
                state.insert((func, n_nodes), model(before, latency, n_bytes));
            }
            let key = TelemetryKey { func, n_nodes };
            assert_eq!(policy.telemetry(key), state.get(&(func, n_nodes)).copied(), "{name}");
        }
        assert_eq!(state.len(), TELEMETRY_ENTRIES, "the map became full on the way");
    }
}

/// The estimate settles where 99 % of the samples lie below.
#[test]
fn the_percentile_is_one() {
    let mut policy = load(&object("latency_map"), None);
    let mut rng = Rng::new(11);
    let (mut above, mut seen) = (0, 0);
    for n in 0..60_000 {
        // Uniform between 1 and 2 ms, one in two hundred twice as long.
        let latency = (1_000_000 + rng.below(1_000_000)) * if rng.below(200) == 0 { 2 } else { 1 };
        policy.observe(&mut sample(4, 1, latency, 8, timing::GPU, 0));
        if n > 20_000 {
            let p99 = policy.telemetry(TelemetryKey { func: 4, n_nodes: 1 }).unwrap().p99_latency_ns;
            above += u64::from(latency > p99);
            seen += 1;
        }
    }
    let per_mille = above * 1000 / seen;
    assert!((5..=15).contains(&per_mille), "{per_mille} per mille lie above the 99th percentile");
}

#[test]
fn events_are_counted_by_type_and_action() {
    let mut policy = load(&object("event_count"), None);
    let count = |policy: &Loaded, index: u32| {
        let value = policy.value("event_counts", &index.to_le_bytes()).unwrap();
        u64::from_le_bytes(value.try_into().unwrap())
    };
    for kind in 0..16u32 {
        for action in 0..3u32 {
            for _ in 0..=kind + action {
                let mut bytes = vec![0; size_of::<ProfilerEventContext>()];
                let at = std::mem::offset_of!(ProfilerEventContext, action);
                bytes[at..at + 4].copy_from_slice(&action.to_le_bytes());
                bytes[at + 4..at + 8].copy_from_slice(&(1u32 << kind).to_le_bytes());
                assert!(policy.observe(&mut bytes));
            }
        }
    }
    for kind in 0..16 {
        for action in 0..3 {
            assert_eq!(count(&policy, kind * 3 + action), u64::from(kind + action + 1), "{kind} {action}");
        }
    }
}
