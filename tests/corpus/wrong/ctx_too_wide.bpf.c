/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads two neighbouring fields of the context at once. */
#include "ringfence.h"

SEC("tuner")
int ctx_too_wide(struct CollContext *ctx)
{
	/* func and n_ranks together */
	__u64 both = *(volatile __u64 *)&ctx->func;

	if (both >> 32 > 1)
		rf_channels(ctx, 8);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
