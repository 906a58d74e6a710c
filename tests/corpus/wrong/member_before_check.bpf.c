/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Takes the address of a member first, and checks that for null. */
#include "ringfence.h"

RF_TELEMETRY_MAP;

SEC("tuner")
int member_before_check(struct CollContext *ctx)
{
	struct rf_telemetry_key key = { .func = ctx->func, .n_nodes = ctx->n_nodes };
	struct rf_telemetry *seen = bpf_map_lookup_elem(&telemetry_map, &key);
	__u32 *channels = &seen->recommended_channels;

	asm volatile("" : "+r"(channels)); /* keeps clang from checking seen instead */
	if (!channels)
		return RF_KEEP;
	rf_channels(ctx, *channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
