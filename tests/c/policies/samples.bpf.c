/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Keeps what the profiler tells in an array, and answers the tuner with it, four bits at a time: asked for
 * field << 8 | nibble bytes, it wants nibble + 1 channels. So a test needs nothing but the plugin's symbols.
 */
#include "ringfence.h"

#define FIELDS 128
#define EVENTS 32 /* + type * 3 + action */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIELDS);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

static __always_inline void put(__u32 field, __u64 value)
{
	__u64 *at = bpf_map_lookup_elem(&seen, &field);

	if (at)
		*at = value;
}

static __always_inline void add(__u32 field, __u64 value)
{
	__u64 *at = bpf_map_lookup_elem(&seen, &field);

	if (at)
		__sync_fetch_and_add(at, value);
}

SEC("profiler")
int sample(struct ProfilerContext *ctx)
{
	put(1, ctx->duration_ns);
	put(2, ctx->n_bytes);
	put(3, ctx->seq);
	put(4, ctx->func);
	put(5, ctx->algo);
	put(6, ctx->proto);
	put(7, ctx->channels);
	put(8, ctx->rank);
	put(9, ctx->n_ranks);
	put(10, ctx->n_nodes);
	put(11, ctx->timing);
	put(12, ctx->datatype_bytes);
	put(13, ctx->peer);
	put(14, ctx->flags);
	put(15, ctx->comm_id);
	put(16, ctx->comm_name[0]);
	put(17, ctx->comm_name[1]);
	add(18, ctx->duration_ns);
	add(0, 1);
	return RF_SUBMIT;
}

#ifdef EVENT_HOOK
SEC("profiler/event")
int event(struct ProfilerEventContext *ctx)
{
	__u32 bit = ctx->event, action = ctx->action, type = 0;

	for (int i = 0; i < 16; i++)
		if (bit == 1u << i)
			type = i;
	add(EVENTS + type * 3 + (action & 3), 1);
	put(20, ctx->handle);
	put(21, ctx->parent);
	put(22, ctx->value);
	put(23, ctx->seq);
	put(24, ctx->state);
	put(25, ctx->channel);
	put(26, ctx->peer);
	put(27, ctx->pid);
	put(28, ctx->rank);
	put(29, ctx->func);
	put(30, ctx->comm_id);
	return RF_SUBMIT;
}
#endif

SEC("tuner")
int answer(struct CollContext *ctx)
{
	__u64 question = ctx->n_bytes;
	__u32 field = question >> 8 & (FIELDS - 1);
	__u64 *at = bpf_map_lookup_elem(&seen, &field);

	if (!at)
		return RF_KEEP;
	rf_channels(ctx, (__u32)(*at >> ((question & 15) * 4)) % 16 + 1);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
