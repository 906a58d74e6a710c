/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ring_simple_all: Ring/Simple at every size; the channels are NCCL's. */
#include "ringfence.h"

SEC("tuner")
int ring_simple_all(struct CollContext *ctx)
{
	rf_choose(ctx, RF_ALGO_RING, RF_PROTO_SIMPLE);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
