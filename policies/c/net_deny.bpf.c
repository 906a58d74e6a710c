/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * net_deny: no connection on a device that stands in `net_denied`, a map that operators write; each refusal is counted there. The job
 * fails where it needs the connection.
 */
#include "ringfence.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);   /* device */
	__type(value, __u64); /* refusals so far */
} net_denied SEC(".maps");

SEC("net")
int net_deny(struct NetContext *ctx)
{
	__u32 dev = ctx->dev;
	__u64 *refused;

	/* Asked before each attempt, when there is no connection yet; told once when it stands. */
	if (ctx->op != RF_NET_CONNECT || ctx->conn || ctx->result)
		return RF_KEEP;
	refused = bpf_map_lookup_elem(&net_denied, &dev);
	if (!refused)
		return RF_KEEP;
	__sync_fetch_and_add(refused, 1);
	ctx->verdict = RF_NET_DENY;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
