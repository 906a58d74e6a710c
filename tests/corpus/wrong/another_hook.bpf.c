/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Written for a hook of the kernel. */
#include "ringfence.h"

SEC("xdp")
int another_hook(struct CollContext *ctx)
{
	rf_channels(ctx, 4);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
