/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Returns the address of what it found. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
long pointer_returned(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);

	if (!seen)
		return RF_KEEP;
	rf_channels(ctx, seen->recommended_channels);
	return (long)seen;
}

RF_LICENSE("Dual MIT/GPL");
