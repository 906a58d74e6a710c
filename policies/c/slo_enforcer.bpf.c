/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * slo_enforcer: holds a target for the 99th percentile of latency. Over the target it
 * spends channels and takes the low-latency protocol; under it, it gives channels back.
 * The target and the bounds come from `config_map`, per collective.
 *
 * The telemetry differs from rank to rank, and so may what this decides: for
 * communicators whose ranks share one process (and so one map).
 */
#include "ringfence.h"

RF_TELEMETRY_MAP;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RF_FUNC_ALL_REDUCE + 1);
	__type(key, __u32);
	__type(value, struct rf_slo_config);
} config_map SEC(".maps");

static __always_inline __u32 clamp(__u32 value, __u32 low, __u32 high)
{
	if (value < low)
		return low;
	return value > high ? high : value;
}

/* value + step, but at most high. */
static __always_inline __u32 raise(__u32 value, __u32 step, __u32 high)
{
	return value >= high || step >= high - value ? high : value + step;
}

/* value - step, but at least low. */
static __always_inline __u32 lower(__u32 value, __u32 step, __u32 low)
{
	return value <= low || step >= value - low ? low : value - step;
}

static __always_inline struct rf_slo_config config_of(__u32 func)
{
	struct rf_slo_config config = { .target_p99_ns = 150, .min_channels = 1,
					.max_channels = 8, .step = 1 };
	struct rf_slo_config *set = bpf_map_lookup_elem(&config_map, &func);

	if (set && set->max_channels)
		config = *set;
	return config;
}

/* Take the last latency into the averages, and note what was asked for. */
static __always_inline void note(struct rf_telemetry *t, __u64 bytes, __u32 channels)
{
	__u64 last = t->last_latency_ns;

	t->avg_latency_ns = t->samples ? (t->avg_latency_ns * 7 + last) / 8 : last;
	if (last > t->p99_latency_ns)
		t->p99_latency_ns = last;
	t->last_n_bytes = bytes;
	if (t->samples != ~0u)
		t->samples++;
	t->recommended_channels = channels;
}

SEC("tuner")
int slo_enforcer(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_slo_config config = config_of(key.func);
	struct rf_telemetry t = {};
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);
	__u64 bytes = ctx->n_bytes;
	__u32 channels = ctx->decision_channels;

	if (seen)
		t = *seen;
	if (t.recommended_channels)
		channels = t.recommended_channels;
	channels = clamp(channels, config.min_channels, config.max_channels);

	if (t.p99_latency_ns > config.target_p99_ns) {
		channels = raise(channels, config.step, config.max_channels);
		rf_choose(ctx, bytes < 64 << 10 ? RF_ALGO_TREE : RF_ALGO_RING,
			  bytes < 1 << 20 ? RF_PROTO_LL : RF_PROTO_SIMPLE);
	} else {
		channels = lower(channels, config.step, config.min_channels);
		rf_choose(ctx, bytes < 16 << 10 ? RF_ALGO_TREE : RF_ALGO_RING, RF_PROTO_SIMPLE);
	}
	rf_channels(ctx, channels);

	note(&t, bytes, channels);
	bpf_map_update_elem(&telemetry_map, &key, &t, BPF_ANY);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
