/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * On the hook env: one answer for every name. ACTION and LEN as given, WORD the first eight bytes of the value; with COUNT
 * each answer is another one; with LATER only names for which something stands are answered.
 */
#include "ringfence.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

SEC("env")
int fixed(struct EnvContext *ctx)
{
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&calls, &zero);

#ifdef LATER
	if (ctx->action != RF_ENV_ANSWER)
		return RF_KEEP;
#endif
	ctx->action = ACTION;
	ctx->value_len = LEN;
#ifdef COUNT
	if (n) {
		__u64 c = __sync_fetch_and_add(n, 1);

		/* Four digits of base 16, from '0' on. */
		ctx->value[0] = 0x3030303030303030ull + (c & 15) + (c << 4 & 0xf00) + (c << 8 & 0xf0000) + (c << 12 & 0xf000000);
	}
#else
	(void)n;
	ctx->value[0] = WORD;
#endif
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
