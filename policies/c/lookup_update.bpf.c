/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * lookup_update: notes each call in the telemetry map, no decision. For measuring what a
 * lookup and an update cost.
 */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int lookup_update(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_telemetry next = {};
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);

	if (seen)
		next = *seen;
	next.last_n_bytes = ctx->n_bytes;
	if (next.samples != ~0u)
		next.samples++;
	if (!next.recommended_channels) {
		__u32 channels = ctx->decision_channels;

		next.recommended_channels = channels ? channels : 1;
	}
	bpf_map_update_elem(&telemetry_map, &key, &next, BPF_ANY);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
