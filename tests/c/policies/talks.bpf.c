/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Says something at each call, and tells it through a ring buffer. */
#include "ringfence.h"

struct said {
	__u64 n_bytes;
	__u32 func;
	__u32 length;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
	__type(value, struct said);
} events SEC(".maps");

SEC("tuner")
int talks(struct CollContext *ctx)
{
	long length = bpf_printk("%llu bytes for function %d\n", ctx->n_bytes, ctx->func);
	/* What it got back shows as channels: the line's length, or 1 for a format that is refused. */
	long refused = bpf_printk("%f", 1);
	struct said said = { ctx->n_bytes, ctx->func, (__u32)length };

	bpf_ringbuf_output(&events, &said, sizeof(said), 0);
	rf_choose(ctx, RF_ALGO_RING, RF_PROTO_SIMPLE);
	rf_channels(ctx, refused == -22 ? (__u32)length : 1);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
