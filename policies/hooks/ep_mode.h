/*
 * Hook ep/mode: made by `ringfence schema header` from its schema; do not edit.
 */
#ifndef RINGFENCE_HOOK_EP_MODE_H
#define RINGFENCE_HOOK_EP_MODE_H

#ifdef __bpf__
/* A policy: SEC("ep/mode"), and `int f(struct EpModeContext *ctx)`. */
#include "ringfence.h"
#define RF_READ const volatile
#define RF_DECIDE volatile
#else
/* The library that asks. */
#include <linux/types.h>
#define RF_READ
#define RF_DECIDE
#endif

#define EP_MODE_HOOK "ep/mode"
#define EP_MODE_MODE_LOW_LATENCY 0u
#define EP_MODE_MODE_HIGH_THROUGHPUT 1u

/* Low-latency or high-throughput kernels for dispatch and combine of one step. */
struct EpModeContext {
	/*
	 * Most tokens that any rank dispatches in this step: the group's
	 * max_dispatch_tokens_per_rank, or less if agreed. [tokens]
	 */
	RF_READ __u32 max_tokens;
	/* Ranks of the group. [ranks] */
	RF_READ __u32 n_ranks;
	/* Nodes of the group. [nodes] */
	RF_READ __u32 n_nodes;
	/* Experts for each token. [experts] */
	RF_READ __u32 top_k;
	/* Bytes of a token: the hidden size by the size of an element. [bytes] */
	RF_READ __u32 token_bytes;
	/* The mode, numbered as ncclEpAlgorithm_t. Decided. */
	RF_DECIDE __u32 mode;
	__u8 _pad0[8]; /* not accessible */
} __attribute__((aligned(8)));

#ifdef __cplusplus
#define RF_ASSERT(what) static_assert(what, "the layout of the schema")
#else
#define RF_ASSERT(what) _Static_assert(what, "the layout of the schema")
#endif
RF_ASSERT(sizeof(struct EpModeContext) == 32);
RF_ASSERT(__builtin_offsetof(struct EpModeContext, max_tokens) == 0);
RF_ASSERT(__builtin_offsetof(struct EpModeContext, n_ranks) == 4);
RF_ASSERT(__builtin_offsetof(struct EpModeContext, n_nodes) == 8);
RF_ASSERT(__builtin_offsetof(struct EpModeContext, top_k) == 12);
RF_ASSERT(__builtin_offsetof(struct EpModeContext, token_bytes) == 16);
RF_ASSERT(__builtin_offsetof(struct EpModeContext, mode) == 20);
#undef RF_ASSERT

#undef RF_READ
#undef RF_DECIDE
#endif
