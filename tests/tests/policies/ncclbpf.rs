//! Objects built for NCCLbpf load unchanged and decide as its own test expects.
//!
//! `RINGFENCE_NCCLBPF_DIR` names a folder with the objects of its `src/ebpf-policies`, each built with
//! `clang -target bpf -O2 -g -D__BPF__ -c NAME.bpf.c -o NAME.bpf.o`. The numbers below are those of its
//! `src/nccl-policy-plugin/test/test_ebpf_plugin.c`.

use crate::harness::{Case, Loaded, load, verify};
use ringfence_guest::abi::func::{ALL_REDUCE, BROADCAST};
use ringfence_guest::telemetry::{SloConfig, Telemetry, TelemetryKey};
use ringfence_host::{Algo, Decision, Hook, Proto};
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The folder, or a loud skip.
fn folder(test: &str) -> Option<PathBuf> {
    let dir = std::env::var_os("RINGFENCE_NCCLBPF_DIR").map(PathBuf::from);
    if dir.is_none() {
        // Past the test harness, which would keep it to itself.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED {test}: RINGFENCE_NCCLBPF_DIR does not name the objects of NCCLbpf"
        );
    }
    dir
}

fn object(dir: &std::path::Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.bpf.o"))
}

const ACCEPTED: [&str; 17] = [
    "noop",
    "size_aware",
    "size_aware_v2",
    "size_aware_v3",
    "size_aware_v4",
    "size_aware_v5",
    "lookup_only",
    "lookup_update",
    "adaptive_channels",
    "adaptive_channels_v2",
    "slo_enforcer",
    "nvlink_ring_mid",
    "nvlink_ring_mid_v2",
    "ring_simple_all",
    "cpu_aware",
    // Bad advice, but safe.
    "bad_channels",
    // Division by zero is 0.
    "bad_div_zero",
];

const REFUSED: [(&str, &str); 6] = [
    ("bad_lookup", "null-deref"),
    ("bad_oob_access", "ctx-oob"),
    ("bad_unregistered_helper", "unknown-helper"),
    ("bad_stack_overflow", "stack-oob"),
    ("bad_infinite_loop", "unbounded-loop"),
    // It writes past the end.
    ("bad_write_ctx", "ctx-oob"),
];

#[test]
fn ncclbpf_objects_are_accepted_or_refused() {
    let Some(dir) = folder("ncclbpf_objects_are_accepted_or_refused") else { return };
    for name in ACCEPTED {
        let verified = verify(&object(&dir, name), None).unwrap_or_else(|r| panic!("{name}: {r}"));
        assert_eq!(verified.env().hook, Hook::NcclBpf.name(), "{name}");
    }
    for (name, kind) in REFUSED {
        let rejection = match verify(&object(&dir, name), None) {
            Ok(_) => panic!("{name} was accepted"),
            Err(rejection) => rejection,
        };
        assert_eq!(rejection.kind().name(), kind, "{name}: {rejection}");
    }
}

fn case(n_bytes: u64, func: u32) -> Case {
    Case { n_bytes, func, n_ranks: 8, n_nodes: 1, so_far: Decision::DEFER }
}

fn decided(algo: Algo, proto: Proto, channels: u32) -> Decision {
    Decision { route: Some((algo, proto)), channels: NonZeroU32::new(channels) }
}

#[test]
fn ncclbpf_size_aware_decides_as_in_its_test() {
    let Some(dir) = folder("ncclbpf_size_aware_decides_as_in_its_test") else { return };
    let table = [
        ("size_aware", 1024, ALL_REDUCE, decided(Algo::Tree, Proto::Simple, 2)),
        ("size_aware", 32768, ALL_REDUCE, decided(Algo::Ring, Proto::Ll, 4)),
        ("size_aware", 1 << 20, ALL_REDUCE, decided(Algo::Ring, Proto::Simple, 8)),
        ("size_aware_v2", 1024, ALL_REDUCE, decided(Algo::Tree, Proto::Simple, 2)),
        ("size_aware_v2", 32768, ALL_REDUCE, decided(Algo::Tree, Proto::Ll, 4)),
        ("size_aware_v2", 1 << 20, ALL_REDUCE, decided(Algo::Ring, Proto::Simple, 10)),
        ("size_aware_v2", 32768, BROADCAST, decided(Algo::Ring, Proto::Ll, 4)),
    ];
    for (name, bytes, func, want) in table {
        let got = load(&object(&dir, name), None).decide(&case(bytes, func));
        assert_eq!(got, want, "{name}: {bytes} bytes, collective {func}");
    }
    // Its native version of v2, over all collectives.
    let mut v2 = load(&object(&dir, "size_aware_v2"), None);
    for func in 0..5 {
        for bytes in [1024, 32768, 1 << 20] {
            let want = crate::model::decide("size_aware_v2", &case(bytes, func), &mut Default::default());
            assert_eq!(v2.decide(&case(bytes, func)), want, "{bytes} bytes, collective {func}");
        }
    }
}

const KEY: TelemetryKey = TelemetryKey { func: ALL_REDUCE, n_nodes: 1 };

