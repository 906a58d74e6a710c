/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * net_count: calls, bytes, failures and latency of a wrapped net plugin, by connection and kind of call. A connection
 * has one peer, so this is per peer too; its totals stay after it is closed, until the map is full.
 */
#include "ringfence.h"

struct net_key {
	__u64 conn; /* 0: before there is one */
	__u32 op;
	__u32 dev;
};

struct net_count {
	__u64 calls;
	__u64 bytes;
	__u64 failed;
	__u64 latency_ns; /* of test_done: the sum */
	__u64 slowest_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct net_key);
	__type(value, struct net_count);
} net_count_map SEC(".maps");

SEC("net")
int net_count(struct NetContext *ctx)
{
	struct net_key key = { .conn = ctx->conn, .op = ctx->op, .dev = ctx->dev };
	__u64 latency = ctx->latency_ns;
	struct net_count *seen = bpf_map_lookup_elem(&net_count_map, &key);

	if (!seen) {
		struct net_count none = {};

		bpf_map_update_elem(&net_count_map, &key, &none, BPF_NOEXIST);
		seen = bpf_map_lookup_elem(&net_count_map, &key);
		if (!seen)
			return RF_KEEP; /* full */
	}
	__sync_fetch_and_add(&seen->calls, 1);
	if (ctx->result)
		__sync_fetch_and_add(&seen->failed, 1);
	else
		__sync_fetch_and_add(&seen->bytes, ctx->size);
	__sync_fetch_and_add(&seen->latency_ns, latency);
	if (latency > seen->slowest_ns)
		seen->slowest_ns = latency;
	return RF_KEEP;
}

RF_LICENSE("Dual MIT/GPL");
