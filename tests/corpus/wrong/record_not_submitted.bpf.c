/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Leaves with a ring-buffer record that is neither submitted nor discarded. */
#include "ringfence.h"

struct event {
	__u64 n_bytes;
	__u32 func;
	__u32 channels;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

SEC("tuner")
int record_not_submitted(struct CollContext *ctx)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return RF_KEEP;
	e->n_bytes = ctx->n_bytes;
	e->func = ctx->func;
	e->channels = ctx->decision_channels;
	if (ctx->n_ranks == 1)
		return RF_KEEP;
	bpf_ringbuf_submit(e, 0);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
