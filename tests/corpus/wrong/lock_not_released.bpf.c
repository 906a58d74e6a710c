/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Leaves with a lock held on one of the ways. */
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
int lock_not_released(struct CollContext *ctx)
{
	__u32 zero = 0;
	__u64 n_bytes = ctx->n_bytes;
	struct total *t = bpf_map_lookup_elem(&totals, &zero);

	if (!t)
		return RF_KEEP;
	bpf_spin_lock(&t->lock);
	if (t->calls == 1000)
		return RF_KEEP;
	t->calls += 1;
	t->n_bytes += n_bytes;
	bpf_spin_unlock(&t->lock);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
