/*
 * bpf-run: loads programs into this machine's kernel and runs them with BPF_PROG_TEST_RUN, for the differential test
 * (tests/tests/kernel_differential.rs). One process serves many programs: requests come on stdin, answers go to stdout, all numbers
 * are 32-bit and in the machine's byte order.
 *
 *   once      n maps, then for each: type, key size, value size, entries, 1 if it is read-only, 2 if values begin with a spin lock;
 *             the initial bytes of a read-only one
 *             -> 0, or an error number
 *   program   n slots, the slots (a lddw with src 1 or 2 names a map by index), n functions, where each starts (0 functions: it
 *             has no callbacks), n runs, then for each:
 *             CTX bytes of context; for each map with values that is not read-only: n entries, keys and values
 *             -> 0 or an error number, n bytes of log, the end of the verifier's log
 *                if 0, for each run: 0 or an error number, r0, CTX bytes of context, and the maps as above
 *
 * The programs are of type BPF_PROG_TYPE_SYSCALL, whose context is a plain buffer that is copied back.
 */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROGRAM "bpf-run"
#include "wire.h"

enum { CTX = 64, MAX_MAPS = 16, MAX_SLOTS = 1 << 16, MAX_RUNS = 16, MAX_FUNCS = 64, PAGE = 4096, MAX_ENTRIES = 64, MAX_KEY = 16, MAX_VALUE = 1024, LOG = 1 << 16, TAIL = 1 << 13 };

struct map {
	int fd;
	uint32_t type, key, value, entries, read_only, locked;
	/* Of a ring buffer: where the reader and the writer are. */
	volatile uint64_t *consumer, *producer;
};

struct content {
	uint32_t n;
	uint8_t keys[MAX_ENTRIES][MAX_KEY];
	uint8_t values[MAX_ENTRIES][MAX_VALUE];
};

static struct map maps[MAX_MAPS];
static uint32_t n_maps, n_funcs;
static struct bpf_func_info funcs[MAX_FUNCS];
static int btf_fd;
static struct bpf_insn insns[MAX_SLOTS];
static uint8_t ctx[MAX_RUNS][CTX];
static struct content contents[MAX_RUNS][MAX_MAPS];
static char log_text[LOG];

static long bpf(int cmd, union bpf_attr *attr)
{
	return syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

static int map_op(int cmd, int fd, const void *key, void *value)
{
	union bpf_attr attr = { 0 };

	attr.map_fd = fd;
	attr.key = (uintptr_t)key;
	attr.value = (uintptr_t)value;
	return bpf(cmd, &attr) ? -errno : 0;
}

/* The key that follows; the first one for NULL. */
static int next_key(int fd, const void *key, void *next)
{
	union bpf_attr attr = { 0 };

	attr.map_fd = fd;
	attr.key = (uintptr_t)key;
	attr.next_key = (uintptr_t)next;
	return bpf(BPF_MAP_GET_NEXT_KEY, &attr) ? -errno : 0;
}

/*
 * The types that the kernel wants of us: a function, for callbacks, and a value of 24 bytes that begins with a spin lock.
 */
static const char type_names[] = "\0int\0f\0bpf_spin_lock\0v";
enum { NAME_INT = 1, NAME_F = 5, NAME_LOCK = 7, NAME_V = 21 };
enum { TYPE_INT = 1, TYPE_PROTO, TYPE_FUNC, TYPE_LOCK, TYPE_VALUE };

static const uint32_t type_words[] = {
	NAME_INT, BTF_KIND_INT << 24, 4, BTF_INT_SIGNED << 24 | 32,
	0, BTF_KIND_FUNC_PROTO << 24, TYPE_INT,
	NAME_F, BTF_KIND_FUNC << 24, TYPE_PROTO,
	NAME_LOCK, BTF_KIND_STRUCT << 24 | 1, 4, NAME_V, TYPE_INT, 0,
	NAME_V, BTF_KIND_STRUCT << 24 | 6, 24, NAME_LOCK, TYPE_LOCK, 0, NAME_V, TYPE_INT, 32, NAME_V, TYPE_INT, 64,
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
	return bpf(BPF_BTF_LOAD, &attr);
}

/* Where reader and writer of a ring buffer are: two pages of the map. */
static int map_ring(struct map *m)
{
	void *c = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	void *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, m->fd, PAGE);

	m->consumer = c;
	m->producer = p;
	return c == MAP_FAILED || p == MAP_FAILED ? errno : 0;
}

static int has_content(const struct map *m)
{
	return !m->read_only && m->type != BPF_MAP_TYPE_RINGBUF;
}

static int create_map(struct map *m)
{
	union bpf_attr attr = { 0 };
	uint8_t init[MAX_VALUE];
	uint32_t zero = 0;

	m->type = get32(64);
	m->key = get32(MAX_KEY);
	m->value = get32(MAX_VALUE);
	m->entries = get32(1 << 16);
	m->locked = get32(3);
	m->read_only = m->locked & 1;
	m->locked >>= 1;
	attr.map_type = m->type;
	attr.key_size = m->key;
	attr.value_size = m->value;
	attr.max_entries = m->entries;
	attr.map_flags = m->read_only ? BPF_F_RDONLY_PROG : 0;
	if (m->locked) {
		attr.btf_fd = btf_fd;
		attr.btf_key_type_id = TYPE_INT;
		attr.btf_value_type_id = TYPE_VALUE;
	}
	m->fd = bpf(BPF_MAP_CREATE, &attr);
	if (m->read_only)
		get(init, m->value);
	if (m->fd < 0)
		return errno;
	if (m->type == BPF_MAP_TYPE_RINGBUF)
		return map_ring(m);
	if (!m->read_only)
		return 0;
	if (map_op(BPF_MAP_UPDATE_ELEM, m->fd, &zero, init))
		return EIO;
	memset(&attr, 0, sizeof(attr));
	attr.map_fd = m->fd;
	return bpf(BPF_MAP_FREEZE, &attr) ? errno : 0;
}

