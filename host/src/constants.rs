//! [`edit`]: the constants of NCCL's cost model, as policies of the `tuner/init` hook see and rewrite them.
//!
//! NCCL keeps them as doubles, latencies in microseconds and bandwidths in GB/s. eBPF has no floating point, so a policy sees
//! thousandths: nanoseconds and MB/s. A constant that no policy changed keeps NCCL's own bits.

use crate::decision::CommInfo;
use crate::endpoint::Endpoint;
use crate::ffi::types::TunerConstants;
use crate::hooks::Hook;
use ringfence_guest::abi::TunerInitContext;
use std::mem::{offset_of, size_of};

/// Number of constants.
const COUNT: usize = size_of::<TunerConstants>() / 8;
/// The first of them in the context; the rest follow in NCCL's order.
const FIRST: usize = offset_of!(TunerInitContext, base_latency_ns);
/// Largest value that is passed on: a second, or a petabyte per second.
const MOST: u32 = 1_000_000_000;

const _: () = assert!(FIRST + 4 * COUNT == size_of::<TunerInitContext>());
const _: () = {
    // The same arrays in the same order: each begins where half of the doubles before it end.
    assert!(
        offset_of!(TunerInitContext, hw_latency_ns) == FIRST + offset_of!(TunerConstants, hw_latencies) / 2
    );
    assert!(offset_of!(TunerInitContext, ll_max_bw) == FIRST + offset_of!(TunerConstants, ll_max_bws) / 2);
    assert!(
        offset_of!(TunerInitContext, ring_ll128_max_bw)
            == FIRST + offset_of!(TunerConstants, per_ch_max_ring_ll128_bws) / 2
    );
    assert!(
        offset_of!(TunerInitContext, tree_ll128_max_bw)
            == FIRST + offset_of!(TunerConstants, per_ch_max_tree_ll128_bws) / 2
    );
    assert!(
        offset_of!(TunerInitContext, tree_max_bw)
            == FIRST + offset_of!(TunerConstants, per_ch_max_tree_bws) / 2
    );
    assert!(
        offset_of!(TunerInitContext, nvls_tree_max_bw)
            == FIRST + offset_of!(TunerConstants, per_ch_max_nvls_tree_bws) / 2
    );
};

/// Runs the policies on `tuner/init` over NCCL's constants. How many constants have another value now.
pub(crate) fn edit(endpoint: &mut Endpoint, constants: &mut TunerConstants) -> usize {
    let mut ctx = [0; size_of::<TunerInitContext>()];
    fill(&mut ctx, endpoint.info(), constants);
    let before = ctx;
    endpoint.run(Hook::TunerInit, &mut ctx);
    apply(&before, &ctx, constants)
}

/// All constants, in NCCL's order.
fn each(constants: &mut TunerConstants) -> impl Iterator<Item = &mut f64> {
    let TunerConstants {
        base_latencies,
        hw_latencies,
        ll_max_bws,
        per_ch_max_ring_ll128_bws,
        per_ch_max_tree_ll128_bws,
        per_ch_max_tree_bws,
        per_ch_max_nvls_tree_bws,
    } = constants;
    let bandwidths = [
        ll_max_bws,
        per_ch_max_ring_ll128_bws,
        per_ch_max_tree_ll128_bws,
        per_ch_max_tree_bws,
        per_ch_max_nvls_tree_bws,
    ];
    let latencies = base_latencies.iter_mut().chain(hw_latencies.iter_mut().flatten());
    latencies.chain(bandwidths.into_iter().flatten()).flatten()
}

