/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* In the form of NCCLbpf: a 72-byte context in, an action packed into r0 out. One channel more at each call. */
#include "ringfence.h"

struct packed_context {
	__u64 n_bytes, last_latency_ns, avg_latency_ns, rolling_p99_ns, call_count;
	__u32 coll_type, num_pipe_ops, reg_buff, n_ranks, n_nodes, current_channels, reserved, pad;
};

#define SET_ALGO (1ull << 32)
#define SET_PROTO (1ull << 33)
#define SET_CHANNELS (1ull << 34)

SEC("uprobe")
__u64 packed(struct packed_context *ctx)
{
	__u64 channels = (ctx->current_channels + 1) & 31;
	__u64 algo = ctx->n_bytes > 1 << 20 ? RF_ALGO_RING : RF_ALGO_TREE;
	return algo | RF_PROTO_SIMPLE << 8 | channels << 16 | SET_ALGO | SET_PROTO | SET_CHANNELS;
}
RF_LICENSE("Dual MIT/GPL");
