/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls a helper of the kernel that hooks do not offer. */
#include "ringfence.h"

static __u64 (*const bpf_get_current_pid_tgid)(void) RF_HELPER(14);

SEC("tuner")
int pid(struct CollContext *ctx)
{
	rf_channels(ctx, bpf_get_current_pid_tgid() & 7);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
