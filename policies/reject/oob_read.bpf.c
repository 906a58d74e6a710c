/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* oob_read: reads eight bytes past the end of the context. */
#include "ringfence.h"

SEC("tuner")
int oob_read(struct CollContext *ctx)
{
	const volatile __u64 *words = (const volatile __u64 *)ctx;

	rf_channels(ctx, (__u32)words[sizeof(*ctx) / sizeof(*words)]);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
