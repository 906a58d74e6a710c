/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Makes every constant of NCCL's cost model VALUE (ns or MB/s). */
#include "ringfence.h"

#ifndef VALUE
#define VALUE 0
#endif

SEC("tuner/init")
int flatten(struct TunerInitContext *ctx)
{
	for (int i = 0; i < 21; i++)
		ctx->base_latency_ns[i] = VALUE;
	for (int i = 0; i < 63; i++)
		ctx->hw_latency_ns[i] = VALUE;
	for (int i = 0; i < 12; i++) {
		ctx->ll_max_bw[i] = VALUE;
		ctx->ring_ll128_max_bw[i] = VALUE;
		ctx->tree_ll128_max_bw[i] = VALUE;
		ctx->tree_max_bw[i] = VALUE;
		ctx->nvls_tree_max_bw[i] = VALUE;
	}
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
