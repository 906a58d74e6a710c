/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* size_aware: algorithm, protocol and channels by size alone, in three bands. */
#include "ringfence.h"

SEC("tuner")
int size_aware(struct CollContext *ctx)
{
	__u64 bytes = ctx->n_bytes;

	if (bytes < 4096) {
		rf_choose(ctx, RF_ALGO_TREE, RF_PROTO_SIMPLE);
		rf_channels(ctx, 2);
	} else if (bytes < 1 << 20) {
		rf_choose(ctx, RF_ALGO_RING, RF_PROTO_LL);
		rf_channels(ctx, 4);
	} else {
		rf_choose(ctx, RF_ALGO_RING, RF_PROTO_SIMPLE);
		rf_channels(ctx, 8);
	}
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
