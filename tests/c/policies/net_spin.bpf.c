/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* On the hook net: wants to deny, but takes more fuel than the tests grant. */
#include "ringfence.h"

SEC("net")
int spin(struct NetContext *ctx)
{
	__u64 x = ctx->size;

	ctx->verdict = RF_NET_DENY;
	for (int i = 0; i < 4000; i++)
		x = x * 31 + i;
	return x == 7 ? RF_KEEP : RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
