/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Writes to an array on the stack at an index without a bound. */
#include "ringfence.h"

SEC("tuner")
int stack_index(struct CollContext *ctx)
{
	volatile __u8 weights[16] = {};
	__u32 nodes = ctx->n_nodes;

	weights[nodes] = 1;
	rf_channels(ctx, weights[3]);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
