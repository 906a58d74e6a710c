/*
 * Hook sdr/reliability: made by `ringfence schema header` from its schema; do not edit.
 */
#ifndef RINGFENCE_HOOK_SDR_RELIABILITY_H
#define RINGFENCE_HOOK_SDR_RELIABILITY_H

#ifdef __bpf__
/* A policy: SEC("sdr/reliability"), and `int f(struct SdrReliabilityContext *ctx)`. */
#include "ringfence.h"
#define RF_READ const volatile
#define RF_DECIDE volatile
#else
/* The library that asks. */
#include <linux/types.h>
#define RF_READ
#define RF_DECIDE
#endif

#define SDR_RELIABILITY_HOOK "sdr/reliability"
#define SDR_RELIABILITY_SCHEME_SELECTIVE_REPEAT 0u
#define SDR_RELIABILITY_SCHEME_ERASURE_CODING 1u

/* Selective repeat or erasure coding for one message. */
struct SdrReliabilityContext {
	/* Size of the message. [bytes] [rank-local] */
	RF_READ __u64 message_bytes;
	/* Round-trip time of the path: some 10 us a kilometre of fibre. [ns] [rank-local] */
	RF_READ __u64 rtt_ns;
	/* Bandwidth of the path. [Mbit/s] [rank-local] */
	RF_READ __u32 mbit_per_s;
	/* Drop rate, as the sender measured it. [packets lost of 10^9] [rank-local] */
	RF_READ __u32 drop_ppb;
	/* Payload of a packet. [bytes] [rank-local] */
	RF_READ __u32 packet_bytes;
	/* How losses are mended. Decided. [rank-local] */
	RF_DECIDE __u32 scheme;
	/*
	 * With erasure coding, how many parity packets are sent for each 32 of data. [packets for
	 * each 32 of data] Decided: 1 to 16. [rank-local]
	 */
	RF_DECIDE __u32 parity;
	__u8 _pad0[4]; /* not accessible */
} __attribute__((aligned(8)));

#ifdef __cplusplus
#define RF_ASSERT(what) static_assert(what, "the layout of the schema")
#else
#define RF_ASSERT(what) _Static_assert(what, "the layout of the schema")
#endif
RF_ASSERT(sizeof(struct SdrReliabilityContext) == 40);
RF_ASSERT(__builtin_offsetof(struct SdrReliabilityContext, message_bytes) == 0);
RF_ASSERT(__builtin_offsetof(struct SdrReliabilityContext, rtt_ns) == 8);
RF_ASSERT(__builtin_offsetof(struct SdrReliabilityContext, mbit_per_s) == 16);
RF_ASSERT(__builtin_offsetof(struct SdrReliabilityContext, drop_ppb) == 20);
RF_ASSERT(__builtin_offsetof(struct SdrReliabilityContext, packet_bytes) == 24);
RF_ASSERT(__builtin_offsetof(struct SdrReliabilityContext, scheme) == 28);
RF_ASSERT(__builtin_offsetof(struct SdrReliabilityContext, parity) == 32);
#undef RF_ASSERT

#undef RF_READ
#undef RF_DECIDE
#endif
