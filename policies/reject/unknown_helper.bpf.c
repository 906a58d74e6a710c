/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* unknown_helper: calls number 4096, which no hook offers. */
#include "ringfence.h"

static __u32 (*const helper_4096)(void) = (void *)4096;

SEC("tuner")
int unknown_helper(struct CollContext *ctx)
{
	rf_channels(ctx, 4);
	helper_4096();
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
