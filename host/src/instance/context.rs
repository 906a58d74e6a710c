//! Contexts, written in place: which word of the context comes from where, and how a decision is read back.

use super::route;
use crate::decision::{Decision, TunerInput};
use crate::maps::Map;
use crate::policy::{PolicyModule, Words};
use ringfence_guest::abi::{CollContext, NcclBpfContext, UNSET, packed};
use ringfence_translator::MapKind;
use std::mem::{offset_of, size_of};
use std::num::NonZeroU32;
use std::sync::Arc;

pub(super) const TUNER_BYTES: usize = size_of::<CollContext>();
pub(super) const NCCLBPF_BYTES: usize = size_of::<NcclBpfContext>();

/// Stores word `i`. As `i` is a constant wherever this is called, it becomes one store.
#[inline(always)]
fn put<const N: usize>(ctx: &mut [u8; N], i: usize, word: u64) {
    ctx[8 * i..8 * i + 8].copy_from_slice(&word.to_le_bytes());
}

/// Loads the 32-bit field at byte `at`. The policy stores its decision in fields of this width: a load of two of them
/// at once would wait until both stores have left the store buffer (some 5 ns).
#[inline(always)]
fn get<const N: usize>(ctx: &[u8; N], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&ctx[at..at + 4]);
    u32::from_le_bytes(field)
}

/// Two neighbouring 32-bit fields.
#[inline(always)]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// `word!(ctx, reads; i => value, ...)`: stores each word that the policy reads. The value is computed only then.
macro_rules! words {
    ($ctx:ident, $reads:ident; $($i:literal => $value:expr,)*) => {
        $(if $reads.has($i) { put($ctx, $i, $value); })*
    };
}

/// The word of each field is checked here, so that the numbers below cannot drift from the ABI.
const _: () = {
    assert!(offset_of!(CollContext, func) == 8 * 2 && offset_of!(CollContext, n_ranks) == 8 * 2 + 4);
    assert!(offset_of!(CollContext, n_nodes) == 8 * 3 && offset_of!(CollContext, num_pipe_ops) == 8 * 3 + 4);
    assert!(offset_of!(CollContext, reg_buff) == 8 * 4 && offset_of!(CollContext, num_algo) == 8 * 4 + 4);
    assert!(
        offset_of!(CollContext, num_proto) == 8 * 5 && offset_of!(CollContext, max_channels) == 8 * 5 + 4
    );
    assert!(
        offset_of!(CollContext, available) == 8 * 6 && offset_of!(CollContext, n_nvl_domains) == 8 * 6 + 4
    );
    assert!(offset_of!(CollContext, min_ranks_per_nvl_domain) == 8 * 7);
    assert!(offset_of!(CollContext, max_ranks_per_nvl_domain) == 8 * 7 + 4);
    assert!(
        offset_of!(CollContext, decision_algo) == 8 * 8
            && offset_of!(CollContext, decision_proto) == 8 * 8 + 4
    );
    assert!(
        offset_of!(CollContext, decision_channels) == 8 * 9 && offset_of!(CollContext, call_seq) == 8 * 10
    );
    assert!(offset_of!(CollContext, cost_ns) == 8 * COST_WORD && size_of::<CollContext>() == 8 * 22);
    assert!(
        offset_of!(NcclBpfContext, rolling_p99_ns) == 8 * 3
            && offset_of!(NcclBpfContext, call_count) == 8 * 4
    );
    assert!(
        offset_of!(NcclBpfContext, coll_type) == 8 * 5
            && offset_of!(NcclBpfContext, num_pipe_ops) == 8 * 5 + 4
    );
    assert!(
        offset_of!(NcclBpfContext, reg_buff) == 8 * 6 && offset_of!(NcclBpfContext, n_ranks) == 8 * 6 + 4
    );
    assert!(
        offset_of!(NcclBpfContext, n_nodes) == 8 * 7
            && offset_of!(NcclBpfContext, current_channels) == 8 * 7 + 4
    );
};

const COST_WORD: usize = 11;
/// Words 11 to 21: the costs.
const COSTS: Words = Words(0x7ff << COST_WORD);
/// Words 0 to 7 and 10: the other inputs.
const INPUTS: Words = Words(0x4ff);

/// Does the policy read anything of [`CollContext`] but the decision so far?
#[inline]
pub(super) fn reads_inputs(reads: Words) -> bool {
    reads.any(INPUTS.and(COSTS))
}

/// Does the policy read the decision so far?
pub(super) fn reads_decision(reads: Words) -> bool {
    reads.has(8) || reads.has(9)
}

/// Writes what the policy reads of [`CollContext`], but for the decision so far.
#[inline]
pub(super) fn fill_tuner_inputs(ctx: &mut [u8; TUNER_BYTES], reads: Words, input: &TunerInput<'_>) {
    if reads.any(INPUTS) {
        fill_inputs(ctx, reads, input);
    }
    if reads.any(COSTS) {
        fill_costs(ctx, input);
    }
}

/// Writes what the policy reads of [`CollContext`], and the decision so far.
#[inline]
pub(super) fn fill_tuner(
    ctx: &mut [u8; TUNER_BYTES],
    reads: Words,
    input: &TunerInput<'_>,
    so_far: Decision,
) {
    fill_tuner_inputs(ctx, reads, input);
    let (route, channels) = decision_words(so_far);
    put(ctx, 8, route);
    put(ctx, 9, channels);
}

