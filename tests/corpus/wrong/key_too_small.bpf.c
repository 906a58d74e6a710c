/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Passes a key of four bytes to a map that takes eight. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int key_too_small(struct CollContext *ctx)
{
	__u32 func = ctx->func;
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &func);

	if (seen)
		rf_channels(ctx, seen->recommended_channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
