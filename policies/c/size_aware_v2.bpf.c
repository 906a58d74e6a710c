/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * size_aware_v2: size_aware that also looks at the collective. A tree halves the hops of
 * a small all-reduce; a large all-reduce over eight or more ranks gets more channels.
 */
#include "ringfence.h"

static __always_inline __u32 algo(__u32 func, __u64 bytes)
{
	return func == RF_FUNC_ALL_REDUCE && bytes <= 32 << 10 ? RF_ALGO_TREE : RF_ALGO_RING;
}

static __always_inline __u32 proto(__u64 bytes)
{
	return bytes >= 4096 && bytes < 1 << 20 ? RF_PROTO_LL : RF_PROTO_SIMPLE;
}

static __always_inline __u32 channels(__u32 func, __u64 bytes, __u32 ranks)
{
	if (bytes < 4096)
		return 2;
	if (bytes < 1 << 20)
		return 4;
	return func == RF_FUNC_ALL_REDUCE && ranks >= 8 ? 10 : 8;
}

SEC("tuner")
int size_aware_v2(struct CollContext *ctx)
{
	__u64 bytes = ctx->n_bytes;
	__u32 func = ctx->func;

	rf_choose(ctx, algo(func, bytes), proto(bytes));
	rf_channels(ctx, channels(func, bytes, ctx->n_ranks));
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
