/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ringfence.h: what a policy in C needs. It repeats guest-sdk/src/abi.rs, where the
 * ABI is defined; tests/tests/abi.rs compares the two.
 *
 *     #include "ringfence.h"
 *
 *     SEC("tuner")
 *     int my_policy(struct CollContext *ctx)
 *     {
 *         if (ctx->n_bytes >= 4 << 20)
 *             rf_choose(ctx, RF_ALGO_RING, RF_PROTO_SIMPLE);
 *         return RF_SUBMIT;
 *     }
 *     RF_LICENSE("Dual MIT/GPL");
 *
 * Build with: clang -target bpf -mcpu=v3 -O2 -g -I policies/include -c my_policy.bpf.c
 */
#ifndef RINGFENCE_H
#define RINGFENCE_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;

/* ---- sections and maps, in the form that libbpf made standard ---- */

/* Place a function on a hook (SEC("tuner")), or a map among the maps (SEC(".maps")). */
#define SEC(name) __attribute__((section(name), used))
/* Members of a map definition: a number, or a type; the programs in the slots of a program array. */
#define __uint(name, value) int (*name)[value]
#define __type(name, ...) __typeof__(__VA_ARGS__) *name
#define __array(name, ...) __typeof__(__VA_ARGS__) *name[]
/* The license string of the object, once in each file. */
#define RF_LICENSE(text) char LICENSE[] SEC("license") = text

/* Inline without leaving the choice to the compiler. */
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PROG_ARRAY 3
/* Per-CPU: a value for each rank of the process. A policy sees its own rank's. */
#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
/* A hash that makes room when it is full, by giving up what was not looked up lately. */
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_RINGBUF 27

/* A lock in a map's value: one at most, and only the helpers below may touch it. */
struct bpf_spin_lock {
	__u32 val;
};

/* Flags of bpf_map_update_elem: create or replace; create only; replace only. */
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2
/* And with it: write the value under its bpf_spin_lock. */
#define BPF_F_LOCK 4

/* ---- the context of the `tuner` hook ---- */

/* "No choice" in decision_algo and decision_proto; "not available" in cost_ns. */
#define RF_UNSET 0xffffffffu

/* Collectives (func). A tuner is asked for the first five only. */
#define RF_FUNC_BROADCAST 0
#define RF_FUNC_REDUCE 1
#define RF_FUNC_ALL_GATHER 2
#define RF_FUNC_REDUCE_SCATTER 3
#define RF_FUNC_ALL_REDUCE 4
#define RF_FUNC_SEND_RECV 5
#define RF_FUNC_SEND 6
#define RF_FUNC_RECV 7
#define RF_FUNC_ALL_TO_ALL 8
#define RF_FUNC_SCATTER 9
#define RF_FUNC_GATHER 10
#define RF_FUNC_ALL_GATHER_V 11

/* Algorithms (decision_algo, rows of cost_ns). */
#define RF_ALGO_TREE 0
#define RF_ALGO_RING 1
#define RF_ALGO_COLLNET_DIRECT 2
#define RF_ALGO_COLLNET_CHAIN 3
#define RF_ALGO_NVLS 4
#define RF_ALGO_NVLS_TREE 5
#define RF_ALGO_PAT 6
#define RF_ALGO_COUNT 7

/* Protocols (decision_proto, columns of cost_ns). */
#define RF_PROTO_LL 0
#define RF_PROTO_LL128 1
#define RF_PROTO_SIMPLE 2
#define RF_PROTO_COUNT 3

/*
 * One decision of NCCL. Inputs are const: writing one is refused by the compiler here and
 * by the verifier in any case. Everything is volatile because the verifier wants each
 * access to touch one field exactly, and a compiler that is free to do so joins
 * neighbours (two 4-byte stores become one of 8). The price is that each mention is a
 * load: to check a field and then use it, copy it to a local variable first.
 *
 * [rank-local] marks what may differ between the ranks of a communicator; the rest is
 * equal on all of them.
 */
