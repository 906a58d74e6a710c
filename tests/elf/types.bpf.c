/* Keys and values of many types, for their descriptions. */
#include "defs.h"

typedef unsigned short u16_t;
typedef signed int s32;
struct bpf_spin_lock {
	u32 val;
};
enum colour { RED, GREEN = 7, BLUE = -3 };
enum big : unsigned long long { SMALL = 1, HUGE_ONE = 1ULL << 40 };
typedef struct {
	u64 lo, hi;
} id128;
struct key {
	u32 func;
	u16_t nodes;
	u8 flags : 3, mode : 2;
	char tag;
};
struct value {
	struct bpf_spin_lock lock;
	s32 delta;
	id128 id;
	char name[16];
	u32 counts[2][3];
	enum colour colour;
	_Bool seen;
	u8 rest[3];
	union {
		u64 whole;
		u32 half;
	};
	enum big big;
	float share;
	u32 wide : 20, narrow : 12;
	void *opaque;
	struct {
		s32 inner;
		u32 beside;
	} nested;
};

struct {
	__uint(type, 1);
	__uint(max_entries, 4);
	__type(key, struct key);
	__type(value, struct value);
} rich SEC(".maps");

struct {
	__uint(type, 2);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 24);
} plain SEC(".maps");

struct d1 { u8 x; };
struct d2 { struct d1 d; };
struct d3 { struct d2 d; };
struct d4 { struct d3 d; };
struct d5 { struct d4 d; };
struct d6 { struct d5 d; };
struct d7 { struct d6 d; };
struct d8 { struct d7 d; };
struct d9 { struct d8 d; };
struct d10 { struct d9 d; };
struct {
	__uint(type, 2);
	__uint(max_entries, 4);
	__type(key, u32);
	__type(value, struct d10);
} deep SEC(".maps");

struct {
	__uint(type, 2);
	__uint(max_entries, 4);
	__uint(map_flags, 1 << 0 | 1 << 8);
	__type(key, u32);
	__type(value, u64);
} flagged SEC(".maps");

u64 counter = 5;
s32 level = -1;
static volatile u32 hidden = 3;
/* Not the first of its section: its offset is the symbol's. */
u64 before SEC(".data.late") = 1;
struct bpf_spin_lock guard SEC(".data.late");

SEC("tuner") u64 entry(void *ctx)
{
	u64 key = 0;
	hidden += 1;
	counter += level;
	before += guard.val;
	return (map_lookup(&rich, &key) != 0) + (map_lookup(&plain, &key) != 0) + (map_lookup(&deep, &key) != 0);
}

SEC("tuner") u64 uses_flagged(void *ctx)
{
	u32 key = 0;
	return map_lookup(&flagged, &key) != 0;
}

char _license[] SEC("license") = "GPL";
