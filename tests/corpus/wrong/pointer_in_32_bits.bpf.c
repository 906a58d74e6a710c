/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Keeps an address in an int. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int pointer_in_32_bits(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);

	if (!seen)
		return RF_KEEP;
	__u32 at = (__u32)(__u64)seen;
	at += __builtin_offsetof(struct rf_telemetry, recommended_channels);
	rf_channels(ctx, *(__u32 *)(__u64)at);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
