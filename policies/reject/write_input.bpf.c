/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* write_input: tells NCCL that the collective is smaller than it is, past the const. */
#include "ringfence.h"

SEC("tuner")
int write_input(struct CollContext *ctx)
{
	*(volatile __u64 *)&ctx->n_bytes = 4096;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
