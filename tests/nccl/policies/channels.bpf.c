/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* channels: asks for CHANNELS channels, whatever the communicator has. */
#include "ringfence.h"

SEC("tuner")
int channels(struct CollContext *ctx)
{
	rf_channels(ctx, CHANNELS);
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
