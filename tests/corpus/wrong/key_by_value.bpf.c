/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Passes the key itself where its address is wanted. */
#include "ringfence.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 5);
	__type(key, __u32);
	__type(value, __u32);
} per_func SEC(".maps");

SEC("tuner")
int key_by_value(struct CollContext *ctx)
{
	__u32 *channels = bpf_map_lookup_elem(&per_func, (void *)(long)ctx->func);

	if (channels)
		rf_channels(ctx, *channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
