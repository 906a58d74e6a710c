/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Drives a tuner plugin through its exported symbols as NCCL does, from C: dlopen with
 * RTLD_NOW|RTLD_LOCAL, data symbols, one contiguous cost table, a variadic logger.
 * It only carries out commands and prints what came back; tests/ffi.rs judges.
 *
 *     drive SO < commands > results
 *
 * One command a line, one result a line (log lines come in between, marked LOG):
 *     open V                                       use ncclTunerPlugin_vV
 *     init S RANKS NODES COMM                      communicator in slot S
 *     initnull                                     init with every pointer null
 *     get S FUNC BYTES PIPE ROWS COLS REG : COSTS  getCollInfo, v3 and later
 *     get2 S FUNC BYTES COLLNET NVLS PIPE          getCollInfo, v2
 *     nulls S                                      every call with every pointer null in turn
 *     chunk S VALUE                                getChunkSize
 *     fini S | refini S                            finalize; again with the same context
 *     threads                                      threads of this process
 *     fork C; C; ...                               the commands C in a forked child, which must end by itself
 * A slot of -1 is the null context, -2 an invented one, -3 the context of slot 0 plus 4096.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int result_t;
typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);

struct nvl_info { int domains, min_ranks, max_ranks; };
struct constants {
	double base[7][3], hw[3][7][3], ll[4][3], ring128[4][3], tree128[4][3], tree[4][3], nvlstree[4][3];
};

typedef result_t (*init_v2_t)(size_t, size_t, logger_t, void **);
typedef result_t (*init_v5_t)(void **, uint64_t, size_t, size_t, logger_t, struct nvl_info *, struct constants *);
typedef result_t (*get_v2_t)(void *, int, size_t, int, int, int, int *, int *, int *);
typedef result_t (*get_v3_t)(void *, int, size_t, int, float **, int, int, int *);
typedef result_t (*get_v4_t)(void *, int, size_t, int, float **, int, int, int, int *);
typedef result_t (*fini_t)(void *);
typedef result_t (*chunk_t)(void *, int, size_t, int, int, int, size_t *);

struct vtable {
	const char *name;
	void *init, *get, *fini, *chunk; /* chunk: v6 alone */
};
_Static_assert(sizeof(struct nvl_info) == 12, "NvlDomainInfo");
_Static_assert(sizeof(struct constants) == 1152, "TunerConstants");
_Static_assert(offsetof(struct vtable, chunk) == 32 && sizeof(struct vtable) == 40, "ncclTuner_v6_t");

static void *so;
static const struct vtable *plugin;
static int version;
static void *contexts[16];

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	if (!file || line < 0 || strcmp(fmt, "%s") != 0)
		printf("BADLOG %s\n", fmt);
	va_start(ap, fmt);
	printf("LOG %d %#lx ", level, flags);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
}

static void *context(int slot)
{
	if (slot == -1)
		return NULL;
	if (slot == -2)
		return (void *)(uintptr_t)0xdeadbeef1008;
	if (slot == -3)
		return (char *)contexts[0] + 4096;
	return contexts[slot];
}

static result_t call_init(size_t ranks, size_t nodes, uint64_t comm, void **out)
{
	struct nvl_info nvl = { (int)nodes, (int)(ranks / nodes), (int)(ranks / nodes) };
	struct constants constants;
	memset(&constants, 0, sizeof constants);
	if (version <= 4)
		return ((init_v2_t)plugin->init)(ranks, nodes, logger, out);
	result_t rc = ((init_v5_t)plugin->init)(out, comm, ranks, nodes, logger, &nvl, &constants);
	static const struct constants zero;
	if (memcmp(&constants, &zero, sizeof zero) != 0)
		printf("constants were changed\n");
	return rc;
}

static result_t call_get(void *ctx, int func, size_t bytes, int pipe, float *table, int rows, int cols, int reg, int *channels)
{
	if (version == 3)
		return ((get_v3_t)plugin->get)(ctx, func, bytes, pipe, (float **)table, rows, cols, channels);
	return ((get_v4_t)plugin->get)(ctx, func, bytes, pipe, (float **)table, rows, cols, reg, channels);
}

