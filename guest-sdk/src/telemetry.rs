//! [`TelemetryKey`] and [`Telemetry`]: the map `telemetry_map` that the shipped policies share, and
//! [`SloConfig`], the map `config_map` of `slo_enforcer`. The C header declares the same.

use crate::{plain, shared};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Entries of `telemetry_map`, a hash map.
pub const TELEMETRY_ENTRIES: usize = 64;

plain! {
    /// What telemetry is kept for.
    pub struct TelemetryKey {
        /// The collective's number.
        pub func: u32,
        /// Nodes in the communicator.
        pub n_nodes: u32,
    }
}

plain! {
    /// Latencies of one kind of collective, kept by profiler policies and read by tuner policies.
    pub struct Telemetry {
        /// Of the last collective, in nanoseconds.
        pub last_latency_ns: u64,
        /// Moving average, in nanoseconds.
        pub avg_latency_ns: u64,
        /// Estimate of the 99th percentile, in nanoseconds.
        pub p99_latency_ns: u64,
        /// Bytes of the last collective.
        pub last_n_bytes: u64,
        /// Samples so far; stays at `u32::MAX`.
        pub samples: u32,
        /// Channels that the last decision asked for; 0: none yet.
        pub recommended_channels: u32,
        /// `samples` when a decision last took them into account.
        pub applied_samples: u32,
        /// Named, so that the struct has no padding.
        pub reserved: u32,
    }
}

shared! {
    /// [`Telemetry`] in place, for a profiler policy: it writes its own fields and leaves those of the tuner's policies alone, which
    /// copying a whole value in would not.
    pub struct SharedTelemetry {
        /// See [`Telemetry`].
        pub last_latency_ns: AtomicU64,
        /// See [`Telemetry`].
        pub avg_latency_ns: AtomicU64,
        /// See [`Telemetry`].
        pub p99_latency_ns: AtomicU64,
        /// See [`Telemetry`].
        pub last_n_bytes: AtomicU64,
        /// See [`Telemetry`].
        pub samples: AtomicU32,
        /// See [`Telemetry`].
        pub recommended_channels: AtomicU32,
        /// See [`Telemetry`].
        pub applied_samples: AtomicU32,
        /// See [`Telemetry`].
        pub reserved: AtomicU32,
    }
}

impl SharedTelemetry {
    /// What the first sample of `bytes` bytes leaves.
    #[inline(always)]
    pub const fn first(latency_ns: u64, bytes: u64) -> SharedTelemetry {
        SharedTelemetry {
            last_latency_ns: AtomicU64::new(latency_ns),
            avg_latency_ns: AtomicU64::new(latency_ns),
            p99_latency_ns: AtomicU64::new(latency_ns),
            last_n_bytes: AtomicU64::new(bytes),
            samples: AtomicU32::new(1),
            recommended_channels: AtomicU32::new(0),
            applied_samples: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
        }
    }
}

const _: () = assert!(size_of::<SharedTelemetry>() == size_of::<Telemetry>());

plain! {
    /// Target and bounds of `slo_enforcer` for one collective; `max_channels` 0 means "not configured".
    pub struct SloConfig {
        /// The 99th percentile to stay under, in nanoseconds.
        pub target_p99_ns: u64,
        /// Fewest channels.
        pub min_channels: u32,
        /// Most channels.
        pub max_channels: u32,
        /// Channels that a decision adds or takes away.
        pub step: u32,
        /// Named, so that the struct has no padding.
        pub reserved: u32,
    }
}
