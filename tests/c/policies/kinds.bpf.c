/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Every kind of map, in one program of the `generic` hook. The same policy in Rust is in tests/tests/policies/kinds.rs, and must do the
 * same to the same maps. Words of the buffer: 0 a key, 1 an amount; out: 2 what the LRU hash had, 3 this rank's total, 4 this rank's
 * total of the key, 5 the plain counter, 6 the total of slot 0.
 */
#include "ringfence.h"

struct event {
	__u64 key;
	__u32 amount;
	__u32 odd;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16);
	__type(key, __u64);
	__type(value, __u64);
} recent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, __u64);
} by_key SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

SEC("generic")
__u64 kinds(__u64 *mem, __u64 size)
{
	__u64 key = mem[0], amount = mem[1], of_key = amount, *found;
	__u32 zero = 0;

	found = bpf_map_lookup_elem(&recent, &key);
	mem[2] = found ? *found : 0;
	if (!found && bpf_map_update_elem(&recent, &key, &amount, BPF_NOEXIST))
		return 1;
	found = bpf_map_lookup_elem(&totals, &zero);
	if (found)
		mem[3] = *found += amount;
	found = bpf_map_lookup_elem(&by_key, &key);
	if (found)
		of_key += *found;
	if (bpf_map_update_elem(&by_key, &key, &of_key, BPF_ANY))
		return 2;
	mem[4] = of_key;
	found = bpf_map_lookup_elem(&calls, &zero);
	if (found)
		mem[5] = __sync_fetch_and_add(found, 1) + 1;
	found = bpf_map_lookup_percpu_elem(&totals, &zero, 0);
	mem[6] = found ? *found : ~0ull;

	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 3;
	event->key = key;
	event->amount = amount;
	event->odd = amount & 1;
	if (amount & 1)
		bpf_ringbuf_submit(event, 0);
	else
		bpf_ringbuf_discard(event, 0);
	if (key == 7) {
		struct event copy = { .key = key, .amount = 7, .odd = 2 };

		if (bpf_ringbuf_output(&events, &copy, sizeof(copy), 0))
			return 4;
	}
	return 0;
}
RF_LICENSE("Dual MIT/GPL");
