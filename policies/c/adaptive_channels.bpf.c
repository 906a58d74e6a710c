/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * adaptive_channels: hill climbing on the number of channels, a step for each new sample.
 * Latency above its average costs a channel; a large collective that is no slower than
 * its average earns one.
 *
 * The telemetry differs from rank to rank, and so may what this decides: for
 * communicators whose ranks share one process (and so one map).
 */
#include "ringfence.h"

#define LARGE_BYTES (1 << 20)
/* Latencies closer than this to the average are noise. */
#define NOISE_NS 32
#define MIN_CHANNELS 1
#define MAX_CHANNELS 12

RF_TELEMETRY_MAP;

static __always_inline __u32 start_channels(__u64 bytes)
{
	if (bytes < 16 << 10)
		return 2;
	return bytes < LARGE_BYTES ? 4 : 8;
}

static __always_inline __u32 clamp(__u32 channels)
{
	if (channels < MIN_CHANNELS)
		return MIN_CHANNELS;
	return channels > MAX_CHANNELS ? MAX_CHANNELS : channels;
}

SEC("tuner")
int adaptive_channels(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_telemetry next = {};
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);
	__u64 bytes = ctx->n_bytes;
	__u32 channels;

	if (seen)
		next = *seen;
	/* Telemetry can come before the first decision: then there is nothing to step from. */
	if (!next.recommended_channels) {
		channels = start_channels(bytes);
	} else {
		channels = clamp(next.recommended_channels);
		if (next.samples > next.applied_samples) {
			if (next.last_latency_ns > next.avg_latency_ns + NOISE_NS)
				channels = clamp(channels - 1);
			else if (bytes >= LARGE_BYTES &&
				 next.last_latency_ns <= next.avg_latency_ns)
				channels = clamp(channels + 1);
			next.applied_samples = next.samples;
		}
	}
	next.recommended_channels = channels;
	bpf_map_update_elem(&telemetry_map, &key, &next, BPF_ANY);

	rf_channels(ctx, channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
