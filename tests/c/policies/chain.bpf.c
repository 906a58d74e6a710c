/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A link of a chain: adds ADD channels to the decision so far, and counts its calls; with ALGO, keeps the route away from it. */
#include "ringfence.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

#ifndef ADD
#define ADD 1
#endif

SEC("tuner")
int link(struct CollContext *ctx)
{
	__u32 zero = 0;
	__u32 algo = ctx->decision_algo, proto = ctx->decision_proto;
	__u64 *n = bpf_map_lookup_elem(&seen, &zero);
	if (n)
		*n = (__u64)algo << 32 | proto;
	rf_channels(ctx, ctx->decision_channels + ADD);
#ifdef AWAY_FROM
	if (algo == AWAY_FROM)
		rf_choose(ctx, RF_ALGO_RING, RF_PROTO_LL);
#endif
#ifdef SPIN
	/* More than the fuel that the test allows, less than the verifier's bound. */
	volatile __u32 sink = 0;
	for (__u32 i = 0; i < 100000; i++)
		sink += i;
#endif
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
