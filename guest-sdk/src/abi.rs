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

/// `ncclFunc_t`. A tuner is asked for the first five only.
pub mod func {
    #![allow(missing_docs)]
    pub const BROADCAST: u32 = 0;
    pub const REDUCE: u32 = 1;
    pub const ALL_GATHER: u32 = 2;
    pub const REDUCE_SCATTER: u32 = 3;
    pub const ALL_REDUCE: u32 = 4;
    pub const SEND_RECV: u32 = 5;
    pub const SEND: u32 = 6;
    pub const RECV: u32 = 7;
    pub const ALL_TO_ALL: u32 = 8;
    pub const SCATTER: u32 = 9;
    pub const GATHER: u32 = 10;
    pub const ALL_GATHER_V: u32 = 11;
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

/// Context of the `tuner/chunk` hook: NCCL 2.30 and later asks for the chunk size of a collective whose algorithm, protocol and
/// channels are fixed (`getChunkSize`, tuner v6). Return 0 to submit `chunk_size`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkContext {
    /// NCCL's communicator id.
    pub comm_id: u64,
    /// Bytes of this part of the collective (NCCL asks for up to three parts, each with one channel).
    pub n_bytes: u64,
    /// The chunk size in bytes that NCCL's own rules came to, which is also the most that the host passes on, unless the
    /// manifest's `limits.max_chunk_size` is more.
    pub nccl_chunk_size: u64,
    /// Decision: the chunk size in bytes; comes in as the decision so far. The host rounds it down to a multiple of `grain`, and
    /// puts it between `grain` and that most. Read-write.
    pub chunk_size: u64,
    /// Bytes of the protocol's grain: 16 (LL), 1920 (LL128), 512 (Simple).
    pub grain: u32,
    /// `ncclFunc_t`, see [`func`].
    pub func: u32,
    /// Algorithm, see [`algo`].
    pub algo: u32,
    /// Protocol, see [`proto`].
    pub proto: u32,
    /// Channels of this part.
    pub channels: u32,
    /// Ranks in the communicator.
    pub n_ranks: u32,
    /// Nodes in the communicator.
    pub n_nodes: u32,
    /// Padding: not accessible to policies.
    pub _pad: u32,
}

/// Context of the `tuner/init` hook: once per communicator (tuner v5 and later), before NCCL builds its cost model. The constants of
/// the model come in as NCCL has them and may be rewritten; return 0 to submit them. A constant that is left as it came keeps
/// NCCL's exact value; 0 and numbers above 10^9 are not passed on.
///
/// Latencies are in nanoseconds, bandwidths in MB/s (10^6 bytes), rounded to the nearest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TunerInitContext {
    /// NCCL's communicator id.
    pub comm_id: u64,
    /// Ranks in the communicator.
    pub n_ranks: u32,
    /// Nodes in the communicator.
    pub n_nodes: u32,
    /// NVLink domains.
    pub n_nvl_domains: u32,
    /// Fewest ranks in a NVLink domain.
    pub min_ranks_per_nvl_domain: u32,
    /// Most ranks in a NVLink domain.
    pub max_ranks_per_nvl_domain: u32,
    /// Padding: not accessible to policies.
    pub _pad: u32,
    /// `baseLatencies[algo][proto]`: element `algo * 3 + proto`. Read-write.
    pub base_latency_ns: [u32; 21],
    /// `hwLatencies[hw][algo][proto]`: element `hw * 21 + algo * 3 + proto`; hw 0 NVLink, 1 PCI, 2 network. Read-write.
    pub hw_latency_ns: [u32; 63],
    /// `llMaxBws[compute capability][scale]`: element `cc * 3 + scale`; cc 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell; scale 0 one
    /// node, 1 two, 2 four or more. Read-write.
    pub ll_max_bw: [u32; 12],
    /// `perChMaxRingLL128Bws`, as above. Read-write.
    pub ring_ll128_max_bw: [u32; 12],
    /// `perChMaxTreeLL128Bws`, as above. Read-write.
    pub tree_ll128_max_bw: [u32; 12],
    /// `perChMaxTreeBws`, as above. Read-write.
    pub tree_max_bw: [u32; 12],
    /// `perChMaxNVLSTreeBws`, as above. Read-write.
    pub nvls_tree_max_bw: [u32; 12],
}

