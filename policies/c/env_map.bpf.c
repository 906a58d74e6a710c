/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * env_map: answers NCCL's look-ups of its settings from the map `nccl_env`, which operators and other policies write: name to
 * value, both padded with NUL. A value that begins with NUL says "not set". The manifest's `[env]` says which names may be answered.
 */
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
int env_map(struct EnvContext *ctx)
{
	struct env_name name;
	struct env_value *value;

#pragma unroll
	for (int i = 0; i < 8; i++)
		name.word[i] = ctx->name[i];
	value = bpf_map_lookup_elem(&nccl_env, &name);
	if (!value)
		return RF_KEEP;
	if (!(value->word[0] & 0xff)) {
		ctx->action = RF_ENV_HIDE;
		return RF_SUBMIT;
	}
#pragma unroll
	for (int i = 0; i < 32; i++)
		ctx->value[i] = value->word[i];
	/* The answer ends at its first NUL. */
	ctx->value_len = 255;
	ctx->action = RF_ENV_ANSWER;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
