/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Asks for one pair and a number of channels, always. */
#include "ringfence.h"

#ifndef ALGO
#define ALGO RF_ALGO_RING
#endif
#ifndef PROTO
#define PROTO RF_PROTO_SIMPLE
#endif
#ifndef CHANNELS
#define CHANNELS 0
#endif

SEC("tuner")
int choose(struct CollContext *ctx)
{
	rf_choose(ctx, ALGO, PROTO);
	rf_channels(ctx, CHANNELS);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
