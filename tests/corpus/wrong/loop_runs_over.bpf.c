/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Walks one entry past the end of a table. */
#include "ringfence.h"

struct table {
	__u32 limits[12];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} steps SEC(".maps");

SEC("tuner")
int loop_runs_over(struct CollContext *ctx)
{
	__u32 zero = 0, best = 1, n = ctx->n_ranks;
	struct table *t = bpf_map_lookup_elem(&steps, &zero);

	if (!t)
		return RF_KEEP;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i <= 12; i++) {
		if (t->limits[i] < n)
			best = i;
	}
	rf_channels(ctx, best);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
