/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A tuner plugin to chain: what AWS's would be. Compile with -DVERSION=2 to 6. Its behaviour comes from the file $CHAINED/config, read at
 * each call, with lines such as
 *   ZERO=algo proto   that entry gets cost 0 (version 2: is returned)
 *   SET=algo proto cost   that entry gets that cost
 *   CHANNELS=n, RC=n (of getCollInfo), INIT_RC=n, CHUNK=n
 * It writes a line for each call to the file $CHAINED/calls. The layouts are written down from NCCL's headers, not taken from Ringfence.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);
struct domains { int n, min, max; };

static FILE *open_file(const char *name, const char *mode)
{
	char path[4096];
	const char *dir = getenv("CHAINED");
	snprintf(path, sizeof(path), "%s/%s", dir ? dir : ".", name);
	return fopen(path, mode);
}

/* The value of a line NAME=VALUE, or NULL. */
static const char *setting(const char *name)
{
	static __thread char line[256];
	size_t len = strlen(name);
	FILE *f = open_file("config", "r");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, len) && line[len] == '=') {
			fclose(f);
			return line + len + 1;
		}
	if (f)
		fclose(f);
	return NULL;
}

static int number(const char *name, int otherwise)
{
	const char *text = setting(name);
	return text ? atoi(text) : otherwise;
}

static void note(const char *fmt, ...)
{
	FILE *f = open_file("calls", "a");
	va_list args;
	if (!f)
		return;
	va_start(args, fmt);
	vfprintf(f, fmt, args);
	va_end(args);
	fclose(f);
}

static int begin(size_t ranks, size_t nodes, logger_t log, void **context)
{
	*context = malloc(1);
	if (log)
		log(3, 1, "chained", 1, "%s", "the chained tuner begins");
	note("init %zu %zu\n", ranks, nodes);
	return number("INIT_RC", 0);
}

static int finish(void *context)
{
	free(context);
	note("finalize\n");
	return 0;
}

#if VERSION >= 3
static int choose(int func, size_t bytes, float *table, int algos, int protos, int *channels)
{
	int algo, proto;
	float cost;
	const char *text;
	note("get %d %zu %dx%d channels %d\n", func, bytes, algos, protos, *channels);
	text = setting("ZERO");
	if (text && sscanf(text, "%d %d", &algo, &proto) == 2)
		table[algo * protos + proto] = 0.0f;
	text = setting("SET");
	if (text && sscanf(text, "%d %d %f", &algo, &proto, &cost) == 3)
		table[algo * protos + proto] = cost;
	*channels = number("CHANNELS", *channels);
	return number("RC", 0);
}
#endif

#if VERSION == 2
static int get(void *context, int func, size_t bytes, int collnet, int nvls, int ops, int *algo, int *proto, int *channels)
{
	const char *zero = setting("ZERO");
	note("get %d %zu collnet %d nvls %d\n", func, bytes, collnet, nvls);
	if (zero)
		sscanf(zero, "%d %d", algo, proto);
	*channels = number("CHANNELS", *channels);
	return context ? number("RC", 0) : ops;
}
#elif VERSION == 3
static int get(void *context, int func, size_t bytes, int ops, float **table, int algos, int protos, int *channels)
{
	return context && ops ? choose(func, bytes, (float *)table, algos, protos, channels) : 3;
}
#else
static int get(void *context, int func, size_t bytes, int ops, float **table, int algos, int protos, int registered,
	       int *channels)
{
	return context && ops && registered < 2 ? choose(func, bytes, (float *)table, algos, protos, channels) : 3;
}
#endif

#if VERSION >= 5
static int begin_v5(void **context, uint64_t comm, size_t ranks, size_t nodes, logger_t log, struct domains *nvl,
		    double *constants)
{
	int code = begin(ranks, nodes, log, context);
	note("comm %llx domains %d first %g\n", (unsigned long long)comm, nvl->n, constants[0]);
	constants[0] += 1.0;
	return code;
}
#define INIT begin_v5
#else
#define INIT begin
#endif

#if VERSION == 6
static int chunk(void *context, int func, size_t bytes, int algo, int proto, int channels, size_t *size)
{
	note("chunk %d %zu %d %d %d %zu\n", func, bytes, algo, proto, channels, *size);
	*size = (size_t)number("CHUNK", (int)*size);
	return context ? 0 : 3;
}
#endif

#define SYMBOL_(v) ncclTunerPlugin_v##v
#define SYMBOL(v) SYMBOL_(v)
const struct {
	const char *name;
	void *init, *get, *finish;
#if VERSION == 6
	void *chunk;
#endif
} SYMBOL(VERSION) = {
	"Chained", (void *)INIT, (void *)get, (void *)finish,
#if VERSION == 6
	(void *)chunk,
#endif
};
