/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Changes a table that was declared const. */
#include "ringfence.h"

static const volatile __u32 channels[4] = { 1, 2, 4, 8 };

SEC("tuner")
int constant_table(struct CollContext *ctx)
{
	__u32 i = ctx->n_nodes & 3;

	*(volatile __u32 *)&channels[i] += 1;
	rf_channels(ctx, channels[i]);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
