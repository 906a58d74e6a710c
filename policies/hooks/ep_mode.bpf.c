/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ep_mode: low-latency kernels up to a number of tokens for each rank, high-throughput
 * kernels above it. The low-latency mode sends a token to each of its experts, one by
 * one; the high-throughput mode sends it once to each node and pays for that with a
 * longer start. So where it pays depends on the nodes, and on how much a token weighs.
 *
 * The turning point for a token of 8 experts of 14336 bytes (hidden size 7168 in bf16)
 * is in the map `ep_turn`, one entry for 1, 2, 4, 8 and 16 or more nodes. An entry that
 * is 0 has the default below. Lighter tokens move it up in proportion.
 */
#include "ep_mode.h"

#define CLASSES 5
#define REFERENCE (8ull * 14336)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLASSES);
	__type(key, __u32);
	__type(value, __u32);
} ep_turn SEC(".maps");

/* 1, 2 to 3, 4 to 7, 8 to 15, 16 and more. */
static __always_inline __u32 class_of(__u32 nodes)
{
	return nodes < 2 ? 0 : nodes < 4 ? 1 : nodes < 8 ? 2 : nodes < 16 ? 3 : 4;
}

static __always_inline __u32 turn_of(__u32 class)
{
	__u32 *set = bpf_map_lookup_elem(&ep_turn, &class);

	if (set && *set)
		return *set;
	return class == 0 ? 384 : class == 1 ? 112 : class == 2 ? 128 : 208;
}

SEC("ep/mode")
int ep_mode(struct EpModeContext *ctx)
{
	__u64 weight = (__u64)ctx->top_k * ctx->token_bytes;
	__u64 turn = turn_of(class_of(ctx->n_nodes));

	if (weight == 0)
		return RF_KEEP;
	/* tokens * weight > turn * REFERENCE */
	ctx->mode = ctx->max_tokens * weight > turn * REFERENCE ? EP_MODE_MODE_HIGH_THROUGHPUT
								 : EP_MODE_MODE_LOW_LATENCY;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