fn channels(loaded: &mut Loaded, n_bytes: u64) -> u32 {
    loaded.decide(&case(n_bytes, ALL_REDUCE)).channels.map_or(0, NonZeroU32::get)
}

#[test]
fn ncclbpf_adaptive_channels_reads_and_keeps_its_map() {
    let Some(dir) = folder("ncclbpf_adaptive_channels_reads_and_keeps_its_map") else { return };
    let mut loaded = load(&object(&dir, "adaptive_channels"), None);
    assert_eq!(loaded.telemetry(KEY), None);
    let seeded = Telemetry {
        last_latency_ns: 240,
        avg_latency_ns: 240,
        p99_latency_ns: 320,
        last_n_bytes: 4096,
        samples: 5,
        recommended_channels: 7,
        ..Telemetry::default()
    };
    assert!(loaded.set_telemetry(KEY, &seeded));
    assert_eq!(channels(&mut loaded, 65536), 7);
    let observed = loaded.telemetry(KEY).unwrap();
    // The sample is used up; nothing else changes.
    assert_eq!(observed, Telemetry { applied_samples: 5, ..seeded });
}

#[test]
fn ncclbpf_adaptive_channels_follows_samples() {
    let Some(dir) = folder("ncclbpf_adaptive_channels_follows_samples") else { return };
    let mut loaded = load(&object(&dir, "adaptive_channels"), None);
    assert_eq!(channels(&mut loaded, 1 << 20), 8);
    let sample = |loaded: &Loaded, last, avg, samples| {
        let t = loaded.telemetry(KEY).unwrap();
        let next = Telemetry { last_latency_ns: last, avg_latency_ns: avg, samples, ..t };
        assert!(loaded.set_telemetry(KEY, &next));
    };
    // 520 ns, its own average; then 920 ns, average (520 * 7 + 920) / 8.
    sample(&loaded, 520, 520, 1);
    assert_eq!(channels(&mut loaded, 1 << 20), 9);
    sample(&loaded, 920, 570, 2);
    assert_eq!(channels(&mut loaded, 1 << 20), 8);
}

/// Baseline, contention, recovery: channels rise, fall, and rise again.
#[test]
fn ncclbpf_adaptive_channels_responds_to_contention() {
    let Some(dir) = folder("ncclbpf_adaptive_channels_responds_to_contention") else { return };
    let mut loaded = load(&object(&dir, "adaptive_channels"), None);
    let mut ends = Vec::new();
    for (latency, average) in [(100, 100), (10_000, 100), (100, 100)] {
        for _ in 0..10 {
            let current = loaded.telemetry(KEY);
            let seeded = Telemetry {
                last_latency_ns: latency,
                avg_latency_ns: average,
                p99_latency_ns: latency,
                last_n_bytes: 1 << 20,
                samples: current.map_or(1, |t| t.samples),
                recommended_channels: current.map_or(8, |t| t.recommended_channels),
                ..Telemetry::default()
            };
            assert!(loaded.set_telemetry(KEY, &seeded));
            for _ in 0..100 {
                loaded.decide(&case(1 << 20, ALL_REDUCE));
            }
        }
        ends.push(loaded.telemetry(KEY).unwrap().recommended_channels);
    }
    assert!(ends[0] >= 10 && ends[1] < ends[0] && ends[2] > ends[1], "{ends:?}");
}

/// Two communicators with targets of 1 and 10 ms, both at 5 ms: one spends channels, the other saves them.
#[test]
fn ncclbpf_slo_enforcer_differs_by_communicator() {
    let Some(dir) = folder("ncclbpf_slo_enforcer_differs_by_communicator") else { return };
    let open = |target_p99_ns| {
        let loaded = load(&object(&dir, "slo_enforcer"), None);
        let config = SloConfig { target_p99_ns, min_channels: 1, max_channels: 8, step: 1, reserved: 0 };
        (0..5).for_each(|func| loaded.set_config(func, &config));
        let at_5_ms = Telemetry {
            last_latency_ns: 5_000_000,
            avg_latency_ns: 5_000_000,
            p99_latency_ns: 5_000_000,
            ..Telemetry::default()
        };
        assert!(loaded.set_telemetry(KEY, &at_5_ms));
        loaded
    };
    let (mut latency, mut throughput) = (open(1_000_000), open(10_000_000));
    let sizes = [1024, 32768, 262_144];
    for i in 0..300 {
        let case = case(sizes[i % 3], ALL_REDUCE);
        latency.decide(&case);
        throughput.decide(&case);
    }
    let want = [
        (1024, decided(Algo::Tree, Proto::Ll, 8), decided(Algo::Tree, Proto::Simple, 1)),
        (32768, decided(Algo::Tree, Proto::Ll, 8), decided(Algo::Ring, Proto::Simple, 1)),
        (262_144, decided(Algo::Ring, Proto::Ll, 8), decided(Algo::Ring, Proto::Simple, 1)),
    ];
    for (bytes, late, early) in want {
        let case = case(bytes, ALL_REDUCE);
        assert_eq!((latency.decide(&case), throughput.decide(&case)), (late, early), "{bytes} bytes");
    }
}