/// Context of the `profiler` hook: one collective, or one send or receive, that has finished. Everything is read-only, and
/// may differ between ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProfilerContext {
    /// NCCL's communicator id (a hash for profiler v1 to v4).
    pub comm_id: u64,
    /// Bytes, as the tuner counts them: the full buffer for AllGather and ReduceScatter.
    pub n_bytes: u64,
    /// Nanoseconds from the first channel's start to the last channel's end.
    pub duration_ns: u64,
    /// NCCL's sequence number of this collective on this communicator.
    pub seq: u64,
    /// Monotonic clock of the host, in nanoseconds, when the end was known.
    pub end_ns: u64,
    /// `ncclFunc_t`, see [`func`].
    pub func: u32,
    /// Algorithm, see [`algo`], or [`UNSET`].
    pub algo: u32,
    /// Protocol, see [`proto`], or [`UNSET`].
    pub proto: u32,
    /// Channels used.
    pub channels: u32,
    /// Rank in the communicator.
    pub rank: u32,
    /// Ranks in the communicator; 0 for profiler v1 to v3, which do not tell.
    pub n_ranks: u32,
    /// Nodes in the communicator; 0 for profiler v1 to v3.
    pub n_nodes: u32,
    /// Where `duration_ns` comes from, see [`timing`].
    pub timing: u32,
    /// Bytes of one element; 0 if the type is unknown.
    pub datatype_bytes: u32,
    /// The other side of a send or receive; [`UNSET`] for collectives.
    pub peer: u32,
    /// See [`profiler_flag`].
    pub flags: u32,
    /// Padding: not accessible to policies.
    pub _pad: u32,
    /// The first 32 bytes of the communicator's name, padded with NUL; zero if it has none.
    pub comm_name: [u64; 4],
}

/// Sources of [`ProfilerContext::duration_ns`].
pub mod timing {
    #![allow(missing_docs)]
    /// The GPU's global timer at the start and end of each channel.
    pub const GPU: u32 = 0;
    /// The host's clock when NCCL told of the kernels: late by the polling of its proxy thread.
    pub const KERNEL_HOST: u32 = 1;
    /// The host's clock around the enqueueing: no measure of the transfer.
    pub const ENQUEUE: u32 = 2;
}

/// Bits of [`ProfilerContext::flags`].
pub mod profiler_flag {
    #![allow(missing_docs)]
    /// Some channels never told of their end.
    pub const INCOMPLETE: u32 = 1;
}

/// Context of the `profiler/event` hook: one event of NCCL's profiler interface as it comes. Read-only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProfilerEventContext {
    /// NCCL's communicator id.
    pub comm_id: u64,
    /// Monotonic clock of the host in nanoseconds.
    pub time_ns: u64,
    /// Number of the event, unique while it lives; 0 if it has none.
    pub handle: u64,
    /// Number of its parent; 0 if it has none.
    pub parent: u64,
    /// Bytes, or the GPU's timer in nanoseconds, as the event has it; else 0.
    pub value: u64,
    /// NCCL's sequence number, or the step of a proxy operation.
    pub seq: u64,
    /// See [`event_action`].
    pub action: u32,
    /// The event's type as NCCL's bit (1 group, 2 collective, ... 0x40 kernel channel).
    pub event: u32,
    /// NCCL's state number of a state record; else [`UNSET`].
    pub state: u32,
    /// Channel; [`UNSET`] if it has none.
    pub channel: u32,
    /// Peer; [`UNSET`] if it has none.
    pub peer: u32,
    /// Process that the event belongs to.
    pub pid: u32,
    /// Rank in the communicator.
    pub rank: u32,
    /// `ncclFunc_t`; [`UNSET`] if it has none.
    pub func: u32,
}

/// What a [`ProfilerEventContext`] tells.
pub mod event_action {
    #![allow(missing_docs)]
    pub const START: u32 = 0;
    pub const STOP: u32 = 1;
    pub const STATE: u32 = 2;
}

/// Context of the `net` hook: one call of the net plugin that Ringfence wraps. The verdict counts at [`net_op::CONNECT`] alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NetContext {
    /// NCCL's communicator id (net v11 and later, else 0).
    pub comm_id: u64,
    /// Number of the connection; 0 before there is one.
    pub conn: u64,
    /// Bytes of the transfer or registration.
    pub size: u64,
    /// Monotonic clock of the host in nanoseconds.
    pub time_ns: u64,
    /// At [`net_op::TEST_DONE`]: nanoseconds since the request was made.
    pub latency_ns: u64,
    /// See [`net_op`].
    pub op: u32,
    /// Device of the plugin below.
    pub dev: u32,
    /// Tag of the transfer.
    pub tag: u32,
    /// Receives of a grouped receive; 1 else.
    pub count: u32,
    /// Requests under way on this connection.
    pub in_flight: u32,
    /// What the plugin below returned (`ncclResult_t`); 0 where it was not called yet.
    pub result: u32,
    /// The operation that NCCL announced for this connection (net v11 and later), or [`UNSET`].
    pub attr_op: u32,
    /// The algorithms that NCCL announced, a bit mask, or [`UNSET`].
    pub attr_algo: u32,
    /// The protocols that NCCL announced, a bit mask, or [`UNSET`].
    pub attr_proto: u32,
    /// Decision, see [`net_verdict`]. Read-write.
    pub verdict: u32,
}

