/* Legacy map definitions, of 20 and of 28 bytes. */
#include "defs.h"

struct bpf_map_def {
	u32 type, key_size, value_size, max_entries, map_flags;
};
struct aya_map_def {
	u32 type, key_size, value_size, max_entries, map_flags, id, pinning;
};

struct bpf_map_def SEC("maps") counts = { 2, 4, 16, 32, 0 };
struct aya_map_def SEC("maps") table = { 1, 12, 8, 100, 128, 0, 1 };
struct bpf_map_def SEC("maps") ring = { 27, 0, 0, 4096, 0 };

SEC("tuner") u64 entry(void *ctx)
{
	u32 key[3] = { 1, 2, 3 };
	u64 *hit = map_lookup(&table, key);
	u64 *count = map_lookup(&counts, key);
	return hit && count ? *hit + *count : 0;
}

SEC("tuner") u64 uses_ring(void *ctx)
{
	u32 key = 0;
	return map_lookup(&ring, &key) != 0;
}
