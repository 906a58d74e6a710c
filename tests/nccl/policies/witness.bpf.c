/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * witness: counts what NCCL asks the tuner, and decides nothing. Read with `ringfence map dump witness`.
 */
#include "ringfence.h"

struct question {
	__u64 n_bytes;
	__u32 func;
	__u32 num_pipe_ops;
	__u32 reg_buff;
	__u32 n_ranks;
	__u32 n_nodes;
	__u32 _pad;
};

struct answer {
	__u64 calls;
	/* RF_PROTO_COUNT * algorithm + protocol, by bit: what NCCL offered, in any of the calls. */
	__u64 offered;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct question);
	__type(value, struct answer);
} witness SEC(".maps");

SEC("tuner")
int witness_tuner(struct CollContext *ctx)
{
	struct question key = {
		.n_bytes = ctx->n_bytes,
		.func = ctx->func,
		.num_pipe_ops = ctx->num_pipe_ops,
		.reg_buff = ctx->reg_buff,
		.n_ranks = ctx->n_ranks,
		.n_nodes = ctx->n_nodes,
	};
	struct answer none = {};
	struct answer *seen = bpf_map_lookup_elem(&witness, &key);

	if (!seen) {
		bpf_map_update_elem(&witness, &key, &none, BPF_NOEXIST);
		seen = bpf_map_lookup_elem(&witness, &key);
		if (!seen)
			return RF_KEEP;
	}
	__sync_fetch_and_add(&seen->calls, 1);
	__sync_fetch_and_or(&seen->offered, (__u64)ctx->available);
	return RF_KEEP;
}

RF_LICENSE("Dual MIT/GPL");
