/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The good twin of unknown_helper: it calls one that the tuner hook offers. */
#include "ringfence.h"

SEC("tuner")
int unknown_helper_ok(struct CollContext *ctx)
{
	rf_channels(ctx, 4);
	bpf_get_prandom_u32();
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
