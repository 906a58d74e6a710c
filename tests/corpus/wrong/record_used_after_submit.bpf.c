/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Writes to a ring-buffer record that was submitted already. */
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
int record_used_after_submit(struct CollContext *ctx)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return RF_KEEP;
	e->n_bytes = ctx->n_bytes;
	e->func = ctx->func;
	bpf_ringbuf_submit(e, 0);
	e->channels = ctx->decision_channels;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
