/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Takes a value for larger than the map says that it is. */
#include "ringfence.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} counters SEC(".maps");

SEC("tuner")
int value_too_small(struct CollContext *ctx)
{
	__u32 slot = 1;
	__u64 *count = bpf_map_lookup_elem(&counters, &slot);

	if (!count)
		return RF_KEEP;
	*count += ctx->n_bytes;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
