/* Symbols that the object does not define: a function and a variable. */
#include "defs.h"

extern u64 missing_function(u64 x);
extern const u32 MISSING_SETTING __attribute__((section(".kconfig")));

SEC("tuner") u64 calls(u32 *ctx)
{
	return missing_function(ctx[0]);
}

SEC("tuner") u64 reads(u32 *ctx)
{
	return MISSING_SETTING;
}

/* In a section that is not loaded. */
SEC(".strange") u64 odd = 7;

SEC("tuner") u64 strays(u32 *ctx)
{
	return odd++;
}
