/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A native profiler that writes down what NCCL tells it, in versions 4 to 7 of the interface. The layouts are written down from NCCL's
 * headers; what is read here lies at the same place in all four but for the width of the type.
 *
 * Environment:
 *     NATIVE_PROFILER_LOG=FILE    a line for each call
 *     NATIVE_PROFILER_MASK=BITS   the events that are asked for (default: none)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { COLL = 0x2, P2P = 0x4, PROXY_OP = 0x8, KERNEL_CH = 0x40 };

typedef int result_t; /* ncclResult_t */

struct context { int version, rank; };
struct event { unsigned number; uint64_t type; atomic_int stops; };

/* The leading part of ncclProfilerEventDescr_v4_t and later; `type` is a byte in version 4. */
struct descr {
	uint64_t type;
	struct event *parent;
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
		} coll;
		struct {
			uint8_t channel;
			uint64_t timer;
		} kernel;
		struct {
			pid_t pid;
			uint8_t channel;
			int peer, steps;
		} proxy;
	} u;
};
_Static_assert(offsetof(struct descr, u) == 24, "the union");
_Static_assert(offsetof(struct descr, u.coll.channels) == 80 && offsetof(struct descr, u.coll.algo) == 88, "coll");
_Static_assert(offsetof(struct descr, u.kernel.timer) == 32, "kernelCh");

/* One write(2) a line, appended: several threads and processes may share the file. */
static void note(const char *fmt, ...)
{
	const char *path = getenv("NATIVE_PROFILER_LOG");
	char line[512];
	va_list args;
	if (!path)
		return;
	va_start(args, fmt);
	int len = vsnprintf(line, sizeof line - 1, fmt, args);
	va_end(args);
	if (len < 0 || (size_t)len > sizeof line - 2)
		abort();
	line[len++] = '\n';
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (write(fd, line, (size_t)len) != len)
		abort();
	close(fd);
}

/* "main" for the thread that the process began with, else the name of the thread. */
static const char *thread_name(char *name, size_t size)
{
	if (gettid() == getpid())
		return "main";
	return pthread_getname_np(pthread_self(), name, size) ? "?" : name;
}

static result_t begin(int version, void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks, int rank)
{
	const char *wanted = getenv("NATIVE_PROFILER_MASK");
	struct context *c = malloc(sizeof *c);
	if (!c)
		return 2; /* ncclSystemError */
	*c = (struct context){ version, rank };
	*context = c;
	*mask = wanted ? (int)strtol(wanted, NULL, 0) : 0;
	note("init v%d comm %#llx rank %d ranks %d nodes %d name %s", version, (unsigned long long)comm, rank, ranks, nodes,
	     name && *name ? name : "-");
	return 0;
}

static result_t start(void *context, void **handle, const struct descr *d)
{
	static atomic_uint numbers;
	struct context *c = context;
	char name[16];
	uint64_t type = c->version == 4 ? (uint8_t)d->type : d->type;
	const struct event *parent = d->parent;
	/* The parent of a proxy operation may belong to another process (PXN). */
	int foreign = type == PROXY_OP && d->u.proxy.pid != getpid();
	struct event *e = calloc(1, sizeof *e);
	if (!e)
		return 2;
	e->number = atomic_fetch_add(&numbers, 1) + 1;
	e->type = type;
	*handle = e;
	note("start %u type %#llx parent %#llx/%u rank %d thread %s foreign %d", e->number, (unsigned long long)type,
	     parent && !foreign ? (unsigned long long)parent->type : 0, parent && !foreign ? parent->number : 0, d->rank,
	     thread_name(name, sizeof name), foreign);
	if (type == COLL)
		note("coll %u seq %llu func %s count %zu channels %d algo %s proto %s", e->number, (unsigned long long)d->u.coll.seq,
		     d->u.coll.func, d->u.coll.count, d->u.coll.channels, d->u.coll.algo, d->u.coll.proto);
	if (type == KERNEL_CH)
		note("kernel %u channel %d timer %llu", e->number, d->u.kernel.channel, (unsigned long long)d->u.kernel.timer);
	return 0;
}

static result_t stop(void *handle)
{
	struct event *e = handle;
	if (!e) {
		note("stop 0");
		return 0;
	}
	note("stop %u times %d", e->number, atomic_fetch_add(&e->stops, 1) + 1);
	return 0;
}

static result_t state(void *handle, int number, const uint64_t *args)
{
	struct event *e = handle;
	note("state %u number %d value %llu", e ? e->number : 0, number, args ? (unsigned long long)*args : 0);
	return 0;
}

/* Events may still be told of after their communicator's end, so none is freed: a test's process is short. */
static result_t end(void *context)
{
	struct context *c = context;
	note("finalize rank %d", c->rank);
	free(c);
	return 0;
}

static result_t init4(void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks, int rank, void *log)
{
	(void)log;
	return begin(4, context, comm, mask, name, nodes, ranks, rank);
}

#define INIT(v) \
	static result_t init##v(void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks, int rank, void *log) \
	{ \
		(void)log; \
		return begin(v, context, comm, mask, name, nodes, ranks, rank); \
	}
INIT(5)
INIT(6)
INIT(7)

EXPORT const struct { const char *name; void *init, *start, *stop, *state, *finalize; }
	ncclProfiler_v4 = { "Native", init4, start, stop, state, end },
	ncclProfiler_v5 = { "Native", init5, start, stop, state, end },
	ncclProfiler_v6 = { "Native", init6, start, stop, state, end },
	ncclProfiler_v7 = { "Native", init7, start, stop, state, end };