/// Words 8 and 9: the decision so far.
#[inline(always)]
pub(super) fn decision_words(decision: Decision) -> (u64, u64) {
    let (algo, proto) = decision.route.map_or((UNSET, UNSET), |(a, p)| (a.number(), p.number()));
    (pair(algo, proto), u64::from(decision.channels.map_or(0, NonZeroU32::get)))
}

#[inline]
fn fill_inputs(ctx: &mut [u8; TUNER_BYTES], reads: Words, input: &TunerInput<'_>) {
    let (comm, costs) = (input.comm, &input.costs);
    words! { ctx, reads;
        0 => input.n_bytes,
        1 => comm.comm_id,
        2 => pair(input.func, comm.n_ranks),
        3 => pair(comm.n_nodes, input.num_pipe_ops),
        4 => pair(u32::from(input.reg_buff), costs.num_algo()),
        5 => pair(costs.num_proto(), comm.max_channels),
        6 => pair(costs.available(), comm.n_nvl_domains),
        7 => pair(comm.min_ranks_per_nvl_domain, comm.max_ranks_per_nvl_domain),
        10 => input.call_seq,
    }
}

fn fill_costs(ctx: &mut [u8; TUNER_BYTES], input: &TunerInput<'_>) {
    for (bytes, cost) in ctx[8 * COST_WORD..].chunks_exact_mut(4).zip(input.costs.nanos()) {
        bytes.copy_from_slice(&cost.to_le_bytes());
    }
}

/// The decision that the policy left in its context. Half a route, or numbers that name nothing, are no route.
#[inline]
pub(super) fn tuner_decision(ctx: &mut [u8; TUNER_BYTES]) -> Decision {
    let algo = get(ctx, offset_of!(CollContext, decision_algo));
    let proto = get(ctx, offset_of!(CollContext, decision_proto));
    let channels = get(ctx, offset_of!(CollContext, decision_channels));
    Decision { route: route(algo, proto), channels: NonZeroU32::new(channels) }
}

/// Latencies of NCCLbpf's context, in nanoseconds: last, average, 99th percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Latencies([u64; 3]);

/// Words 1 to 3 of NCCLbpf's context.
const LATENCIES: Words = Words(0b1110);

/// NCCLbpf fills the latencies of its context from the policy's own map of this name: hash, key (collective, nodes), and a value
/// that begins with the three latencies. Where there is none, or it has no entry, they are 0.
pub(super) fn telemetry_map(policy: &PolicyModule) -> Option<usize> {
    let fits =
        |m: &ringfence_translator::MapDecl| m.kind == MapKind::Hash && m.key_size == 8 && m.value_size >= 24;
    let index = policy.maps().iter().position(|m| m.name == "telemetry_map" && fits(m))?;
    policy.reads().any(LATENCIES).then_some(index)
}

#[inline]
pub(super) fn latencies(map: Option<&Arc<Map>>, input: &TunerInput<'_>) -> Latencies {
    let found = map.and_then(|m| Some((m, m.find(&[pair(input.func, input.comm.n_nodes)])?)));
    let Some((map, slot)) = found else { return Latencies::default() };
    let first = map.value_offset(0, slot) as usize / 8;
    Latencies([0, 1, 2].map(|i| map.bytes().load(first + i).unwrap_or(0)))
}

/// Writes what the policy reads of [`NcclBpfContext`].
#[inline]
pub(super) fn fill_ncclbpf(
    ctx: &mut [u8; NCCLBPF_BYTES],
    reads: Words,
    input: &TunerInput<'_>,
    latencies: Latencies,
    current_channels: u32,
) {
    let (comm, Latencies([last, average, p99])) = (input.comm, latencies);
    words! { ctx, reads;
        0 => input.n_bytes,
        1 => last,
        2 => average,
        3 => p99,
        4 => input.call_seq,
        5 => pair(input.func, input.num_pipe_ops),
        6 => pair(u32::from(input.reg_buff), comm.n_ranks),
        7 => pair(comm.n_nodes, current_channels),
        8 => 0,
    }
}

/// NCCLbpf's packed action: channels count if their flag is set and they are not 0, else the current ones stay (they are what NCCLbpf
/// reports when a policy says nothing); a route counts if both its flags are set.
#[inline]
pub(super) fn unpack(action: u64, so_far: Decision, current_channels: u32) -> Decision {
    let byte = |shift: u32| (action >> shift) as u32 & 0xff;
    let set = |flag: u64| action >> packed::FLAGS_SHIFT & flag != 0;
    let wanted = if set(packed::SET_CHANNELS) { byte(packed::CHANNELS_SHIFT) } else { 0 };
    let named = set(packed::SET_ALGO) && set(packed::SET_PROTO);
    let chosen = if named { route(byte(packed::ALGO_SHIFT), byte(packed::PROTO_SHIFT)) } else { None };
    Decision {
        route: chosen.or(so_far.route),
        channels: NonZeroU32::new(wanted).or(NonZeroU32::new(current_channels)),
    }
}
