/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* On the hook env: writes NCCL_ALGO=Ring into `nccl_env`, and that NCCL_PROTO is not set. Decides nothing. */
#include "ringfence.h"

struct env_name {
	__u64 word[8];
};

struct env_value {
	__u64 word[32];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, struct env_name);
	__type(value, struct env_value);
} nccl_env SEC(".maps");

SEC("env")
int write(struct EnvContext *ctx)
{
	struct env_name algo = { { 0x474c415f4c43434eull, 'O' } };           /* NCCL_ALG, O */
	struct env_name proto = { { 0x4f52505f4c43434eull, 'T' | 'O' << 8 } }; /* NCCL_PRO, TO */
	struct env_value value = { { 0x676e6952 } };                         /* Ring */

	if (!ctx->name_len)
		return RF_KEEP;
	bpf_map_update_elem(&nccl_env, &algo, &value, BPF_ANY);
	value.word[0] = 0;
	bpf_map_update_elem(&nccl_env, &proto, &value, BPF_ANY);
	return RF_KEEP;
}

RF_LICENSE("Dual MIT/GPL");