struct CollContext {
	/* Bytes of the collective (the full buffer for AllGather and ReduceScatter). */
	const volatile __u64 n_bytes;
	/* NCCL's communicator id; 0 for tuner v2 to v4. */
	const volatile __u64 comm_id;
	/* RF_FUNC_* */
	const volatile __u32 func;
	const volatile __u32 n_ranks;
	const volatile __u32 n_nodes;
	/* Tasks of the group divided by channels, rounded up; normally 1. */
	const volatile __u32 num_pipe_ops;
	/* 1 when the buffers are registered. [rank-local] */
	const volatile __u32 reg_buff;
	/* Rows and columns of NCCL's cost table. */
	const volatile __u32 num_algo;
	const volatile __u32 num_proto;
	/* The host lowers decision_channels to this. */
	const volatile __u32 max_channels;
	/* Bit algo * RF_PROTO_COUNT + proto: NCCL offers that pair. */
	const volatile __u32 available;
	/* NVLink domains and the fewest and most ranks in one; 0 before tuner v5. */
	const volatile __u32 n_nvl_domains;
	const volatile __u32 min_ranks_per_nvl_domain;
	const volatile __u32 max_ranks_per_nvl_domain;
	/*
	 * The decision. Comes in as the policies before this one in the chain left it, or
	 * RF_UNSET, RF_UNSET and 0 (channels: NCCL decides). Algorithm and protocol count
	 * together or not at all: see rf_choose.
	 */
	volatile __u32 decision_algo;
	volatile __u32 decision_proto;
	volatile __u32 decision_channels;
	__u32 _pad0; /* not accessible */
	/* Decisions on this communicator before this one. [rank-local] */
	const volatile __u64 call_seq;
	/* NCCL's estimate in ns at algo * RF_PROTO_COUNT + proto, or RF_UNSET. [rank-local] */
	const volatile __u32 cost_ns[RF_ALGO_COUNT * RF_PROTO_COUNT];
	__u32 _pad1; /* not accessible */
};

/* What a policy returns: hand the decision fields in, or leave the decision so far as it was. */
#define RF_SUBMIT 0
#define RF_KEEP 1

/* Ask for an algorithm and a protocol. NCCL's own choice stays if it does not offer the pair. */
static __always_inline void rf_choose(struct CollContext *ctx, __u32 algo, __u32 proto)
{
	ctx->decision_algo = algo;
	ctx->decision_proto = proto;
}

/* Ask for a number of channels; 0 leaves it to NCCL. The host lowers it to max_channels. */
static __always_inline void rf_channels(struct CollContext *ctx, __u32 n)
{
	ctx->decision_channels = n;
}

/* Does NCCL offer this pair? Both arguments below their COUNT. */
static __always_inline int rf_available(const struct CollContext *ctx, __u32 algo, __u32 proto)
{
	return (ctx->available >> ((algo * RF_PROTO_COUNT + proto) & 31)) & 1;
}

/* ---- the contexts of the other hooks; guest-sdk/src/abi.rs says more of each field ---- */

/* `tuner/chunk`: the chunk size of a collective (NCCL 2.30 and later). */
struct ChunkContext {
	const volatile __u64 comm_id;
	const volatile __u64 n_bytes;
	/* What NCCL's own rules came to, the most that is passed on unless limits.max_chunk_size is more. */
	const volatile __u64 nccl_chunk_size;
	/* The decision, in bytes. */
	volatile __u64 chunk_size;
	const volatile __u32 grain;
	const volatile __u32 func;
	const volatile __u32 algo;
	const volatile __u32 proto;
	const volatile __u32 channels;
	const volatile __u32 n_ranks;
	const volatile __u32 n_nodes;
	__u32 _pad; /* not accessible */
};

/* `tuner/init`: the constants of NCCL's cost model, in ns and MB/s (NCCL 2.28.3 and later). */
struct TunerInitContext {
	const volatile __u64 comm_id;
	const volatile __u32 n_ranks;
	const volatile __u32 n_nodes;
	const volatile __u32 n_nvl_domains;
	const volatile __u32 min_ranks_per_nvl_domain;
	const volatile __u32 max_ranks_per_nvl_domain;
	__u32 _pad; /* not accessible */
	/* algo * RF_PROTO_COUNT + proto */
	volatile __u32 base_latency_ns[21];
	/* (hw * RF_ALGO_COUNT + algo) * RF_PROTO_COUNT + proto; hw: 0 NVLink, 1 PCI, 2 network */
	volatile __u32 hw_latency_ns[63];
	/* cc * 3 + scale; cc: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell; scale: 1, 2, 4 or more nodes */
	volatile __u32 ll_max_bw[12];
	volatile __u32 ring_ll128_max_bw[12];
	volatile __u32 tree_ll128_max_bw[12];
	volatile __u32 tree_max_bw[12];
	volatile __u32 nvls_tree_max_bw[12];
};

