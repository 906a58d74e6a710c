/* Calls: static and global functions in .text, between sections, within a program's section, and by address. */
#include "defs.h"

static noinline u64 leaf(u64 x)
{
	return x * 3 + 1;
}

noinline u64 shared(u64 x)
{
	return leaf(x) + leaf(x + 1);
}

noinline u64 unused(u64 x)
{
	return x * x;
}

SEC("tuner") noinline u64 first(u32 *ctx)
{
	return shared(ctx[0]);
}

/* In the same section as two programs, and static: called without a relocation. */
static SEC("tuner") noinline u64 beside(u64 x)
{
	return leaf(x) ^ 5;
}

SEC("tuner") u64 second(u32 *ctx)
{
	return beside(ctx[0]) + shared(ctx[1]);
}

/* A program that calls a program of another section. */
SEC("profiler") u64 third(u32 *ctx)
{
	return first(ctx) + 1;
}

static long (*loop)(u32 count, void *callback, void *ctx, u64 flags) = (void *)181;

static long step(u32 index, u64 *sum)
{
	*sum += index;
	return 0;
}

SEC("control") u64 callback(u32 *ctx)
{
	u64 sum = 0;
	loop(10, step, &sum, 0);
	return sum;
}