static void cmd_get(char *args)
{
	int slot, func, pipe, rows, cols, reg, used, n = 0;
	size_t bytes;
	/* Guards around the table and the channel count: nothing beside them may change. */
	struct { float before[4]; float table[512]; float after[4]; } t;
	struct { int before, channels, after; } c = { 77, 0, 78 };
	if (sscanf(args, "%d %d %zu %d %d %d %d :%n", &slot, &func, &bytes, &pipe, &rows, &cols, &reg, &used) != 7)
		exit(3);
	for (int i = 0; i < 4; i++)
		t.before[i] = t.after[i] = 4242.0f;
	for (int i = 0; i < 512; i++)
		t.table[i] = 4242.0f;
	for (char *p = strtok(args + used, " \n"); p; p = strtok(NULL, " \n"))
		t.table[n++] = strtof(p, NULL);
	result_t rc = call_get(context(slot), func, bytes, pipe, t.table, rows, cols, reg, &c.channels);
	for (int i = 0; i < 4; i++)
		if (t.before[i] != 4242.0f || t.after[i] != 4242.0f)
			printf("STRAY WRITE\n");
	for (int i = n; i < 512; i++)
		if (t.table[i] != 4242.0f)
			printf("STRAY WRITE\n");
	if (c.before != 77 || c.after != 78)
		printf("STRAY WRITE\n");
	printf("get %d %d :", rc, c.channels);
	for (int i = 0; i < n; i++)
		printf(" %a", t.table[i]);
	printf("\n");
}

static void cmd_get2(char *args)
{
	int slot, func, collnet, nvls, pipe, algo = -1, proto = -1, channels = 0;
	size_t bytes;
	if (sscanf(args, "%d %d %zu %d %d %d", &slot, &func, &bytes, &collnet, &nvls, &pipe) != 6)
		exit(3);
	result_t rc = ((get_v2_t)plugin->get)(context(slot), func, bytes, collnet, nvls, pipe, &algo, &proto, &channels);
	printf("get2 %d %d %d %d\n", rc, algo, proto, channels);
}

static void cmd_nulls(int slot)
{
	int a = -1, p = -1, n = 0, rc = 0;
	float table[21];
	for (int i = 0; i < 21; i++)
		table[i] = 1.0f;
	void *ctx = context(slot);
	if (version == 2) {
		get_v2_t get = (get_v2_t)plugin->get;
		rc |= get(ctx, 4, 8, 0, 0, 1, NULL, &p, &n);
		rc |= get(ctx, 4, 8, 0, 0, 1, &a, NULL, &n);
		rc |= get(ctx, 4, 8, 0, 0, 1, &a, &p, NULL);
		rc |= get(NULL, 4, 8, 0, 0, 1, NULL, NULL, NULL);
	} else {
		rc |= call_get(ctx, 4, 8, 1, NULL, 7, 3, 0, &n);
		rc |= call_get(ctx, 4, 8, 1, table, 0, 3, 0, &n);
		rc |= call_get(ctx, 4, 8, 1, table, 7, -3, 0, &n);
		rc |= call_get(ctx, 4, 8, 1, table, 1 << 30, 1 << 30, 0, &n);
		rc |= call_get(ctx, -1, 8, 1, table, 7, 3, 0, &n);
		rc |= call_get(ctx, 4, 8, -1, table, 7, 3, 0, &n);
		rc |= call_get(ctx, 4, (size_t)-1, 1 << 30, (float *)((char *)table + 1), 6, 3, 0, &n);
		rc |= call_get(ctx, 4, 8, 1, table, 7, 3, 0, NULL);
		rc |= call_get(NULL, 4, 8, 1, NULL, 7, 3, 0, NULL);
	}
	if (version == 6)
		rc |= ((chunk_t)plugin->chunk)(ctx, 4, 8, 1, 2, 1, NULL);
	printf("nulls %d %d %d %d\n", rc, a, p, n);
}

