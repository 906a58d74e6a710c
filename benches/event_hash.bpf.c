/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* For the benchmark: every event looks up a hash by its type, and writes the value back. */
#include "ringfence.h"

struct value {
	__u64 count, last;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, struct value);
} events SEC(".maps");

SEC("profiler/event")
int event_hash(struct ProfilerEventContext *ctx)
{
	__u64 key = (__u64)ctx->event << 2 | ctx->action;
	struct value next = {}, *seen = bpf_map_lookup_elem(&events, &key);

	if (seen)
		next = *seen;
	next.count++;
	next.last = ctx->time_ns;
	bpf_map_update_elem(&events, &key, &next, BPF_ANY);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
