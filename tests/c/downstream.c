/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A profiler to be chained behind another: writes each call as a line to $DOWNSTREAM_LOG. Its handles are the addresses of
 * records that say what they are, so that a wrong one is found out. Built once for each version: -DVERSION=4, 5, 6 or 7 (the layouts
 * that matter here are equal in 5 to 7), with $DOWNSTREAM_MASK as its mask; -DFAIL makes init fail.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#define MAGIC 0x5eedf00du

struct context {
	uint32_t magic;
	int rank;
};
struct event {
	uint32_t magic;
	int number;
	uint64_t type;
	int stopped;
};

struct descr {
#if VERSION <= 4
	uint8_t type;
#else
	uint64_t type;
#endif
	void *parent;
	int rank;
	union {
		struct {
			uint64_t seq;
			const char *func;
			const void *send;
			void *recv;
			size_t count;
			int root;
			const char *datatype;
			uint8_t channels, warps;
			const char *algo, *proto;
#if VERSION >= 5
			void *group;
#endif
		} coll;
		struct {
			uint8_t channel;
			uint64_t timer;
		} kernel;
		struct {
			int32_t pid;
			uint8_t channel;
			int peer;
		} op;
	} u;
	char room[64];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int numbers, *mask_at;

static void line(const char *fmt, int a, long long b, long long c, long long d)
{
	static FILE *log;
	pthread_mutex_lock(&lock);
	if (!log)
		log = fopen(getenv("DOWNSTREAM_LOG"), "w");
	fprintf(log, fmt, a, b, c, d);
	fputc('\n', log);
	fflush(log);
	pthread_mutex_unlock(&lock);
}

static int init_common(void **ctx, int *mask, const char *name, uint64_t comm, int rank)
{
	const char *wanted = getenv("DOWNSTREAM_MASK");
#ifdef FAIL
	(void)ctx, (void)mask, (void)name, (void)comm, (void)rank, (void)wanted;
	return 2;
#else
	struct context *c = calloc(1, sizeof *c);
	c->magic = MAGIC;
	c->rank = rank;
	*ctx = c;
	mask_at = mask;
	*mask = wanted ? (int)strtol(wanted, NULL, 0) : 0x42;
	line("init rank %d comm %lld named %lld mask %lld", rank, (long long)comm, name && !strcmp(name, "tp"), *mask);
	return 0;
#endif
}

#if VERSION <= 4
static int init(void **ctx, int *mask, const char *name, uint64_t comm, int nodes, int ranks, int rank, void *logger)
{
	(void)nodes, (void)ranks, (void)logger;
	return init_common(ctx, mask, name, comm, rank);
}
#else
static int init(void **ctx, uint64_t comm, int *mask, const char *name, int nodes, int ranks, int rank, void *logger)
{
	(void)nodes, (void)ranks, (void)logger;
	return init_common(ctx, mask, name, comm, rank);
}
#endif

static int start(void *ctx, void **handle, struct descr *d)
{
	struct context *c = ctx;
	struct event *e = calloc(1, sizeof *e), *parent = d->parent;
	if (!c || c->magic != MAGIC)
		line("BAD CONTEXT %d %lld %lld %lld", 0, 0, 0, 0);
	if (parent && parent->magic != MAGIC)
		line("BAD PARENT %d %lld %lld %lld", 0, 0, 0, 0);
	pthread_mutex_lock(&lock);
	e->number = ++numbers;
	pthread_mutex_unlock(&lock);
	e->magic = MAGIC;
	e->type = d->type;
	*handle = e;
	if (d->type == 2)
		line("start %d type 2 parent %lld seq %lld channels %lld", e->number, parent ? parent->number : 0, d->u.coll.seq,
		     d->u.coll.channels);
	else if (d->type == 0x40)
		line("start %d type 64 parent %lld channel %lld timer %lld", e->number, parent ? parent->number : 0,
		     d->u.kernel.channel, d->u.kernel.timer);
	else
		line("start %d type %lld parent %lld rank %lld", e->number, d->type, parent ? parent->number : 0, d->rank);
	/* Flips its mask off after the collective that says so. */
	if (d->type == 2 && d->u.coll.seq == 999)
		*mask_at = 0;
	return 0;
}

static int stop(void *handle)
{
	struct event *e = handle;
	if (!e || e->magic != MAGIC || e->stopped++)
		line("BAD STOP %d %lld %lld %lld", 0, 0, 0, 0);
	line("stop %d%.0lld%.0lld%.0lld", e->number, 0, 0, 0);
	return 0;
}

static int state(void *handle, int number, uint64_t *args)
{
	struct event *e = handle;
	if (!e || e->magic != MAGIC || e->stopped)
		line("BAD STATE %d %lld %lld %lld", number, 0, 0, 0);
	line("state %d number %lld value %lld%.0lld", e->number, number, args ? (long long)*args : -1, 0);
	return 0;
}

static int finalize(void *ctx)
{
	struct context *c = ctx;
	if (!c || c->magic != MAGIC)
		line("BAD FINALIZE %d %lld %lld %lld", 0, 0, 0, 0);
	line("finalize rank %d%.0lld%.0lld%.0lld", c->rank, 0, 0, 0);
	return 0;
}

const struct {
	const char *name;
	void *init, *start, *stop, *state, *finalize;
} CAT(ncclProfiler_v, VERSION) = { "downstream", init, start, stop, state, finalize };