static void cmd_initnull(void)
{
	int rc;
	if (version <= 4)
		rc = ((init_v2_t)plugin->init)(2, 1, NULL, NULL);
	else
		rc = ((init_v5_t)plugin->init)(NULL, 0, 2, 1, NULL, NULL, NULL);
	/* No logger and no NVLink info is fine; there is a context all the same. */
	void *ctx = (void *)1;
	if (version <= 4)
		rc |= ((init_v2_t)plugin->init)(2, 1, NULL, &ctx);
	else
		rc |= ((init_v5_t)plugin->init)(&ctx, 0, 2, 1, NULL, NULL, NULL);
	printf("initnull %d %s\n", rc, ctx && ctx != (void *)1 ? "set" : "unset");
	((fini_t)plugin->fini)(ctx);
}

static int count_threads(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* A joined thread may be listed for a moment longer: waits up to a second for the last one. */
static int threads(void)
{
	int n = count_threads();
	for (int i = 0; n > 1 && i < 1000; i++) {
		usleep(1000);
		n = count_threads();
	}
	return n;
}

static void run(char *line);

static void cmd_fork(char *commands)
{
	char *rest = NULL;
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		alarm(20); /* a child that waits for a lock of a thread that is not there */
		for (char *c = strtok_r(commands, ";", &rest); c; c = strtok_r(NULL, ";", &rest))
			run(c + strspn(c, " "));
		fflush(stdout);
		_exit(0);
	}
	int status = -1;
	waitpid(pid, &status, 0);
	printf("fork %d\n", status);
}

static void run(char *line)
{
	int slot;
	size_t ranks, nodes;
	unsigned long long comm;
	size_t chunk[3] = { 1, 0, 2 };
	char symbol[64];

	if (sscanf(line, "open %d", &version) == 1) {
		snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
		plugin = dlsym(so, symbol);
		printf("open %s\n", plugin ? plugin->name : "(no symbol)");
	} else if (sscanf(line, "init %d %zu %zu %lli", &slot, &ranks, &nodes, &comm) == 4) {
		contexts[slot] = (void *)1;
		int rc = call_init(ranks, nodes, comm, &contexts[slot]);
		printf("init %d %s\n", rc, contexts[slot] && contexts[slot] != (void *)1 ? "set" : "unset");
	} else if (strncmp(line, "initnull", 8) == 0) {
		cmd_initnull();
	} else if (strncmp(line, "get ", 4) == 0) {
		cmd_get(line + 4);
	} else if (strncmp(line, "get2 ", 5) == 0) {
		cmd_get2(line + 5);
	} else if (sscanf(line, "nulls %d", &slot) == 1) {
		cmd_nulls(slot);
	} else if (sscanf(line, "chunk %d %zu", &slot, &chunk[1]) == 2) {
		int rc = ((chunk_t)plugin->chunk)(context(slot), 4, 1 << 20, 1, 2, 8, &chunk[1]);
		printf("chunk %d %zu%s\n", rc, chunk[1], chunk[0] == 1 && chunk[2] == 2 ? "" : " STRAY WRITE");
	} else if (sscanf(line, "fini %d", &slot) == 1 || sscanf(line, "refini %d", &slot) == 1) {
		printf("fini %d\n", ((fini_t)plugin->fini)(context(slot)));
	} else if (strncmp(line, "fork ", 5) == 0) {
		cmd_fork(line + 5);
	} else if (strncmp(line, "threads", 7) == 0) {
		printf("threads %d\n", threads());
	} else {
		printf("unknown command: %s", line);
		exit(3);
	}
}

int main(int argc, char **argv)
{
	static char line[1 << 16];
	setvbuf(stdout, NULL, _IOLBF, 0);
	so = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!so) {
		fprintf(stderr, "drive: %s\n", argc == 2 ? dlerror() : "usage: drive SO");
		return 2;
	}
	while (fgets(line, sizeof line, stdin))
		run(line);
	return dlclose(so) ? 4 : 0;
}
