/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Several programs in one object, one of them for no hook. */
#include "ringfence.h"

SEC("tuner/ring")
int ring(struct CollContext *ctx)
{
	rf_choose(ctx, RF_ALGO_RING, RF_PROTO_SIMPLE);
	return RF_SUBMIT;
}

SEC("tuner/tree")
int tree(struct CollContext *ctx)
{
	rf_choose(ctx, RF_ALGO_TREE, RF_PROTO_SIMPLE);
	return RF_SUBMIT;
}

SEC("elsewhere")
int other(struct CollContext *ctx)
{
	rf_choose(ctx, RF_ALGO_RING, RF_PROTO_LL);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
