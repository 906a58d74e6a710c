/* The same code for every CPU version: lines, a table, a call and a map. */
#include "defs.h"

struct {
	__uint(type, 2);
	__uint(max_entries, 4);
	__type(key, u32);
	__type(value, u64);
} seen SEC(".maps");

static const u32 weights[4] = { 10, 20, 30, 40 };

static noinline u64 weigh(u32 index)
{
	return weights[index & 3];
}

SEC("tuner") u64 entry(u32 *ctx)
{
	u32 key = ctx[0] & 3;
	u64 *slot = map_lookup(&seen, &key);

	if (!slot)
		return 0;
	if (ctx[1] > 100)
		*slot += weigh(ctx[2]);
	return *slot;
}
