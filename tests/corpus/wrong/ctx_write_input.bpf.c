/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lowers an input instead of the decision. */
#include "ringfence.h"

SEC("tuner")
int ctx_write_input(struct CollContext *ctx)
{
	if (ctx->n_bytes < 65536)
		*(volatile __u32 *)&ctx->max_channels = 2;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
