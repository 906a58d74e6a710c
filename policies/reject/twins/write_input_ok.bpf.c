/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The good twin of write_input: it writes an output. */
#include "ringfence.h"

SEC("tuner")
int write_input_ok(struct CollContext *ctx)
{
	ctx->decision_channels = 4;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
