/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Asks for everything that a decision can say, the senseless included, one combination for each size: 4 * (k + 1) bytes is combination k,
 * of 11 algorithms, 5 protocols and 14 numbers of channels, and of 16 chunk sizes. The size is the same on all ranks, so they agree.
 */
#include "ringfence.h"

#define COMBINATIONS (11 * 5 * 14)

static __always_inline __u32 algorithm(__u32 k)
{
	switch (k) {
	case 8: return 0x7fffffff;
	case 9: return 0x80000000;
	case 10: return RF_UNSET;
	default: return k; /* 0 to 7: one more than there are */
	}
}

static __always_inline __u32 protocol(__u32 k)
{
	return k < 4 ? k : RF_UNSET;
}

static __always_inline __u32 channels(__u32 k)
{
	switch (k) {
	case 0: return 0;
	case 1: return 1;
	case 2: return 2;
	case 3: return 3;
	case 4: return 5;
	case 5: return 64;
	case 6: return 65;
	case 7: return 127;
	case 8: return 128;
	case 9: return 256;
	case 10: return 1000;
	case 11: return 0x7fffffff;
	case 12: return 0x80000000;
	default: return 0xffffffff;
	}
}

SEC("tuner")
int decide(struct CollContext *ctx)
{
	__u32 k = (__u32)(ctx->n_bytes / 4 - 1) % COMBINATIONS;

	rf_choose(ctx, algorithm(k % 11), protocol(k / 11 % 5));
	rf_channels(ctx, channels(k / 55));
	return RF_SUBMIT;
}

/* 0, the grains and their neighbours, and sizes beyond 32 bits and 63. */
static __always_inline __u64 chunk(__u32 k)
{
	switch (k) {
	case 0: return 0;
	case 1: return 1;
	case 2: return 15;
	case 3: return 16;
	case 4: return 17;
	case 5: return 511;
	case 6: return 512;
	case 7: return 1919;
	case 8: return 1920;
	case 9: return 1 << 20;
	case 10: return 0x7fffffff;
	case 11: return 0x80000000;
	case 12: return 0xffffffff;
	case 13: return 0x100000000;
	case 14: return 0x8000000000000000;
	default: return ~0ull;
	}
}

SEC("tuner/chunk")
int chunks(struct ChunkContext *ctx)
{
	ctx->chunk_size = chunk((__u32)(ctx->n_bytes / 4) & 15);
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
