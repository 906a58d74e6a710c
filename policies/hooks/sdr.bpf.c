/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * sdr: erasure coding where parity costs less time than the retransmissions that
 * selective repeat is likely to wait for.
 *
 * With selective repeat, a packet that is lost is sent again after a timeout, so only
 * losses in the last timeout of a message delay it: earlier ones are mended while the
 * rest is still being sent. Expected losses there, times what a loss costs, stand
 * against the time that parity takes. How much parity a drop rate needs is in the map
 * `sdr_parity`, by decades of the drop rate; an entry that is 0 has the default below.
 */
#include "sdr.h"

#define CLASSES 5
/* Data packets for each block of parity. */
#define DATA 32
/* Timeout of selective repeat, in halves of the round-trip time. */
#define TIMEOUT_HALVES 3
#define BILLION 1000000000ull

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLASSES);
	__type(key, __u32);
	__type(value, __u32);
} sdr_parity SEC(".maps");

/* Below 10^-5, 10^-4, 10^-3, 10^-2, and the rest. */
static __always_inline __u32 class_of(__u32 ppb)
{
	return ppb < 10000 ? 0 : ppb < 100000 ? 1 : ppb < 1000000 ? 2 : ppb < 10000000 ? 3 : 4;
}

static __always_inline __u32 parity_of(__u32 class)
{
	__u32 *set = bpf_map_lookup_elem(&sdr_parity, &class);

	if (set && *set)
		return *set;
	return class == 0 ? 1 : class == 1 ? 1 : class == 2 ? 2 : class == 3 ? 4 : 8;
}

/* What selective repeat waits for, in ns: a timeout for each round of retransmissions
 * that is likely, and a part of one for a round that is less so. */
static __always_inline __u64 wait_of(__u64 packets, __u64 ppb, __u64 timeout)
{
	/* Expected losses, in 1/1000. */
	__u64 losses = packets * ppb / (BILLION / 1000);
	__u64 wait = 0;

	for (int round = 0; round < 8; round++) {
		if (losses < 1000)
			return wait + timeout * losses / 2000;
		wait += timeout;
		losses = losses * ppb / BILLION;
	}
	return wait;
}

SEC("sdr/reliability")
int sdr(struct SdrReliabilityContext *ctx)
{
	__u64 bytes = ctx->message_bytes, mbits = ctx->mbit_per_s, packet = ctx->packet_bytes;
	__u64 rtt = ctx->rtt_ns;
	__u32 ppb = ctx->drop_ppb;

	/* Beyond these (64 GiB, a minute, 10 %) products would not fit, and nothing helps. */
	if (bytes == 0 || bytes >> 36 || mbits == 0 || packet < 256 || rtt > 60 * BILLION ||
	    ppb > BILLION / 10)
		return RF_KEEP;

	__u32 parity = parity_of(class_of(ppb));
	__u64 sending = bytes * 8000 / mbits;
	__u64 timeout = rtt * TIMEOUT_HALVES / 2;
	__u64 tail = timeout < sending ? bytes * (timeout >> 10) / ((sending >> 10) + 1) : bytes;
	__u64 wait = wait_of(tail / packet + 1, ppb, timeout);

	ctx->scheme = wait > sending * parity / DATA ? SDR_RELIABILITY_SCHEME_ERASURE_CODING
						     : SDR_RELIABILITY_SCHEME_SELECTIVE_REPEAT;
	ctx->parity = parity;
	return RF_SUBMIT;
}

RF_LICENSE("Dual MIT/GPL");