/// Operations of the `net` hook.
pub mod net_op {
    #![allow(missing_docs)]
    pub const INIT: u32 = 0;
    pub const LISTEN: u32 = 1;
    pub const CONNECT: u32 = 2;
    pub const ACCEPT: u32 = 3;
    pub const REG_MR: u32 = 4;
    pub const DEREG_MR: u32 = 5;
    pub const ISEND: u32 = 6;
    pub const IRECV: u32 = 7;
    pub const IFLUSH: u32 = 8;
    pub const TEST_DONE: u32 = 9;
    pub const CLOSE_SEND: u32 = 10;
    pub const CLOSE_RECV: u32 = 11;
    pub const CLOSE_LISTEN: u32 = 12;
    pub const FINALIZE: u32 = 13;
    /// Number of operations.
    pub const COUNT: u32 = 14;
}

/// Verdicts of the `net` hook.
pub mod net_verdict {
    #![allow(missing_docs)]
    pub const ALLOW: u32 = 0;
    pub const DENY: u32 = 1;
}

/// Context of the `env` hook: NCCL looks up one of its settings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EnvContext {
    /// Name of the variable: ASCII, padded with NUL.
    pub name: [u64; 8],
    /// Bytes of the name.
    pub name_len: u32,
    /// NCCL's version: `major << 16 | minor << 8 | patch`.
    pub nccl_version: u32,
    /// Decision, see [`env_action`]. Read-write.
    pub action: u32,
    /// Decision: bytes of `value`, at most 255. Read-write.
    pub value_len: u32,
    /// Decision: the answer, padded with NUL. Read-write.
    pub value: [u64; 32],
}

/// Answers of the `env` hook.
pub mod env_action {
    #![allow(missing_docs)]
    /// What the process environment says.
    pub const PASS: u32 = 0;
    /// `value`.
    pub const ANSWER: u32 = 1;
    /// Not set.
    pub const HIDE: u32 = 2;
}

/// Helper numbers (those of the Linux UAPI, `enum bpf_func_id`).
pub mod helper {
    #![allow(missing_docs)]
    pub const MAP_LOOKUP_ELEM: u32 = 1;
    pub const MAP_UPDATE_ELEM: u32 = 2;
    pub const MAP_DELETE_ELEM: u32 = 3;
    pub const KTIME_GET_NS: u32 = 5;
    pub const TRACE_PRINTK: u32 = 6;
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
    pub const MAP_LOOKUP_PERCPU_ELEM: u32 = 195;
}

/// Map types (`enum bpf_map_type`).
pub mod map_type {
    #![allow(missing_docs)]
    pub const HASH: u32 = 1;
    pub const ARRAY: u32 = 2;
    pub const PROG_ARRAY: u32 = 3;
    pub const PERCPU_HASH: u32 = 5;
    pub const PERCPU_ARRAY: u32 = 6;
    pub const LRU_HASH: u32 = 9;
    pub const RINGBUF: u32 = 27;
}

/// Flags of `map_update_elem`.
pub mod update {
    #![allow(missing_docs)]
    pub const ANY: u64 = 0;
    pub const NOEXIST: u64 = 1;
    pub const EXIST: u64 = 2;
    /// Under the spin lock in the value.
    pub const F_LOCK: u64 = 4;
}

const _: () = {
    assert!(size_of::<CollContext>() == 176);
    assert!(offset_of!(CollContext, func) == 16);
    assert!(offset_of!(CollContext, available) == 48);
    assert!(offset_of!(CollContext, decision_algo) == 64);
    assert!(offset_of!(CollContext, decision_channels) == 72);
    assert!(offset_of!(CollContext, call_seq) == 80);
    assert!(offset_of!(CollContext, cost_ns) == 88);
    assert!(size_of::<ChunkContext>() == 64 && offset_of!(ChunkContext, grain) == 32);
    assert!(size_of::<TunerInitContext>() == 608 && offset_of!(TunerInitContext, base_latency_ns) == 32);
    assert!(size_of::<ProfilerContext>() == 120 && offset_of!(ProfilerContext, comm_name) == 88);
    assert!(size_of::<ProfilerEventContext>() == 80 && offset_of!(ProfilerEventContext, action) == 48);
    assert!(size_of::<NetContext>() == 80 && offset_of!(NetContext, op) == 40);
    assert!(size_of::<EnvContext>() == 336 && offset_of!(EnvContext, value) == 80);
    assert!(size_of::<NcclBpfContext>() == 72);
    assert!(offset_of!(NcclBpfContext, coll_type) == 40);
    assert!(offset_of!(NcclBpfContext, reserved) == 64);
};
