/* CO-RE: one program asks for relocation against kernel types, the other does not. */
#include "defs.h"

struct task {
	u32 pid;
	u64 started;
} __attribute__((preserve_access_index));

SEC("tuner") u64 plain(u32 *ctx)
{
	return ctx[0];
}

SEC("tuner") u64 relocated(struct task *task)
{
	return task->started + 1;
}
