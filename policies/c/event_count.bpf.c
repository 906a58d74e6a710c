/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * event_count: how many events of each type NCCL's profiler interface tells of, by start, stop
 * and state: entry type * 3 + action of event_counts, where type is the number of the event's
 * bit (1 collective, 3 proxy operation, ...). Name what to count in the manifest:
 *
 *     [[policy]]
 *     file = "event_count.bpf.o"
 *     events = ["coll", "proxy_op", "proxy_step"]
 */
#include "ringfence.h"

#define TYPES 16
#define ACTIONS 3

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TYPES * ACTIONS);
	__type(key, __u32);
	__type(value, __u64);
} event_counts SEC(".maps");

SEC("profiler/event")
int event_count(struct ProfilerEventContext *ctx)
{
	__u32 event = ctx->event, action = ctx->action, type = 0, index;
	__u64 *count;

	/* The number of the highest bit, by halves. */
	if (event >> 8) {
		type += 8;
		event >>= 8;
	}
	if (event >> 4) {
		type += 4;
		event >>= 4;
	}
	if (event >> 2) {
		type += 2;
		event >>= 2;
	}
	type += event >> 1 & 1;
	index = type * ACTIONS + action;
	count = bpf_map_lookup_elem(&event_counts, &index);
	if (!count)
		return RF_KEEP;
	__sync_fetch_and_add(count, 1);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
