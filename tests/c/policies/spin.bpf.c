/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Ends, but only after more steps than the test grants it fuel. Would ask for Tree/LL. */
#include "ringfence.h"

SEC("tuner")
int spin(struct CollContext *ctx)
{
	__u64 sum = ctx->n_bytes;
	for (__u32 i = 0; i < 2000; i++)
		sum = sum * 31 + ctx->func + i;
	rf_choose(ctx, RF_ALGO_TREE, RF_PROTO_LL);
	rf_channels(ctx, (__u32)(sum & 15) + 1);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
