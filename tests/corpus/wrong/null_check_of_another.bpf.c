/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two look-ups, and the first one is checked twice. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 5);
	__type(key, __u32);
	__type(value, struct rf_slo_config);
} config_map SEC(".maps");

SEC("tuner")
int null_check_of_another(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	__u32 func = ctx->func;
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);
	struct rf_slo_config *config = bpf_map_lookup_elem(&config_map, &func);

	if (!seen)
		return RF_KEEP;
	if (seen->samples < 16)
		return RF_KEEP;
	if (seen->p99_latency_ns > config->target_p99_ns)
		rf_channels(ctx, seen->recommended_channels + config->step);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
