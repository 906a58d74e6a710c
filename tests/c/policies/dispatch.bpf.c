/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Leaves the decision to the policy in a slot of `jump_table`, by size; where the slot is empty, asks for as many channels as `seen` has
 * counted. The manifest fills the slots; with OWN, the object itself fills slot 3. */
#include "ringfence.h"

#ifndef SLOTS
#define SLOTS 8
#endif

int middle(struct CollContext *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(key_size, 4);
#ifdef OWN
	__array(values, int(struct CollContext *));
} jump_table SEC(".maps") = {
	.values = {[3] = &middle},
};
#else
	__uint(value_size, 4);
} jump_table SEC(".maps");
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

const volatile __u32 limits[2] = {64 << 10, 1 << 20};

SEC("tuner")
int dispatch(struct CollContext *ctx)
{
	__u32 zero = 0, slot = ctx->n_bytes < limits[0] ? 0 : ctx->n_bytes < limits[1] ? 3 : 7;
	__u64 *n = bpf_map_lookup_elem(&seen, &zero);

	if (n)
		*n += 1;
	bpf_tail_call(ctx, &jump_table, slot);
	rf_channels(ctx, n ? *n : 0);
	return RF_SUBMIT;
}

#ifdef OWN
SEC("tuner/middle")
int middle(struct CollContext *ctx)
{
	rf_channels(ctx, 33);
	return RF_SUBMIT;
}
#endif
RF_LICENSE("Dual MIT/GPL");
