//! The ABI between the host and a policy, defined once: context layouts,
//! decision encoding and helper numbers.
//!
//! Everything here is plain data with a fixed layout (little-endian, as eBPF
//! objects for Ringfence always are). The host builds its verifier environment
//! from these definitions, the C header `policies/include/ringfence.h` repeats
//! them for C authors, and a test compares the two.

use core::mem::{offset_of, size_of};

/// Context of the `tuner` hook: one decision of NCCL's `getCollInfo`.
///
/// All inputs are read-only; the three `decision_*` fields are read-write and
/// come in holding the decision so far (of an earlier policy in the chain), or
/// [`UNSET`], [`UNSET`] and 0. Return 0 from the policy to submit them; any
/// other return value leaves the decision so far as it was.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollContext {
    /// Bytes of the collective: element size times the larger of send and
    /// receive count (the *full* buffer for AllGather and ReduceScatter).
    pub n_bytes: u64,
    /// NCCL's communicator id, equal on all ranks; 0 for tuner v2 to v4, which do not tell it.
    pub comm_id: u64,
    /// `ncclFunc_t`, see [`func`].
    pub func: u32,
    /// Ranks in the communicator.
    pub n_ranks: u32,
    /// Nodes in the communicator.
    pub n_nodes: u32,
    /// `numPipeOps`: tasks of the group divided by channels, rounded up; normally 1.
    pub num_pipe_ops: u32,
    /// 1 when the buffers are registered. **Rank-local**: ranks may differ.
    pub reg_buff: u32,
    /// Rows of NCCL's cost table (6 or 7).
    pub num_algo: u32,
    /// Columns of NCCL's cost table (3).
    pub num_proto: u32,
    /// Upper bound that the host puts on `decision_channels`.
    pub max_channels: u32,
    /// Bit `algo * 3 + proto` is set when NCCL offers that pair.
    pub available: u32,
    /// NVLink domains (tuner v5 and later, else 0).
    pub n_nvl_domains: u32,
    /// Fewest ranks in a NVLink domain (tuner v5 and later, else 0).
    pub min_ranks_per_nvl_domain: u32,
    /// Most ranks in a NVLink domain (tuner v5 and later, else 0).
    pub max_ranks_per_nvl_domain: u32,
    /// Decision: algorithm, see [`algo`], or [`UNSET`]. Read-write.
    pub decision_algo: u32,
    /// Decision: protocol, see [`proto`], or [`UNSET`]. Read-write.
    pub decision_proto: u32,
    /// Decision: channels, 0 = NCCL decides. Read-write.
    pub decision_channels: u32,
    /// Padding: not accessible to policies.
    pub _pad0: u32,
    /// Calls of `getCollInfo` on this communicator before this one. **Rank-local**
    /// in general (NCCL 2.31 and later asks several times per collective).
    pub call_seq: u64,
    /// NCCL's estimate for each pair in nanoseconds, row `algo`, column `proto`
    /// (stride 3); [`UNSET`] where the pair is not available. **Rank-local**.
    pub cost_ns: [u32; 21],
    /// Padding: not accessible to policies.
    pub _pad1: u32,
}

/// "No choice" in `decision_algo` and `decision_proto`, and "not available" in `cost_ns`.
pub const UNSET: u32 = u32::MAX;

/// `ncclFunc_t`: the collectives that reach a tuner.
pub mod func {
    #![allow(missing_docs)]
    pub const BROADCAST: u32 = 0;
    pub const REDUCE: u32 = 1;
    pub const ALL_GATHER: u32 = 2;
    pub const REDUCE_SCATTER: u32 = 3;
    pub const ALL_REDUCE: u32 = 4;
}

/// NCCL's algorithms (`NCCL_ALGO_*`).
pub mod algo {
    #![allow(missing_docs)]
    pub const TREE: u32 = 0;
    pub const RING: u32 = 1;
    pub const COLLNET_DIRECT: u32 = 2;
    pub const COLLNET_CHAIN: u32 = 3;
    pub const NVLS: u32 = 4;
    pub const NVLS_TREE: u32 = 5;
    pub const PAT: u32 = 6;
    /// Number of algorithms known to this ABI.
    pub const COUNT: u32 = 7;
}

