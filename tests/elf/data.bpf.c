/* Global data: a constant table with a dynamic index, initialised and zeroed variables, static and global. */
#include "defs.h"

const volatile u32 limit = 77;
static const u16 table[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };
u64 counter = 0x1122334455667788;
static volatile u32 state = 5;
u64 zeroed[4];
static volatile u8 flag;

SEC("tuner") u64 entry(u32 *ctx)
{
	state += 1;
	flag = 1;
	zeroed[2] += limit;
	counter += 1;
	return table[ctx[0] & 7];
}

SEC("tuner") u64 only_bss(u32 *ctx)
{
	return zeroed[3];
}