/* Sets a map to exactly that content. */
static void fill(const struct map *m, struct content *c)
{
	uint8_t key[MAX_KEY];

	if (m->type == BPF_MAP_TYPE_HASH)
		while (!next_key(m->fd, NULL, key))
			if (map_op(BPF_MAP_DELETE_ELEM, m->fd, key, NULL))
				die("cannot empty a map");
	for (uint32_t i = 0; i < c->n; i++)
		if (map_op(BPF_MAP_UPDATE_ELEM, m->fd, c->keys[i], c->values[i]))
			die("cannot fill a map");
}

static void answer_map(const struct map *m)
{
	static struct content c;
	uint8_t *last = NULL;

	c.n = 0;
	while (c.n < MAX_ENTRIES && !next_key(m->fd, last, c.keys[c.n])) {
		if (map_op(BPF_MAP_LOOKUP_ELEM, m->fd, c.keys[c.n], c.values[c.n]))
			die("cannot read a map");
		last = c.keys[c.n++];
	}
	put32(c.n);
	for (uint32_t i = 0; i < c.n; i++) {
		put(c.keys[i], m->key);
		put(c.values[i], m->value);
	}
}

static int load(uint32_t slots, int log)
{
	union bpf_attr attr = { 0 };

	attr.prog_type = BPF_PROG_TYPE_SYSCALL;
	attr.prog_flags = BPF_F_SLEEPABLE;
	attr.insns = (uintptr_t)insns;
	attr.insn_cnt = slots;
	attr.license = (uintptr_t)"GPL";
	if (n_funcs) {
		attr.prog_btf_fd = btf_fd;
		attr.func_info = (uintptr_t)funcs;
		attr.func_info_rec_size = sizeof(funcs[0]);
		attr.func_info_cnt = n_funcs;
	}
	if (log) {
		attr.log_level = 1;
		attr.log_size = LOG;
		attr.log_buf = (uintptr_t)log_text;
	}
	return bpf(BPF_PROG_LOAD, &attr);
}

static void run(int prog, uint32_t i)
{
	union bpf_attr attr = { 0 };

	for (uint32_t m = 0; m < n_maps; m++)
		if (has_content(&maps[m]))
			fill(&maps[m], &contents[i][m]);
	attr.test.prog_fd = prog;
	attr.test.ctx_in = (uintptr_t)ctx[i];
	attr.test.ctx_size_in = CTX;
	put32(bpf(BPF_PROG_TEST_RUN, &attr) ? errno : 0);
	put32(attr.test.retval);
	put(ctx[i], CTX);
	for (uint32_t m = 0; m < n_maps; m++) {
		if (has_content(&maps[m]))
			answer_map(&maps[m]);
		if (maps[m].consumer)
			*maps[m].consumer = *maps[m].producer;
	}
}

static void read_program(uint32_t slots, uint32_t runs)
{
	for (uint32_t i = 0; i < slots; i++) {
		int wide = insns[i].code == (BPF_LD | BPF_DW | BPF_IMM);

		if (wide && (insns[i].src_reg == BPF_PSEUDO_MAP_FD || insns[i].src_reg == BPF_PSEUDO_MAP_VALUE)) {
			if ((uint32_t)insns[i].imm >= n_maps)
				die("no such map");
			insns[i].imm = maps[insns[i].imm].fd;
		}
		i += wide;
	}
	for (uint32_t i = 0; i < runs; i++) {
		get(ctx[i], CTX);
		for (uint32_t m = 0; m < n_maps; m++) {
			struct content *c = &contents[i][m];

			c->n = has_content(&maps[m]) ? get32(MAX_ENTRIES) : 0;
			for (uint32_t k = 0; k < c->n; k++) {
				get(c->keys[k], maps[m].key);
				get(c->values[k], maps[m].value);
			}
		}
	}
}

static void serve(uint32_t slots)
{
	uint32_t runs, len = 0;
	int prog, error = 0;

	if (!slots || slots > MAX_SLOTS)
		die("no program has so many slots");
	get(insns, slots * sizeof(insns[0]));
	n_funcs = get32(MAX_FUNCS);
	for (uint32_t i = 0; i < n_funcs; i++)
		funcs[i] = (struct bpf_func_info){ get32(slots), TYPE_FUNC };
	runs = get32(MAX_RUNS);
	read_program(slots, runs);
	prog = load(slots, 0);
	if (prog < 0) {
		error = errno;
		log_text[0] = 0;
		/* Once more for its reasons, unless the reason is the length of the log. */
		prog = error == E2BIG ? -1 : load(slots, 1);
		if (prog >= 0)
			die("the kernel changes its mind");
		len = strnlen(log_text, LOG);
	}
	put32(error);
	put32(len < TAIL ? len : TAIL);
	put(log_text + (len < TAIL ? 0 : len - TAIL), len < TAIL ? len : TAIL);
	if (prog >= 0) {
		for (uint32_t i = 0; i < runs; i++)
			run(prog, i);
		close(prog);
	}
	fflush(stdout);
}

int main(void)
{
	uint32_t slots;
	int error = 0;

	btf_fd = load_types();
	if (btf_fd < 0)
		error = errno;
	n_maps = get32(MAX_MAPS);
	for (uint32_t i = 0; i < n_maps; i++) {
		int e = create_map(&maps[i]);

		error = error ? error : e;
	}
	put32(error);
	fflush(stdout);
	while (!error && fread(&slots, sizeof(slots), 1, stdin) == 1)
		serve(slots);
	return error ? 1 : 0;
}
