/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A link of a chain: adds ADD channels to the decision so far. With ALGO and PROTO it decides the route too; with SPIN it takes more
 * fuel than the scenario grants.
 */
#include "ringfence.h"

SEC("tuner")
int link(struct CollContext *ctx)
{
	rf_channels(ctx, ctx->decision_channels + ADD);
#ifdef ALGO
	rf_choose(ctx, ALGO, PROTO);
#endif
#ifdef SPIN
	volatile __u32 sink = 0;
	for (__u32 i = 0; i < 100000; i++)
		sink += i;
#endif
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
