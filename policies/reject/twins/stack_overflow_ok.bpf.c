/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The good twin of stack_overflow: it writes the lowest eight bytes of its frame. */
#include "ringfence.h"

SEC("tuner")
int stack_overflow_ok(struct CollContext *ctx)
{
	rf_channels(ctx, 4);
	asm volatile("*(u64 *)(r10 - 512) = r1" ::: "memory");
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
