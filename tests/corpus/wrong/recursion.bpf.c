/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Halves by recursion. */
#include "ringfence.h"

static __attribute__((noinline)) __u32 halvings(__u32 n)
{
	asm volatile("" : "+r"(n));
	return n <= 1 ? 0 : 1 + halvings(n / 2) + halvings(n / 4);
}

SEC("tuner")
int recursion(struct CollContext *ctx)
{
	rf_channels(ctx, halvings(ctx->n_ranks));
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
