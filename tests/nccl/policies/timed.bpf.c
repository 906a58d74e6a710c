/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Submits for a finished AllReduce that is as two ranks on the fake GPU must have it: timed by the kernels of all its channels, of which
 * each takes a microsecond. NCCL's thread may read a later launch's end, never an earlier one's.
 */
#include "ringfence.h"

SEC("profiler")
int timed(struct ProfilerContext *ctx)
{
	__u32 algo = ctx->algo, proto = ctx->proto, channels = ctx->channels;

	if (ctx->func != RF_FUNC_ALL_REDUCE || algo >= RF_ALGO_COUNT || proto >= RF_PROTO_COUNT)
		return RF_KEEP;
	if (ctx->timing != RF_TIMING_GPU || ctx->flags || ctx->duration_ns < 1000)
		return RF_KEEP;
	if (!channels || channels > 64 || ctx->datatype_bytes != 4 || ctx->n_ranks != 2 || ctx->rank > 1)
		return RF_KEEP;
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
