/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Writes to NCCL's costs, as a native tuner does: the verifier must refuse it. */
#include "ringfence.h"

SEC("tuner")
int spoil(struct CollContext *ctx)
{
	*(volatile __u32 *)&ctx->cost_ns[RF_ALGO_RING * RF_PROTO_COUNT + RF_PROTO_LL] = 0xbf800000; /* -1.0f */
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
