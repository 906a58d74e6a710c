/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A native tuner that does what it is told, also what no tuner should: the scenarios `traps` record what each NCCL makes of it. It exports
 * the interface in versions 3 to 6 at once, as NCCL finds it in a real plugin; the layouts are written down from NCCL's headers.
 *
 * Environment, read at each call (all may be left out):
 *     NATIVE_TUNER_LOG=FILE           a line for each call
 *     NATIVE_TUNER_FUNC=N             only collectives of this ncclFunc_t are touched
 *     NATIVE_TUNER_SET=A,P,COST;...   entry (algorithm A, protocol P) of the cost table becomes COST ("nan" and "-1" too)
 *     NATIVE_TUNER_ALL=COST           every entry becomes COST, before SET
 *     NATIVE_TUNER_CHANNELS=N         the number of channels
 *     NATIVE_TUNER_CHUNK=BYTES        the chunk size (version 6)
 *     NATIVE_TUNER_INIT_RC, _GET_RC, _CHUNK_RC=N   what the calls return
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef int result_t; /* ncclResult_t */
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);
struct domains { int n, min_ranks, max_ranks; };

/* What a call was about, for the log: the version through which NCCL came. */
struct context { int version; };

/* ---- settings and log ---- */

static const char *setting(const char *name)
{
	char full[64];
	snprintf(full, sizeof full, "NATIVE_TUNER_%s", name);
	return getenv(full);
}

static long number(const char *name, long otherwise)
{
	const char *text = setting(name);
	return text ? strtol(text, NULL, 0) : otherwise;
}

/* One write(2) a line, appended: several threads and processes may share the file. */
static void note(const char *fmt, ...)
{
	const char *path = setting("LOG");
	char line[1024];
	va_list args;
	if (!path)
		return;
	va_start(args, fmt);
	int len = vsnprintf(line, sizeof line - 1, fmt, args);
	va_end(args);
	if (len < 0)
		return;
	if ((size_t)len > sizeof line - 2)
		len = sizeof line - 2;
	line[len++] = '\n';
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (write(fd, line, (size_t)len) != len)
		abort();
	close(fd);
}

/* ---- what every version has ---- */

static result_t begin(int version, uint64_t comm, size_t ranks, size_t nodes, logger_t log, void **context)
{
	struct context *c = malloc(sizeof *c);
	if (!c)
		return 2; /* ncclSystemError */
	c->version = version;
	*context = c;
	note("init v%d comm %#llx ranks %zu nodes %zu logger %d", version, (unsigned long long)comm, ranks, nodes, log != NULL);
	return (result_t)number("INIT_RC", 0);
}

static result_t end(void *context)
{
	note("finalize");
	free(context);
	return 0;
}

static void write_table(float *table, int algos, int protos)
{
	const char *all = setting("ALL"), *at = setting("SET");
	for (int i = 0; all && i < algos * protos; i++)
		table[i] = strtof(all, NULL);
	while (at && *at) {
		int algo, proto, used;
		char cost[32];
		if (sscanf(at, "%d,%d,%31[^;]%n", &algo, &proto, cost, &used) != 3)
			abort(); /* a test's own mistake */
		if (algo < algos && proto < protos)
			table[algo * protos + proto] = strtof(cost, NULL);
		at += used;
		at += *at == ';';
	}
}

static void note_table(const float *table, int algos, int protos, char *out, size_t size)
{
	size_t used = 0;
	for (int i = 0; i < algos * protos && used + 24 < size; i++)
		used += (size_t)snprintf(out + used, size - used, " %g", (double)table[i]);
}

static result_t decide(void *context, int func, size_t bytes, int ops, float *table, int algos, int protos, int *channels)
{
	struct context *c = context;
	char text[640] = "";
	note_table(table, algos, protos, text, sizeof text);
	note("get v%d func %d bytes %zu ops %d table %dx%d channels %d costs%s", c->version, func, bytes, ops, algos, protos,
	     *channels, text);
	if (number("FUNC", func) != func)
		return 0;
	write_table(table, algos, protos);
	*channels = (int)number("CHANNELS", *channels);
	return (result_t)number("GET_RC", 0);
}

/* ---- the versions ---- */

#define INIT_OLD(v) \
	static result_t init##v(size_t ranks, size_t nodes, logger_t log, void **context) \
	{ \
		return begin(v, 0, ranks, nodes, log, context); \
	}
INIT_OLD(3)
INIT_OLD(4)

#define INIT_NEW(v) \
	static result_t init##v(void **context, uint64_t comm, size_t ranks, size_t nodes, logger_t log, struct domains *nvl, double *constants) \
	{ \
		return nvl && constants ? begin(v, comm, ranks, nodes, log, context) : 3; /* ncclInternalError */ \
	}
INIT_NEW(5)
INIT_NEW(6)

static result_t get3(void *context, int func, size_t bytes, int ops, float **table, int algos, int protos, int *channels)
{
	return decide(context, func, bytes, ops, (float *)table, algos, protos, channels);
}

static result_t get4(void *context, int func, size_t bytes, int ops, float **table, int algos, int protos, int registered, int *channels)
{
	(void)registered;
	return decide(context, func, bytes, ops, (float *)table, algos, protos, channels);
}

static result_t chunk6(void *context, int func, size_t bytes, int algo, int proto, int channels, size_t *size)
{
	struct context *c = context;
	note("chunk v%d func %d bytes %zu algo %d proto %d channels %d size %zu", c->version, func, bytes, algo, proto, channels, *size);
	if (number("FUNC", func) != func)
		return 0;
	*size = (size_t)number("CHUNK", (long)*size);
	return (result_t)number("CHUNK_RC", 0);
}

EXPORT const struct { const char *name; void *init, *get, *finalize; }
	ncclTunerPlugin_v3 = { "Native", init3, get3, end },
	ncclTunerPlugin_v4 = { "Native", init4, get4, end },
	ncclTunerPlugin_v5 = { "Native", init5, get4, end };
EXPORT const struct { const char *name; void *init, *get, *finalize, *chunk; }
	ncclTunerPlugin_v6 = { "Native", init6, get4, end, chunk6 };
