/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Looks a number of the context up in a table without a bound. */
#include "ringfence.h"

struct table {
	__u32 channels[32];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} by_nodes SEC(".maps");

SEC("tuner")
int index_unbounded(struct CollContext *ctx)
{
	__u32 zero = 0, nodes = ctx->n_nodes;
	struct table *t = bpf_map_lookup_elem(&by_nodes, &zero);

	if (!t)
		return RF_KEEP;
	rf_channels(ctx, t->channels[nodes]);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
