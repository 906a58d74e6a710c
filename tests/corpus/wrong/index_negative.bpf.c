/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Bounds a signed index from above only. */
#include "ringfence.h"

struct table {
	__u32 channels[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} by_domain SEC(".maps");

SEC("tuner")
int index_negative(struct CollContext *ctx)
{
	__u32 zero = 0;
	__s32 i = (__s32)ctx->n_nvl_domains - 1;
	struct table *t = bpf_map_lookup_elem(&by_domain, &zero);

	if (t && i < 16)
		rf_channels(ctx, t->channels[i]);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
