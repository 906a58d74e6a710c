/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A target of tail calls: chooses a route and CHANNELS channels from its own read-only data, adds SEEN to the count that it shares with
 * its caller. With AGAIN, adds one channel instead and goes on through that slot; with OWN_CALLS, asks for as many channels as it was
 * called, by its own data. */
#include "ringfence.h"

#ifndef HOOK
#define HOOK "tuner"
#endif
#ifndef ALGO
#define ALGO RF_ALGO_RING
#endif
#ifndef PROTO
#define PROTO RF_PROTO_SIMPLE
#endif
#ifndef CHANNELS
#define CHANNELS 1
#endif
#ifndef SEEN
#define SEEN 5
#endif
#ifndef SEEN_ENTRIES
#define SEEN_ENTRIES 1
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SEEN_ENTRIES);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

const volatile __u32 channels = CHANNELS;
__u32 calls;

static __attribute__((noinline)) __u32 wanted(void)
{
	return channels;
}

#ifdef AGAIN
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 8);
	__uint(key_size, 4);
	__uint(value_size, 4);
} jump_table SEC(".maps");
#endif

SEC(HOOK)
int decide(struct CollContext *ctx)
{
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&seen, &zero);

	if (n)
		*n += SEEN;
#ifdef AGAIN
	rf_channels(ctx, ctx->decision_channels + wanted());
	bpf_tail_call(ctx, &jump_table, AGAIN);
#elif defined(OWN_CALLS)
	calls += wanted();
	rf_channels(ctx, calls);
#else
	rf_choose(ctx, ALGO, PROTO);
	rf_channels(ctx, wanted());
#endif
	return RF_SUBMIT;
}
RF_LICENSE("Dual MIT/GPL");
