/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * bad_channels: safe, and bad advice: one channel for everything. For showing that
 * telemetry finds a policy that a verifier cannot fault, and that a reload ends it.
 */
#include "ringfence.h"

SEC("tuner")
int bad_channels(struct CollContext *ctx)
{
	rf_channels(ctx, 1);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