/* Where duration_ns comes from (timing). */
#define RF_TIMING_GPU 0
#define RF_TIMING_KERNEL_HOST 1
#define RF_TIMING_ENQUEUE 2
/* Flags of a finished collective. */
#define RF_PROFILER_INCOMPLETE 1

/* `profiler`: a finished collective, send or receive. */
struct ProfilerContext {
	const volatile __u64 comm_id;
	const volatile __u64 n_bytes;
	const volatile __u64 duration_ns;
	const volatile __u64 seq;
	const volatile __u64 end_ns;
	const volatile __u32 func;
	const volatile __u32 algo;
	const volatile __u32 proto;
	const volatile __u32 channels;
	const volatile __u32 rank;
	const volatile __u32 n_ranks;
	const volatile __u32 n_nodes;
	const volatile __u32 timing;
	const volatile __u32 datatype_bytes;
	const volatile __u32 peer;
	const volatile __u32 flags;
	__u32 _pad; /* not accessible */
	const volatile __u64 comm_name[4];
};

/* What an event tells (action). */
#define RF_EVENT_START 0
#define RF_EVENT_STOP 1
#define RF_EVENT_STATE 2

/* `profiler/event`: one event of NCCL's profiler interface. */
struct ProfilerEventContext {
	const volatile __u64 comm_id;
	const volatile __u64 time_ns;
	const volatile __u64 handle;
	const volatile __u64 parent;
	const volatile __u64 value;
	const volatile __u64 seq;
	const volatile __u32 action;
	const volatile __u32 event;
	const volatile __u32 state;
	const volatile __u32 channel;
	const volatile __u32 peer;
	const volatile __u32 pid;
	const volatile __u32 rank;
	const volatile __u32 func;
};

/* Operations of the net hook (op). */
#define RF_NET_INIT 0
#define RF_NET_LISTEN 1
#define RF_NET_CONNECT 2
#define RF_NET_ACCEPT 3
#define RF_NET_REG_MR 4
#define RF_NET_DEREG_MR 5
#define RF_NET_ISEND 6
#define RF_NET_IRECV 7
#define RF_NET_IFLUSH 8
#define RF_NET_TEST_DONE 9
#define RF_NET_CLOSE_SEND 10
#define RF_NET_CLOSE_RECV 11
#define RF_NET_CLOSE_LISTEN 12
#define RF_NET_FINALIZE 13
#define RF_NET_COUNT 14
/* Verdicts: they count at RF_NET_CONNECT alone. */
#define RF_NET_ALLOW 0
#define RF_NET_DENY 1

/* `net`: one call of the net plugin below. */
struct NetContext {
	const volatile __u64 comm_id;
	const volatile __u64 conn;
	const volatile __u64 size;
	const volatile __u64 time_ns;
	const volatile __u64 latency_ns;
	const volatile __u32 op;
	const volatile __u32 dev;
	const volatile __u32 tag;
	const volatile __u32 count;
	const volatile __u32 in_flight;
	const volatile __u32 result;
	const volatile __u32 attr_op;
	const volatile __u32 attr_algo;
	const volatile __u32 attr_proto;
	/* The decision. */
	volatile __u32 verdict;
};

/* Answers of the env hook (action). */
#define RF_ENV_PASS 0
#define RF_ENV_ANSWER 1
#define RF_ENV_HIDE 2

/* `env`: NCCL looks up one of its settings. */
struct EnvContext {
	const volatile __u64 name[8];
	const volatile __u32 name_len;
	const volatile __u32 nccl_version;
	/* The decision. */
	volatile __u32 action;
	volatile __u32 value_len;
	volatile __u64 value[32];
};

/* ---- helpers, called by number ---- */

#define RF_HELPER(id) __attribute__((unused)) = (void *)(id)

/* The value of `key`, or NULL: check before use. It stays shared: others see what you write. */
static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) RF_HELPER(1);
/* Copy `value` in under `key`; flags BPF_ANY, BPF_NOEXIST or BPF_EXIST. 0 or a negative errno. */
static long (*const bpf_map_update_elem)(const void *map, const void *key, const void *value,
					 __u64 flags) RF_HELPER(2);
/* Remove `key`. 0 or a negative errno. */
static long (*const bpf_map_delete_elem)(const void *map, const void *key) RF_HELPER(3);
/* Monotonic clock in ns. [rank-local] */
static __u64 (*const bpf_ktime_get_ns)(void) RF_HELPER(5);
/*
 * A line for the log of the job, as the kernel's: %d %i %u %x %c %p %s, with l or ll for 64 bits, three
 * values at most. The host writes some lines a second for each policy and counts the rest. -EINVAL for
 * other formats. [rank-local]
 *
 *     bpf_printk("%llu bytes on %d ranks", ctx->n_bytes, ctx->n_ranks);
 */
