/* A table of pointers in data: needs relocations that a policy's memory has no meaning for. */
#include "defs.h"

static const char *names[2] = { "ring", "tree" };

SEC("tuner") u64 entry(u32 *ctx)
{
	return *names[ctx[0] & 1];
}

SEC("tuner") u64 plain(u32 *ctx)
{
	return 3;
}
