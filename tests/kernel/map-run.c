/*
 * map-run: operations on one map of this machine's kernel, by a program through helpers and by bpf(2), for the differential test
 * (tests/tests/kernel_maps.rs). Requests come on stdin, answers go to stdout, all numbers are in the machine's byte order.
 *
 *   first     u32 type, key size, entries, flags, 1 if values begin with a spin lock; values have 24 bytes
 *             u32 slots, the slots of the program (a lddw with src 1 names the map), u32 n functions, where each starts
 *             -> i32 0 or a negative error number, u32 n, n bytes of the verifier's log
 *   then      u32 RUN, 64 bytes of context            -> i32 error, i32 r0, 64 bytes of context
 *             u32 UPDATE, u64 flags, key, value        -> i32 error (a per-CPU map: the value for all CPUs)
 *             u32 DELETE, key                          -> i32 error
 *             u32 DUMP                                 -> u32 n, n keys and values (a per-CPU map: those of CPU 0)
 *
 * It runs on CPU 0 alone. The program is of type BPF_PROG_TYPE_SYSCALL, whose context is a plain buffer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROGRAM "map-run"
#include "wire.h"

enum { CTX = 64, VALUE = 24, MAX_KEY = 64, MAX_SLOTS = 4096, MAX_FUNCS = 8, MAX_CPUS = 4096, LOG = 1 << 16 };
enum { RUN, UPDATE, DELETE, DUMP };

static struct bpf_insn insns[MAX_SLOTS];
static struct bpf_func_info funcs[MAX_FUNCS];
static uint32_t n_slots, n_funcs, key_size, type;
static int map_fd, prog_fd, btf_fd;
static char log_text[LOG];

static long bpf(int cmd, union bpf_attr *attr)
{
	return syscall(SYS_bpf, cmd, attr, sizeof(*attr)) < 0 ? -errno : 0;
}

static int bpf_fd(int cmd, union bpf_attr *attr)
{
	int fd = syscall(SYS_bpf, cmd, attr, sizeof(*attr));

	return fd < 0 ? -errno : fd;
}

/* The types that the kernel wants of us: a function, for callbacks, and a value that begins with a spin lock. */
static const char type_names[] = "\0int\0f\0bpf_spin_lock\0v";
enum { NAME_INT = 1, NAME_F = 5, NAME_LOCK = 7, NAME_V = 21 };
enum { TYPE_INT = 1, TYPE_PROTO, TYPE_FUNC, TYPE_LOCK, TYPE_VALUE };

static const uint32_t type_words[] = {
	NAME_INT, BTF_KIND_INT << 24, 4, BTF_INT_SIGNED << 24 | 32,
	0, BTF_KIND_FUNC_PROTO << 24, TYPE_INT,
	NAME_F, BTF_KIND_FUNC << 24, TYPE_PROTO,
	NAME_LOCK, BTF_KIND_STRUCT << 24 | 1, 4, NAME_V, TYPE_INT, 0,
	NAME_V, BTF_KIND_STRUCT << 24 | 6, VALUE, NAME_LOCK, TYPE_LOCK, 0, NAME_V, TYPE_INT, 32, NAME_V, TYPE_INT, 64,
	NAME_V, TYPE_INT, 96, NAME_V, TYPE_INT, 128, NAME_V, TYPE_INT, 160,
};

static int load_types(void)
{
	static uint8_t blob[1024];
	struct btf_header h = { .magic = BTF_MAGIC, .version = BTF_VERSION, .hdr_len = sizeof(h),
		.type_len = sizeof(type_words), .str_off = sizeof(type_words), .str_len = sizeof(type_names) };
	union bpf_attr attr = { 0 };

	memcpy(blob, &h, sizeof(h));
	memcpy(blob + sizeof(h), type_words, sizeof(type_words));
	memcpy(blob + sizeof(h) + sizeof(type_words), type_names, sizeof(type_names));
	attr.btf = (uintptr_t)blob;
	attr.btf_size = sizeof(h) + sizeof(type_words) + sizeof(type_names);
	return bpf_fd(BPF_BTF_LOAD, &attr);
}

static int create_map(void)
{
	union bpf_attr attr = { 0 };

	type = attr.map_type = get32(64);
	key_size = attr.key_size = get32(MAX_KEY);
	attr.value_size = VALUE;
	attr.max_entries = get32(1 << 16);
	attr.map_flags = get32(UINT32_MAX);
	if (get32(1)) {
		attr.btf_fd = btf_fd;
		attr.btf_key_type_id = TYPE_INT;
		attr.btf_value_type_id = TYPE_VALUE;
	}
	return bpf_fd(BPF_MAP_CREATE, &attr);
}