static long (*const bpf_trace_printk)(const char *fmt, __u32 fmt_size, ...) RF_HELPER(6);
#define bpf_printk(fmt, ...)                                                              \
	({                                                                                \
		static const char rf_fmt_[] = fmt;                                        \
		bpf_trace_printk(rf_fmt_, sizeof(rf_fmt_), ##__VA_ARGS__);                \
	})
/* A pseudo-random number. [rank-local] */
static __u32 (*const bpf_get_prandom_u32)(void) RF_HELPER(7);
/* The CPU that runs the policy. [rank-local] */
static __u32 (*const bpf_get_smp_processor_id)(void) RF_HELPER(8);
/* Go on in another program of the object (`values` of the map); comes back if there is none at `index`. */
static long (*const bpf_tail_call)(void *ctx, const void *prog_array, __u32 index) RF_HELPER(12);
/* Lock and unlock the bpf_spin_lock in a map's value. Nothing but plain code may stand between. */
static long (*const bpf_spin_lock)(struct bpf_spin_lock *lock) RF_HELPER(93);
static long (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) RF_HELPER(94);
/* Copy `size` bytes to a ring buffer. 0, or a negative errno if there is no room. */
static long (*const bpf_ringbuf_output)(const void *ring, const void *data, __u64 size,
					__u64 flags) RF_HELPER(130);
/* Room for a record of `size` bytes, a constant, or NULL; to be submitted or discarded on every path. */
static void *(*const bpf_ringbuf_reserve)(const void *ring, __u64 size, __u64 flags) RF_HELPER(131);
static void (*const bpf_ringbuf_submit)(void *record, __u64 flags) RF_HELPER(132);
static void (*const bpf_ringbuf_discard)(void *record, __u64 flags) RF_HELPER(133);
/* 0: bytes in use; 1: size; 2: position of the consumer; 3: of the producer. [rank-local] */
static __u64 (*const bpf_ringbuf_query)(const void *ring, __u64 what) RF_HELPER(134);
/* Call `callback(map, key, value, ctx)` for each entry, until it returns 1. How many, or a negative errno. */
static long (*const bpf_for_each_map_elem)(const void *map, void *callback, void *ctx,
					   __u64 flags) RF_HELPER(164);
/* Call `callback(i, ctx)` for i from 0 to n - 1, until it returns 1. How many, or a negative errno. */
static long (*const bpf_loop)(__u32 n, void *callback, void *ctx, __u64 flags) RF_HELPER(181);
/* The value of `key` in that slot of a per-CPU map, another rank's; NULL from the number of slots on. */
static void *(*const bpf_map_lookup_percpu_elem)(const void *map, const void *key, __u32 slot) RF_HELPER(195);

/* ---- telemetry, as the policies that ship share it ---- */

/*
 * Map `telemetry_map`: latencies per collective and node count, kept by profiler
 * policies and read by tuner policies. Maps with the same name and shape are one map.
 */
struct rf_telemetry_key {
	__u32 func;
	__u32 n_nodes;
};

struct rf_telemetry {
	__u64 last_latency_ns;
	__u64 avg_latency_ns;
	__u64 p99_latency_ns;
	__u64 last_n_bytes;
	__u32 samples;
	/* Channels that the last decision asked for; 0: none yet. */
	__u32 recommended_channels;
	/* `samples` when a decision last took them into account. */
	__u32 applied_samples;
	/* Named, so that a whole value is initialised: the verifier refuses to copy a hole. */
	__u32 reserved;
};

#define RF_TELEMETRY_ENTRIES 64

/* Declare the map of that name. */
#define RF_TELEMETRY_MAP                                    \
	struct {                                            \
		__uint(type, BPF_MAP_TYPE_HASH);            \
		__uint(max_entries, RF_TELEMETRY_ENTRIES);  \
		__type(key, struct rf_telemetry_key);       \
		__type(value, struct rf_telemetry);         \
	} telemetry_map SEC(".maps")

/*
 * Map `config_map` of slo_enforcer: one entry per collective. max_channels 0 means
 * "not configured".
 */
struct rf_slo_config {
	__u64 target_p99_ns;
	__u32 min_channels;
	__u32 max_channels;
	__u32 step;
	__u32 reserved;
};

#endif
