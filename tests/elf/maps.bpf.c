/* BTF-defined maps: by type, by size, through typedefs and qualifiers, static, read-only, and kinds that are not supported. */
#include "defs.h"

struct key {
	u32 a;
	u16 b[3];
};
typedef const struct key key_t;
enum small { ZERO, ONE };

struct {
	__uint(type, 1);
	__uint(max_entries, 64);
	__type(key, key_t);
	__type(value, u64[5]);
	__uint(pinning, 1);
} by_type SEC(".maps");

struct {
	__uint(type, 2);
	__uint(max_entries, 7);
	__uint(key_size, 4);
	__uint(value_size, 24);
	__uint(map_flags, 128);
} by_size SEC(".maps");

static struct {
	__uint(type, 2);
	__uint(max_entries, 1);
	__type(key, enum small);
	__type(value, void *);
} hidden SEC(".maps");

struct {
	__uint(type, 11);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u64);
} lpm SEC(".maps");

struct {
	__uint(type, 2);
	__uint(max_entries, 4);
	__type(key, u64);
	__type(value, u64);
} wide_key SEC(".maps");

struct {
	__uint(type, 2);
	__uint(max_entries, 1 << 30);
	__type(key, u32);
	__type(value, u64);
} huge SEC(".maps");

struct {
	__uint(type, 1);
	__uint(max_entries, 4);
	__type(key, u32);
	__uint(key_size, 8);
	__type(value, u64);
} torn SEC(".maps");

struct {
	__uint(type, 1);
	__uint(max_entries, 4);
	__type(key, u32);
	__type(value, u64);
	__uint(wings, 2);
} winged SEC(".maps");

SEC("tuner") u64 two(void *ctx)
{
	struct key key = { .a = 1 };
	u32 index = 0;
	void *h = map_lookup(&hidden, &index);
	void *a = map_lookup(&by_type, &key);
	return h && a;
}

SEC("tuner") u64 one(void *ctx)
{
	u32 index = 3;
	u64 *v = map_lookup(&by_size, &index);
	return v ? v[2] : 0;
}

#define USES(map)                                                                                  \
	SEC("tuner/bad") u64 uses_##map(void *ctx)                                                     \
	{                                                                                              \
		u64 index = 0;                                                                             \
		return map_lookup(&map, &index) != 0;                                                      \
	}
USES(lpm)
USES(wide_key)
USES(huge)
USES(torn)
USES(winged)

char _license[] SEC("license") = "Dual MIT/GPL";
