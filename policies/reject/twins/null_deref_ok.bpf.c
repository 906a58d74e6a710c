/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The good twin of null_deref: it asks. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int null_deref_ok(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);

	if (seen)
		rf_channels(ctx, seen->recommended_channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
