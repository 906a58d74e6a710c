/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * stack_overflow: writes eight bytes below the 512 of its frame. In assembly, since clang
 * refuses to lay out such a frame itself.
 */
#include "ringfence.h"

SEC("tuner")
int stack_overflow(struct CollContext *ctx)
{
	rf_channels(ctx, 4);
	asm volatile("*(u64 *)(r10 - 520) = r1" ::: "memory");
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
