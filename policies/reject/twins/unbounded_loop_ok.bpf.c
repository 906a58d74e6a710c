/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The good twin of unbounded_loop: a counter bounds the turns. */
#include "ringfence.h"

SEC("tuner")
int unbounded_loop_ok(struct CollContext *ctx)
{
	__u32 wanted = ctx->n_ranks;
	__u32 n = 1;

	for (__u32 turn = 0; turn < 32 && n != wanted; turn++) {
		n *= 2;
		asm volatile("" : "+r"(n));
	}
	rf_channels(ctx, n);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
