/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Bounds the index by the number of entries, one too many. */
#include "ringfence.h"

struct table {
	__u64 bytes[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} seen_bytes SEC(".maps");

SEC("tuner")
int index_off_by_one(struct CollContext *ctx)
{
	__u32 zero = 0, nodes = ctx->n_nodes;
	struct table *t = bpf_map_lookup_elem(&seen_bytes, &zero);

	if (!t || nodes > 8)
		return RF_KEEP;
	t->bytes[nodes] += ctx->n_bytes;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
