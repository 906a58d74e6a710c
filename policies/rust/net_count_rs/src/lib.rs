//! net_count: calls, bytes, failures and latency of a wrapped net plugin, by connection and kind of call. Counts as
//! `c/net_count.bpf.c`, and shares its map.
#![no_std]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use ringfence_guest::{HashMap, Verdict, license, maps, net, plain, shared};

plain! {
    /// What is counted apart.
    struct NetKey {
        /// 0: before there is one.
        conn: u64,
        op: u32,
        dev: u32,
    }
}

shared! {
    /// Totals.
    struct NetCount {
        calls: AtomicU64,
        bytes: AtomicU64,
        failed: AtomicU64,
        /// Of `TEST_DONE`: the sum.
        latency_ns: AtomicU64,
        slowest_ns: AtomicU64,
    }
}

maps! {
    static COUNTS: HashMap<NetKey, NetCount, 8192> = "net_count_map";
}

fn none() -> NetCount {
    let zero = || AtomicU64::new(0);
    NetCount { calls: zero(), bytes: zero(), failed: zero(), latency_ns: zero(), slowest_ns: zero() }
}

/// The totals under a key, made if they are missing; `None` if the map is full.
fn totals(key: &NetKey) -> Option<&'static NetCount> {
    COUNTS.get_ref(key).or_else(|| {
        let _ = COUNTS.create(key, &none());
        COUNTS.get_ref(key)
    })
}

net! {
    fn net_count(ctx) {
        let key = NetKey { conn: ctx.conn(), op: ctx.op(), dev: ctx.dev() };
        let latency = ctx.latency_ns();
        let Some(seen) = totals(&key) else { return Verdict::Keep };
        seen.calls.fetch_add(1, Relaxed);
        if ctx.result() != 0 {
            seen.failed.fetch_add(1, Relaxed);
        } else {
            seen.bytes.fetch_add(ctx.size(), Relaxed);
        }
        seen.latency_ns.fetch_add(latency, Relaxed);
        if latency > seen.slowest_ns.load(Relaxed) {
            seen.slowest_ns.store(latency, Relaxed);
        }
        Verdict::Keep
    }
}

license!("Dual MIT/GPL");