/// NCCL's protocols (`NCCL_PROTO_*`).
pub mod proto {
    #![allow(missing_docs)]
    pub const LL: u32 = 0;
    pub const LL128: u32 = 1;
    pub const SIMPLE: u32 = 2;
    /// Number of protocols known to this ABI, and the row stride of `available` and `cost_ns`.
    pub const COUNT: u32 = 3;
}

/// Context of objects built for NCCLbpf (section `uprobe`): 72 bytes, read-only.
/// The decision is packed into r0, see [`packed`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct NcclBpfContext {
    pub n_bytes: u64,
    pub last_latency_ns: u64,
    pub avg_latency_ns: u64,
    pub rolling_p99_ns: u64,
    pub call_count: u64,
    pub coll_type: u32,
    pub num_pipe_ops: u32,
    pub reg_buff: u32,
    pub n_ranks: u32,
    pub n_nodes: u32,
    pub current_channels: u32,
    pub reserved: u32,
    pub _pad: u32,
}

/// Layout of NCCLbpf's packed action in r0.
pub mod packed {
    #![allow(missing_docs)]
    pub const ALGO_SHIFT: u32 = 0;
    pub const PROTO_SHIFT: u32 = 8;
    pub const CHANNELS_SHIFT: u32 = 16;
    pub const AGGRESSIVENESS_SHIFT: u32 = 24;
    pub const FLAGS_SHIFT: u32 = 32;
    pub const SET_ALGO: u64 = 1 << 0;
    pub const SET_PROTO: u64 = 1 << 1;
    pub const SET_CHANNELS: u64 = 1 << 2;
    pub const SET_AGGRESSIVENESS: u64 = 1 << 3;
}

/// Helper numbers (those of the Linux UAPI, `enum bpf_func_id`).
pub mod helper {
    #![allow(missing_docs)]
    pub const MAP_LOOKUP_ELEM: u32 = 1;
    pub const MAP_UPDATE_ELEM: u32 = 2;
    pub const MAP_DELETE_ELEM: u32 = 3;
    pub const KTIME_GET_NS: u32 = 5;
    pub const GET_PRANDOM_U32: u32 = 7;
    pub const GET_SMP_PROCESSOR_ID: u32 = 8;
    pub const TAIL_CALL: u32 = 12;
    pub const SPIN_LOCK: u32 = 93;
    pub const SPIN_UNLOCK: u32 = 94;
    pub const RINGBUF_OUTPUT: u32 = 130;
    pub const RINGBUF_RESERVE: u32 = 131;
    pub const RINGBUF_SUBMIT: u32 = 132;
    pub const RINGBUF_DISCARD: u32 = 133;
    pub const RINGBUF_QUERY: u32 = 134;
    pub const FOR_EACH_MAP_ELEM: u32 = 164;
    pub const LOOP: u32 = 181;
}

/// Map types (`enum bpf_map_type`).
pub mod map_type {
    #![allow(missing_docs)]
    pub const HASH: u32 = 1;
    pub const ARRAY: u32 = 2;
    pub const PROG_ARRAY: u32 = 3;
    pub const RINGBUF: u32 = 27;
}

/// Flags of `map_update_elem`.
pub mod update {
    #![allow(missing_docs)]
    pub const ANY: u64 = 0;
    pub const NOEXIST: u64 = 1;
    pub const EXIST: u64 = 2;
}

const _: () = {
    assert!(size_of::<CollContext>() == 176);
    assert!(offset_of!(CollContext, func) == 16);
    assert!(offset_of!(CollContext, available) == 48);
    assert!(offset_of!(CollContext, decision_algo) == 64);
    assert!(offset_of!(CollContext, decision_channels) == 72);
    assert!(offset_of!(CollContext, call_seq) == 80);
    assert!(offset_of!(CollContext, cost_ns) == 88);
    assert!(size_of::<NcclBpfContext>() == 72);
    assert!(offset_of!(NcclBpfContext, coll_type) == 40);
    assert!(offset_of!(NcclBpfContext, reserved) == 64);
};
