/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* lookup_only: one hash lookup, no decision. For measuring what a lookup costs. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int lookup_only(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };

	(void)bpf_map_lookup_elem(&telemetry_map, &key);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
