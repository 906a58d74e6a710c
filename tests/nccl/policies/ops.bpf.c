/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program for each kind of call of a net plugin, that submits for its own kind: our counters of submissions are then counts of calls. */
#include "ringfence.h"

#define PROGRAM(name, kind) \
	SEC("net/" #name) \
	int name(struct NetContext *ctx) \
	{ \
		return ctx->op == kind && !ctx->result ? RF_SUBMIT : RF_KEEP; \
	}

PROGRAM(init, RF_NET_INIT)
PROGRAM(listen, RF_NET_LISTEN)
PROGRAM(accept, RF_NET_ACCEPT)
PROGRAM(reg_mr, RF_NET_REG_MR)
PROGRAM(dereg_mr, RF_NET_DEREG_MR)
PROGRAM(irecv, RF_NET_IRECV)
PROGRAM(close_send, RF_NET_CLOSE_SEND)
PROGRAM(close_recv, RF_NET_CLOSE_RECV)
PROGRAM(close_listen, RF_NET_CLOSE_LISTEN)

/* Of a connection that stands, once. */
SEC("net/connected")
int connected(struct NetContext *ctx)
{
	return ctx->op == RF_NET_CONNECT && ctx->conn && !ctx->result ? RF_SUBMIT : RF_KEEP;
}
RF_LICENSE("Dual MIT/GPL");
