/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * nvlink_ring_mid: Ring/Simple from 2 to 192 MiB, where it beats NVLS on eight NVLinked
 * GPUs; everywhere else NCCL's own choice.
 */
#include "ringfence.h"

SEC("tuner")
int nvlink_ring_mid(struct CollContext *ctx)
{
	__u64 bytes = ctx->n_bytes;

	if (bytes >= 2ull << 20 && bytes <= 192ull << 20)
		rf_choose(ctx, RF_ALGO_RING, RF_PROTO_SIMPLE);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
