/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Checks the index before it is changed, not after. */
#include "ringfence.h"

struct table {
	__u32 channels[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} by_level SEC(".maps");

static __attribute__((noinline)) __u32 entry(struct table *t, __u32 i)
{
	asm volatile("" : "+r"(i));
	if (!t)
		return 0;
	return t->channels[i + 4];
}

SEC("tuner")
int bound_in_another_variable(struct CollContext *ctx)
{
	__u32 zero = 0, level = ctx->n_nodes;
	struct table *t = bpf_map_lookup_elem(&by_level, &zero);

	if (level >= 16)
		return RF_KEEP;
	rf_channels(ctx, entry(t, level));
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
