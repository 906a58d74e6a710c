/* Maps of every kind that may be declared, and spin locks in their values. */
#include "defs.h"

struct bpf_spin_lock {
	u32 val;
};
struct plain {
	u32 count;
	struct bpf_spin_lock lock;
	u64 sum;
};
struct nested {
	u64 first;
	struct {
		u64 second[2];
		struct plain inner;
	} part;
};
struct pair {
	struct plain a[1], b;
};
union either {
	struct bpf_spin_lock lock;
	u32 word;
};
struct in_union {
	union either e;
	u64 rest;
};

#define __array(name, val) __typeof__(val) *name[]

static long (*tail_call)(void *ctx, void *map, u32 index) = (void *)12;
u64 first_target(void *ctx);
u64 second_target(void *ctx);

#define MAP(name, kind, entries, value_type)                                                       \
	struct {                                                                                       \
		__uint(type, kind);                                                                        \
		__uint(max_entries, entries);                                                              \
		__type(key, u32);                                                                          \
		__type(value, value_type);                                                                 \
	} name SEC(".maps")

MAP(locked, 2, 4, struct plain);
MAP(deep, 1, 4, struct nested);
MAP(free_union, 2, 4, struct in_union);
MAP(two_locks, 2, 4, struct pair);
MAP(lru_locked, 9, 4, struct plain);
MAP(lru, 9, 4, u64);
MAP(percpu, 6, 4, u64);
MAP(percpu_h, 5, 4, u64);

struct {
	__uint(type, 27);
	__uint(max_entries, 5000);
} ring SEC(".maps");

struct {
	__uint(type, 27);
	__uint(max_entries, 4096);
	__type(value, u64);
} valued SEC(".maps");

struct {
	__uint(type, 3);
	__uint(max_entries, 8);
	__type(key, u32);
	__type(value, u32);
} jumps SEC(".maps");

struct {
	__uint(type, 3);
	__uint(max_entries, 8);
	__type(key, u32);
	__array(values, u64(void *));
} table SEC(".maps") = {
	.values = { [2] = (void *)&first_target, [5] = (void *)&second_target },
};

SEC("tuner/first") u64 first_target(void *ctx)
{
	return 1;
}

SEC("tuner") u64 second_target(void *ctx)
{
	u32 index = 2;
	return map_lookup(&lru, &index) != 0;
}

SEC("tuner") u64 goes_on(void *ctx)
{
	tail_call(ctx, &table, 5);
	return 0;
}

SEC("control") u64 other_hook(void *ctx)
{
	tail_call(ctx, &table, 5);
	return 0;
}

struct bpf_spin_lock guard SEC(".data.guard");
u64 guarded SEC(".data.guard");

#define USES(map)                                                                                  \
	SEC("tuner") u64 uses_##map(void *ctx)                                                         \
	{                                                                                              \
		u64 index = 0;                                                                             \
		return map_lookup(&map, &index) != 0;                                                      \
	}
USES(locked)
USES(deep)
USES(free_union)
USES(two_locks)
USES(lru_locked)
USES(lru)
USES(percpu)
USES(percpu_h)
USES(ring)
USES(valued)
USES(jumps)
USES(guard)

char _license[] SEC("license") = "GPL";
