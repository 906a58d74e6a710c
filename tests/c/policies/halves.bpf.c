/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One object for four hooks of the tuner: they share a map. */
#include "ringfence.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} shared SEC(".maps");

static __always_inline void put(__u32 at, __u64 value)
{
	bpf_map_update_elem(&shared, &at, &value, BPF_ANY);
}

/* Twice the latency of Ring/Simple, half the bandwidth of LL on one Hopper node, and the ranks into the map. */
SEC("tuner/init")
int constants(struct TunerInitContext *ctx)
{
	ctx->base_latency_ns[RF_ALGO_RING * RF_PROTO_COUNT + RF_PROTO_SIMPLE] *= 2;
	ctx->ll_max_bw[2 * 3 + 0] /= 2;
	ctx->hw_latency_ns[0] = 0; /* not passed on */
	put(0, ctx->n_ranks);
	return RF_SUBMIT;
}

SEC("tuner/chunk/half")
int chunk(struct ChunkContext *ctx)
{
	__u32 key = 0;
	__u64 *ranks = bpf_map_lookup_elem(&shared, &key);
	/* Half of what NCCL has, if `constants` ran in this process. */
	if (ranks && *ranks == ctx->n_ranks)
		ctx->chunk_size = ctx->chunk_size / 2 + 7;
	return RF_SUBMIT;
}

SEC("tuner")
int decide(struct CollContext *ctx)
{
	rf_channels(ctx, 3);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
