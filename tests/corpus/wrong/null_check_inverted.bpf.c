/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Tests for null the wrong way round. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int null_check_inverted(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	volatile struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);

	if (seen)
		return RF_KEEP;
	rf_channels(ctx, seen->recommended_channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