static void read_program(void)
{
	n_slots = get32(MAX_SLOTS);
	get(insns, n_slots * sizeof(insns[0]));
	for (uint32_t i = 0; i < n_slots; i++) {
		int wide = insns[i].code == (BPF_LD | BPF_DW | BPF_IMM);

		if (wide && insns[i].src_reg == BPF_PSEUDO_MAP_FD)
			insns[i].imm = map_fd;
		i += wide;
	}
	n_funcs = get32(MAX_FUNCS);
	for (uint32_t i = 0; i < n_funcs; i++)
		funcs[i] = (struct bpf_func_info){ get32(n_slots), TYPE_FUNC };
}

static int load_program(void)
{
	union bpf_attr attr = { 0 };

	attr.prog_type = BPF_PROG_TYPE_SYSCALL;
	attr.prog_flags = BPF_F_SLEEPABLE;
	attr.insns = (uintptr_t)insns;
	attr.insn_cnt = n_slots;
	attr.license = (uintptr_t)"GPL";
	attr.prog_btf_fd = btf_fd;
	attr.func_info = (uintptr_t)funcs;
	attr.func_info_rec_size = sizeof(funcs[0]);
	attr.func_info_cnt = n_funcs;
	attr.log_level = 1;
	attr.log_size = LOG;
	attr.log_buf = (uintptr_t)log_text;
	return bpf_fd(BPF_PROG_LOAD, &attr);
}

static int map_op(int cmd, const void *key, void *value, uint64_t flags)
{
	union bpf_attr attr = { 0 };

	attr.map_fd = map_fd;
	attr.key = (uintptr_t)key;
	attr.value = (uintptr_t)value;
	attr.flags = flags;
	return bpf(cmd, &attr);
}

static int is_percpu(void)
{
	return type == BPF_MAP_TYPE_PERCPU_HASH || type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

static void run(void)
{
	union bpf_attr attr = { 0 };
	uint8_t ctx[CTX];

	get(ctx, CTX);
	attr.test.prog_fd = prog_fd;
	attr.test.ctx_in = (uintptr_t)ctx;
	attr.test.ctx_size_in = CTX;
	put32(bpf(BPF_PROG_TEST_RUN, &attr));
	put32(attr.test.retval);
	put(ctx, CTX);
}

static void update(void)
{
	static uint8_t values[MAX_CPUS * VALUE];
	uint8_t key[MAX_KEY];
	uint64_t flags;

	get(&flags, sizeof(flags));
	get(key, key_size);
	get(values, VALUE);
	for (int i = 1; is_percpu() && i < MAX_CPUS; i++)
		memcpy(values + i * VALUE, values, VALUE);
	put32(map_op(BPF_MAP_UPDATE_ELEM, key, values, flags));
}

static void dump(void)
{
	static uint8_t values[MAX_CPUS * VALUE];
	static uint8_t out[1 << 20];
	union bpf_attr attr = { 0 };
	uint8_t key[MAX_KEY], next[MAX_KEY];
	size_t len = 0;
	uint32_t n = 0;

	attr.map_fd = map_fd;
	attr.next_key = (uintptr_t)next;
	while (!bpf(BPF_MAP_GET_NEXT_KEY, &attr)) {
		memcpy(key, next, key_size);
		attr.key = (uintptr_t)key;
		if (map_op(BPF_MAP_LOOKUP_ELEM, key, values, 0) || len + key_size + VALUE > sizeof(out))
			die("cannot read the map");
		memcpy(out + len, key, key_size);
		memcpy(out + len + key_size, values, VALUE);
		len += key_size + VALUE;
		n++;
	}
	put32(n);
	put(out, len);
}

static void serve(uint32_t what)
{
	uint8_t key[MAX_KEY];

	switch (what) {
	case RUN:
		return run();
	case UPDATE:
		return update();
	case DELETE:
		get(key, key_size);
		return put32(map_op(BPF_MAP_DELETE_ELEM, key, NULL, 0));
	case DUMP:
		return dump();
	default:
		die("no such request");
	}
}

int main(void)
{
	cpu_set_t one;
	uint32_t what;
	int error;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	btf_fd = load_types();
	map_fd = create_map();
	read_program();
	error = btf_fd < 0 ? btf_fd : map_fd < 0 ? map_fd : 0;
	if (!error) {
		prog_fd = load_program();
		error = prog_fd < 0 ? prog_fd : 0;
	}
	put32(error);
	what = error ? strnlen(log_text, LOG) : 0;
	put32(what);
	put(log_text, what);
	fflush(stdout);
	while (!error && fread(&what, sizeof(what), 1, stdin) == 1) {
		serve(what);
		fflush(stdout);
	}
	return error ? 1 : 0;
}
