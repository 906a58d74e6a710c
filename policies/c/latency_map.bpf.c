/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * latency_map: keeps the latency of each collective in telemetry_map, where tuner policies
 * (adaptive_channels, slo_enforcer) find it: the last one, a moving average over some eight,
 * and an estimate of the 99th percentile.
 *
 * Only its own fields are written, in place: the others are the tuner's.
 */
#include "ringfence.h"

RF_TELEMETRY_MAP;

/* Most that one sample moves the estimate: 99 parts in 1024 up, one part down. */
#define P99_SHIFT 10

static __always_inline __u64 toward(__u64 average, __u64 latency)
{
	return latency >= average ? average + ((latency - average) >> 3) :
				    average - ((average - latency) >> 3);
}

/* A step up for one sample in a hundred, 1/99 of it down for the others: where both balance, 99 % lie below. */
static __always_inline __u64 percentile(__u64 p99, __u64 latency)
{
	__u64 step = (p99 >> P99_SHIFT) + 1;

	if (latency <= p99)
		return p99 > step ? p99 - step : p99;
	return latency - p99 < 99 * step ? latency : p99 + 99 * step;
}

SEC("profiler")
int latency_map(struct ProfilerContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	__u64 latency = ctx->duration_ns, bytes = ctx->n_bytes;
	struct rf_telemetry *seen;
	__u64 average, p99;
	__u32 samples;

	/* No measure of the transfer, or of a part of it only. */
	if (ctx->timing == RF_TIMING_ENQUEUE || ctx->flags & RF_PROFILER_INCOMPLETE)
		return RF_KEEP;
	seen = bpf_map_lookup_elem(&telemetry_map, &key);
	if (!seen) {
		struct rf_telemetry first = {
			.last_latency_ns = latency,
			.avg_latency_ns = latency,
			.p99_latency_ns = latency,
			.last_n_bytes = bytes,
			.samples = 1,
		};
		/* A full map keeps no more kinds of collectives. */
		bpf_map_update_elem(&telemetry_map, &key, &first, BPF_NOEXIST);
		return RF_SUBMIT;
	}
	samples = seen->samples;
	/* Without samples, a tuner policy was here first. */
	average = samples ? toward(seen->avg_latency_ns, latency) : latency;
	p99 = samples ? percentile(seen->p99_latency_ns, latency) : latency;
	seen->avg_latency_ns = average;
	seen->p99_latency_ns = p99;
	seen->last_latency_ns = latency;
	seen->last_n_bytes = bytes;
	/* Last: a tuner policy takes a new number as word of new latencies. It stays at the most. */
	if (samples != 0xffffffffu)
		seen->samples = samples + 1;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
