/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counts its calls in a map and answers with the count, up to 60, as channels. */
#include "ringfence.h"

#ifndef ENTRIES
#define ENTRIES 1
#endif
#ifndef ALGO
#define ALGO RF_ALGO_RING
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENTRIES);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

SEC("tuner")
int count(struct CollContext *ctx)
{
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&calls, &zero);
	if (!n)
		return RF_KEEP;
	__u64 now = *n + 1;
	*n = now;
	rf_choose(ctx, ALGO, RF_PROTO_SIMPLE);
	rf_channels(ctx, now < 60 ? (__u32)now : 60);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
