/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls a helper of the kernel that hooks do not offer. */
#include "ringfence.h"

static long (*const bpf_trace_printk)(const char *fmt, __u32 size, ...) RF_HELPER(6);

SEC("tuner")
int printk(struct CollContext *ctx)
{
	char fmt[] = "bytes %d";

	bpf_trace_printk(fmt, sizeof(fmt), ctx->n_bytes);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
