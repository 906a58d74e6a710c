/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads a cost at an index that may lie past the table in the context. */
#include "ringfence.h"

SEC("tuner")
int cost_index(struct CollContext *ctx)
{
	__u32 algo = ctx->decision_algo, proto = ctx->decision_proto;

	if (algo >= RF_ALGO_COUNT)
		return RF_KEEP;
	if (ctx->cost_ns[algo * RF_PROTO_COUNT + (proto & 3)] > 1000000)
		rf_channels(ctx, ctx->max_channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
