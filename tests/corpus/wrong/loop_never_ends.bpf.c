/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Doubles until it hits a number that it may jump over. */
#include "ringfence.h"

SEC("tuner")
int loop_never_ends(struct CollContext *ctx)
{
	__u32 wanted = ctx->n_ranks, n = 1;

	while (n != wanted) {
		n *= 2;
		asm volatile("" : "+r"(n)); /* keeps clang from working it out */
	}
	rf_channels(ctx, n);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
