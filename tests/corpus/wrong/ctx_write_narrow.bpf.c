/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Writes one byte of a decision field. */
#include "ringfence.h"

SEC("tuner")
int ctx_write_narrow(struct CollContext *ctx)
{
	*(volatile __u8 *)&ctx->decision_channels = 4;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
