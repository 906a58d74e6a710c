/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The good twin of oob_read: the same read, of a field. */
#include "ringfence.h"

SEC("tuner")
int oob_read_ok(struct CollContext *ctx)
{
	const volatile __u64 *words = (const volatile __u64 *)ctx;

	rf_channels(ctx, (__u32)words[__builtin_offsetof(struct CollContext, n_bytes) / sizeof(*words)]);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
