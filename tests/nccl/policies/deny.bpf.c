/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Denies every connection. */
#include "ringfence.h"

SEC("net")
int deny(struct NetContext *ctx)
{
	if (ctx->op != RF_NET_CONNECT || ctx->conn)
		return RF_KEEP;
	ctx->verdict = RF_NET_DENY;
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
