/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * unbounded_loop: doubles the channels until they reach a number that it does not move
 * towards once the product has wrapped to 0.
 */
#include "ringfence.h"

SEC("tuner")
int unbounded_loop(struct CollContext *ctx)
{
	__u32 wanted = ctx->n_ranks;
	__u32 n = 1;

	while (n != wanted) {
		n *= 2;
		/* Keeps the compiler from reasoning about n. */
		asm volatile("" : "+r"(n));
	}
	rf_channels(ctx, n);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
