/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Answers every name that it is asked about with "1". */
#include "ringfence.h"

SEC("env")
int one(struct EnvContext *ctx)
{
	ctx->action = RF_ENV_ANSWER;
	ctx->value_len = 1;
	ctx->value[0] = '1';
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
