/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Goes over all chunks of a collective, however large it is. */
#include "ringfence.h"

SEC("tuner")
int loop_without_bound(struct CollContext *ctx)
{
	__u64 left = ctx->n_bytes;
	__u32 weight = 0;

	while (left > 4096) {
		left -= 4096;
		weight ^= (__u32)left;
		asm volatile("" : "+r"(left), "+r"(weight));
	}
	rf_channels(ctx, weight & 31);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
