/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Keeps count by collective and size, takes its channels from a map, and tells each call through a ring buffer. */
#include "ringfence.h"

enum pick { PICK_TREE, PICK_RING };

struct place {
	__u32 func;
	__u32 class;
};

struct stats {
	__u64 calls;
	__u64 bytes;
	enum pick pick;
	__s32 delta;
	char label[8];
};

struct event {
	__u64 n_bytes;
	__u32 func;
	__u32 class;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct place);
	__type(value, struct stats);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} wanted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
	__type(value, struct event);
} events SEC(".maps");

SEC("tuner")
int observed(struct CollContext *ctx)
{
	__u64 bytes = ctx->n_bytes;
	struct place place = { ctx->func, bytes >= 1 << 20 };
	struct stats *stats = bpf_map_lookup_elem(&seen, &place);
	if (stats) {
		stats->calls++;
		stats->bytes += bytes;
	} else {
		struct stats fresh = { 1, bytes, PICK_RING, -1, "first" };
		bpf_map_update_elem(&seen, &place, &fresh, BPF_ANY);
	}
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (event) {
		event->n_bytes = bytes;
		event->func = place.func;
		event->class = place.class;
		bpf_ringbuf_submit(event, 0);
	}
	__u32 zero = 0;
	__u32 *channels = bpf_map_lookup_elem(&wanted, &zero);
	rf_choose(ctx, RF_ALGO_RING, RF_PROTO_SIMPLE);
	rf_channels(ctx, channels ? *channels : 0);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