fn fill(ctx: &mut [u8], comm: &CommInfo, constants: &mut TunerConstants) {
    let words = [
        (offset_of!(TunerInitContext, n_ranks), comm.n_ranks),
        (offset_of!(TunerInitContext, n_nodes), comm.n_nodes),
        (offset_of!(TunerInitContext, n_nvl_domains), comm.n_nvl_domains),
        (offset_of!(TunerInitContext, min_ranks_per_nvl_domain), comm.min_ranks_per_nvl_domain),
        (offset_of!(TunerInitContext, max_ranks_per_nvl_domain), comm.max_ranks_per_nvl_domain),
    ];
    ctx[..8].copy_from_slice(&comm.comm_id.to_le_bytes());
    for (at, value) in words {
        ctx[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    for (bytes, constant) in ctx[FIRST..].chunks_exact_mut(4).zip(each(constants)) {
        // `as` saturates, and makes 0 of what is no number.
        bytes.copy_from_slice(&((*constant * 1000.0).round() as u32).to_le_bytes());
    }
}

fn apply(before: &[u8], after: &[u8], constants: &mut TunerConstants) -> usize {
    let numbers = |bytes: &'_ [u8]| -> Vec<u32> {
        bytes[FIRST..]
            .chunks_exact(4)
            .map(|b| b.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)))
            .collect()
    };
    let mut changed = 0;
    for ((was, now), constant) in numbers(before).into_iter().zip(numbers(after)).zip(each(constants)) {
        if was != now && (1..=MOST).contains(&now) {
            *constant = f64::from(now) / 1000.0;
            changed += 1;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants(first: f64) -> TunerConstants {
        let mut constants = TunerConstants::ZERO;
        each(&mut constants).enumerate().for_each(|(i, c)| *c = first + i as f64);
        constants
    }

    #[test]
    fn constants_come_in_nccl_s_order_and_in_thousandths() {
        let mut c = constants(0.25);
        assert_eq!(each(&mut c).count(), COUNT);
        assert_eq!((c.base_latencies[1][0], c.hw_latencies[1][0][0]), (3.25, 42.25));
        assert_eq!((c.ll_max_bws[0][0], c.per_ch_max_nvls_tree_bws[3][2]), (84.25, 143.25));
        let mut ctx = [0; size_of::<TunerInitContext>()];
        let comm = CommInfo { comm_id: 9, n_ranks: 16, n_nodes: 2, ..CommInfo::default() };
        fill(&mut ctx, &comm, &mut c);
        let at = |i: usize| u32::from_le_bytes(ctx[FIRST + 4 * i..FIRST + 4 * i + 4].try_into().unwrap());
        assert_eq!((at(0), at(143)), (250, 143_250));
        assert_eq!((ctx[0], ctx[8], ctx[12]), (9, 16, 2));
    }

    #[test]
    fn only_what_changed_is_passed_on_and_only_if_it_makes_sense() {
        let mut c = constants(0.123_456_789);
        let untouched = c;
        let mut before = [0; size_of::<TunerInitContext>()];
        fill(&mut before, &CommInfo::default(), &mut c);
        let mut after = before;
        assert_eq!(apply(&before, &after, &mut c), 0);
        assert_eq!(c, untouched, "NCCL's own bits stay");
        let mut set =
            |i: usize, n: u32| after[FIRST + 4 * i..FIRST + 4 * i + 4].copy_from_slice(&n.to_le_bytes());
        set(0, 6_600);
        set(1, 0);
        set(2, MOST + 1);
        set(143, 1);
        assert_eq!(apply(&before, &after, &mut c), 2);
        assert_eq!((c.base_latencies[0][0], c.per_ch_max_nvls_tree_bws[3][2]), (6.6, 0.001));
        assert_eq!(
            (c.base_latencies[0][1], c.base_latencies[0][2]),
            (untouched.base_latencies[0][1], untouched.base_latencies[0][2])
        );
    }

    #[test]
    fn what_is_no_number_is_shown_as_0() {
        let mut c = constants(0.0);
        (c.base_latencies[0][0], c.base_latencies[0][1], c.base_latencies[0][2]) =
            (f64::NAN, -1.0, f64::INFINITY);
        let mut ctx = [0; size_of::<TunerInitContext>()];
        fill(&mut ctx, &CommInfo::default(), &mut c);
        let shown: Vec<u32> =
            ctx[FIRST..FIRST + 12].chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(shown, [0, 0, u32::MAX]);
    }
}
