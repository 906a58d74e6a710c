/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A key with a hole in it, which nobody fills. */
#include "ringfence.h"

struct key {
	__u32 func;
	/* four bytes of padding here */
	__u64 n_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct key);
	__type(value, __u32);
} by_size SEC(".maps");

SEC("tuner")
int key_padding(struct CollContext *ctx)
{
	struct key key;

	key.func = ctx->func;
	key.n_bytes = ctx->n_bytes;
	__u32 *channels = bpf_map_lookup_elem(&by_size, &key);
	if (channels)
		rf_channels(ctx, *channels);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
