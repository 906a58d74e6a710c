/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls a helper while it holds a lock. */
#include "ringfence.h"

struct total {
	struct bpf_spin_lock lock;
	__u32 calls;
	__u64 n_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct total);
} totals SEC(".maps");

SEC("tuner")
int call_under_lock(struct CollContext *ctx)
{
	__u32 zero = 0;
	struct total *t = bpf_map_lookup_elem(&totals, &zero);

	if (!t)
		return RF_KEEP;
	bpf_spin_lock(&t->lock);
	t->calls += 1;
	t->n_bytes = bpf_ktime_get_ns();
	bpf_spin_unlock(&t->lock);
	rf_channels(ctx, 4);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
