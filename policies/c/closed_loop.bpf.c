/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * closed_loop: channels that follow contention, in two programs that share their maps.
 *
 * `observe` (hook profiler) keeps, for each collective and number of channels, the best
 * cost that was ever seen with that many: nanoseconds per MiB. `adapt` (hook tuner)
 * compares. Much more than the best with the same channels means that somebody else
 * uses the link: give a channel back. Close to the best means that there is room: take
 * one more. Comparing like with like is what makes it return after the contention: few
 * channels on a free link are slow, but as slow as they always were.
 *
 * What this decides depends on what this process measured, and so may differ from rank
 * to rank: for communicators whose ranks share one process (and so one map). The object
 * brings both programs: RINGFENCE_POLICY=closed_loop.bpf.o is all it takes.
 */
#include "ringfence.h"

/* Below this, latency says little about bandwidth: NCCL decides. */
#define LARGE_BYTES (1 << 20)
#define START_CHANNELS 4
#define MIN_CHANNELS 1
#define MAX_CHANNELS 12
#define FUNCS (RF_FUNC_ALL_REDUCE + 1)
/* Samples with the same channels before the next step. */
#define PATIENCE 2
/* A best that is not met again is forgotten by 1/1024 with each sample. */
#define AGEING 10

/* Costs of one collective with one number of channels, in ns per MiB. */
struct cost {
	__u64 best;
	/* Smoothed since these channels were last taken up. */
	__u64 now;
};

struct state {
	/* What is asked for; 0: nothing yet. */
	__u32 channels;
	/* Channels of the last sample, and how many there were in a row. */
	__u32 seen_channels;
	__u32 streak;
	/* `streak` at the last step. */
	__u32 used;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FUNCS * (MAX_CHANNELS + 1));
	__type(key, __u32);
	__type(value, struct cost);
} loop_costs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FUNCS);
	__type(key, __u32);
	__type(value, struct state);
} loop_state SEC(".maps");

static __always_inline struct cost *cost_of(__u32 func, __u32 channels)
{
	__u32 key = func * (MAX_CHANNELS + 1) + channels;

	return bpf_map_lookup_elem(&loop_costs, &key);
}

SEC("profiler")
int observe(struct ProfilerContext *ctx)
{
	__u32 func = ctx->func, channels = ctx->channels;
	__u64 bytes = ctx->n_bytes, ns;
	struct state *state;
	struct cost *cost;

	/* One rank is enough: kernel time contains the wait for the slowest. */
	if (ctx->rank || func >= FUNCS || bytes < LARGE_BYTES || ctx->flags & RF_PROFILER_INCOMPLETE)
		return 0;
	if (channels < MIN_CHANNELS || channels > MAX_CHANNELS)
		return 0;
	state = bpf_map_lookup_elem(&loop_state, &func);
	cost = cost_of(func, channels);
	if (!state || !cost)
		return 0;

	ns = (ctx->duration_ns << 10) / (bytes >> 10);
	if (state->seen_channels != channels) {
		state->seen_channels = channels;
		state->streak = 0;
		state->used = 0;
	}
	cost->now = state->streak ? (cost->now * 3 + ns) / 4 : ns;
	state->streak++;
	if (!cost->best || cost->now < cost->best)
		cost->best = cost->now;
	else
		cost->best += cost->best >> AGEING;
	return 0;
}

SEC("tuner")
int adapt(struct CollContext *ctx)
{
	__u32 func = ctx->func, channels;
	struct state *state;
	struct cost *cost;

	if (func >= FUNCS || ctx->n_bytes < LARGE_BYTES)
		return RF_KEEP;
	state = bpf_map_lookup_elem(&loop_state, &func);
	if (!state)
		return RF_KEEP;

	channels = state->channels;
	if (channels < MIN_CHANNELS || channels > MAX_CHANNELS)
		channels = START_CHANNELS;
	cost = cost_of(func, channels);
	if (cost && state->seen_channels == channels && state->streak - state->used >= PATIENCE) {
		state->used = state->streak;
		if (cost->now > cost->best + cost->best / 2)
			channels = channels > MIN_CHANNELS ? channels - 1 : channels;
		else if (cost->now <= cost->best + cost->best / 4)
			channels = channels < MAX_CHANNELS ? channels + 1 : channels;
	}
	state->channels = channels;
	rf_channels(ctx, channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
