/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Key and map in the wrong order. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int arguments_swapped(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_telemetry *seen = bpf_map_lookup_elem(&key, &telemetry_map);

	if (seen)
		rf_channels(ctx, seen->recommended_channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
