/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Must be refused: the value of a lookup is used without a null check. */
#include "ringfence.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

SEC("tuner")
int refused(struct CollContext *ctx)
{
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&calls, &zero);
	*n += 1; /* the fault */
	return RF_KEEP;
}
RF_LICENSE("Dual MIT/GPL");
