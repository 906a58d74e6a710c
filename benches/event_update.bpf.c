/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* For the benchmark: every event is written to a hash, by its type. */
#include "ringfence.h"

struct value {
	__u64 handle, last;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, struct value);
} events SEC(".maps");

SEC("profiler/event")
int event_update(struct ProfilerEventContext *ctx)
{
	__u64 key = (__u64)ctx->event << 2 | ctx->action;
	struct value next = { ctx->handle, ctx->time_ns };

	bpf_map_update_elem(&events, &key, &next, BPF_ANY);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
