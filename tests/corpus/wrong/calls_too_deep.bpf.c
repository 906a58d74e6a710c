/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Nine functions that call each other in a row. */
#include "ringfence.h"

#define LEVEL(name, next)                                          \
	static __attribute__((noinline)) __u32 name(__u32 n)       \
	{                                                          \
		asm volatile("" : "+r"(n));                        \
		return next(n + 1) + 1;                            \
	}

static __attribute__((noinline)) __u32 last(__u32 n)
{
	asm volatile("" : "+r"(n));
	return n;
}

LEVEL(level8, last)
LEVEL(level7, level8)
LEVEL(level6, level7)
LEVEL(level5, level6)
LEVEL(level4, level5)
LEVEL(level3, level4)
LEVEL(level2, level3)
LEVEL(level1, level2)

SEC("tuner")
int calls_too_deep(struct CollContext *ctx)
{
	rf_channels(ctx, level1(ctx->n_ranks));
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
