/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* noop: decides nothing. What is left is the price of asking. */
#include "ringfence.h"

SEC("tuner")
int noop(struct CollContext *ctx)
{
	(void)ctx;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
