/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A net plugin over TCP on the loopback interface, in every version from 6 to 12: what the tests chain below Ringfence. It keeps
 * NCCL's contract (nothing blocks, at most 32 requests per connection, "try again" by a null connection or request) and says in
 * a file what it was asked.
 *
 * Built with:
 *     -DV6 -DV7 ... -DV12       the versions to export
 *     -DLATE                    the tables hold a name and init alone until init is called (as some plugins do)
 *     -DHOLLOW                  the tables hold a name and init alone, always
 *     -DSPARSE                  optional members are null
 *     -DINSTANT                 no network: every transfer is done at once (for measuring the caller)
 * Environment:
 *     NETPLUG_LOG=FILE          one line for each call
 *     NETPLUG_FAIL=MEMBER:CODE  that member returns that code (members as in the log)
 *     NETPLUG_AGAIN=N           each Nth isend and irecv says "try again"
 *     NETPLUG_DEVICES=N         devices (1)
 */
#define _GNU_SOURCE
#include "net.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUESTS 32
#define RECVS 8

enum { OK = 0, SYSTEM = 2, INTERNAL = 3, INVALID = 4, REMOTE = 6 };

struct handle { uint16_t port; uint8_t calls; int fd; };
struct header { uint64_t size; int32_t tag; uint32_t magic; };
_Static_assert(sizeof(struct handle) <= 128, "handle");

struct mr { char *base; size_t size; };

struct request {
	struct comm *comm;
	int used, done, is_send, n, failed;
	char *data[RECVS];
	size_t room[RECVS], got[RECVS];
	int tags[RECVS], full[RECVS];
	size_t sent; /* of a send: header and data */
	struct header header;
	uint64_t order;
};

struct comm {
	int fd, is_send, magic;
	uint64_t order;
	struct request requests[REQUESTS];
	/* Of a receiver: the message that is coming in. */
	struct header header;
	size_t got;
	struct request *into;
	int slot;
};

struct listener { int fd; };
struct context { uint64_t comm_id; int traffic_class; };

static FILE *out;
static int again, asked, ndevices = 1;
static char failing[32];
static int code;
static profiler_t profiler;
static struct device_handle device = { 0, 0, NULL, 0, 1 };

static void say(const char *fmt, ...)
{
	va_list ap;
	if (!out)
		return;
	va_start(ap, fmt);
	vfprintf(out, fmt, ap);
	va_end(ap);
	fputc('\n', out);
	fflush(out);
}

static void setup(void)
{
	const char *v;
	if ((v = getenv("NETPLUG_LOG")) && !out)
		out = fopen(v, "a");
	if ((v = getenv("NETPLUG_FAIL")))
		sscanf(v, "%31[a-zA-Z]:%d", failing, &code);
	if ((v = getenv("NETPLUG_AGAIN")))
		again = atoi(v);
	if ((v = getenv("NETPLUG_DEVICES")))
		ndevices = atoi(v);
}

#define FAIL(member) do { if (strcmp(failing, member) == 0) return code; } while (0)

static int try_again(void)
{
	return again && ++asked % again == 0;
}

static void publish(void);

static result_t init(const char *version, void **ctx, uint64_t comm_id, struct config *config, logger_t logger, profiler_t prof)
{
	setup();
	say("init %s comm=%#llx class=%d logger=%d profiler=%d", version, (unsigned long long)comm_id,
	    config ? config->traffic_class : -99, logger != NULL, prof != NULL);
	FAIL("init");
	if (logger)
		logger(3, 1, "netplug.c", __LINE__, "%s", "netplug is here");
	profiler = prof;
	if (ctx) {
		struct context *c = calloc(1, sizeof *c);
		c->comm_id = comm_id;
		c->traffic_class = config->traffic_class;
		*ctx = c;
	}
	publish();
	return OK;
}

static result_t init6(logger_t l) { return init("v6-9", NULL, 0, NULL, l, NULL); }
static result_t init10(logger_t l, profiler_t p) { return init("v10", NULL, 0, NULL, l, p); }
static result_t init11(void **ctx, uint64_t id, struct config *c, logger_t l, profiler_t p)
{
	return init("v11-12", ctx, id, c, l, p);
}

static result_t devices(int *n)
{
	FAIL("devices");
	*n = ndevices;
	return OK;
}

#define COMMON(p) do { \
		FAIL("getProperties"); \
		memset(p, 0, sizeof *p); \
		p->name = "lo0"; p->pci = "/sys/devices/none"; p->guid = 0x1122334455667788; p->ptr = 1; \
		p->speed = 12345; p->port = 7; p->latency = 2.5f; p->comms = 1000; p->recvs = RECVS; \
	} while (0)
#define LATER(p) do { p->dev_type = 0; p->dev_version = 3; } while (0)
#define NEWER(p) do { p->flush = 1; p->v.ndevs = 2; p->v.devs[0] = dev; p->v.devs[1] = 9; p->p2p = 1 << 20; p->coll = 1 << 21; } while (0)

static result_t props6(int dev, struct props6 *p) { (void)dev; COMMON(p); return OK; }
static result_t props7(int dev, struct props7 *p) { (void)dev; COMMON(p); LATER(p); return OK; }
static result_t props8(int dev, struct props8 *p) { (void)dev; COMMON(p); LATER(p); p->global = 1; return OK; }
static result_t props9(int dev, struct props9 *p) { COMMON(p); LATER(p); p->global = 1; NEWER(p); return OK; }
static result_t props11(int dev, struct props11 *p) { COMMON(p); LATER(p); p->global = 1; NEWER(p); p->multi = 4; return OK; }
static result_t props12(int dev, struct props12 *p)
{
	COMMON(p); LATER(p); p->global = 1; NEWER(p); p->multi = 4; p->rail = 5; p->plane = 6;
	return OK;
}

static int nonblocking(int fd)
{
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fcntl(fd, F_SETFL, O_NONBLOCK);
}

static result_t listen6(int dev, void *handle, void **comm)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	struct handle *h = handle;
	struct listener *l = calloc(1, sizeof *l);
	say("listen dev=%d", dev);
	FAIL("listen");
	l->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&a, len) || listen(l->fd, 64) || getsockname(l->fd, (struct sockaddr *)&a, &len))
		return SYSTEM;
	nonblocking(l->fd);
	memset(h, 0, sizeof *h);
	h->port = a.sin_port;
	h->fd = -1;
	*comm = l;
	return OK;
}

static result_t listen11(void *ctx, int dev, void *handle, void **comm)
{
	say("listen ctx comm=%#llx", (unsigned long long)((struct context *)ctx)->comm_id);
	return listen6(dev, handle, comm);
}

static struct comm *make_comm(int fd, int is_send)
{
	struct comm *c = calloc(1, sizeof *c);
	c->fd = fd;
	c->is_send = is_send;
	c->magic = 0x434f4d4d;
	nonblocking(fd);
	return c;
}

/* Like NCCL's own: what is under way is kept in the handle. The first call never finishes. */
static result_t connect_to(int dev, int traffic_class, void *handle, void **comm, struct device_handle **dh)
{
	struct handle *h = handle;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = h->port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	*comm = NULL;
	if (h->calls++ == 0) {
		say("connect dev=%d class=%d devhandle=%d", dev, traffic_class, dh != NULL);
		return OK;
	}
	FAIL("connect");
	if (h->fd < 0) {
		h->fd = socket(AF_INET, SOCK_STREAM, 0);
		nonblocking(h->fd);
	}
	if (connect(h->fd, (struct sockaddr *)&a, sizeof a) && errno != EISCONN)
		return errno == EINPROGRESS || errno == EALREADY ? OK : SYSTEM;
	*comm = make_comm(h->fd, 1);
	if (dh)
		*dh = &device;
	return OK;
}

static result_t connect6(int dev, void *h, void **c) { return connect_to(dev, -99, h, c, NULL); }
static result_t connect7(int dev, void *h, void **c, struct device_handle **d) { return connect_to(dev, -99, h, c, d); }
static result_t connect10(int dev, struct config *cfg, void *h, void **c, struct device_handle **d)
{
	return connect_to(dev, cfg->traffic_class, h, c, d);
}
static result_t connect11(void *ctx, int dev, void *h, void **c, struct device_handle **d)
{
	return connect_to(dev, ((struct context *)ctx)->traffic_class, h, c, d);
}

static result_t accept7(void *listen, void **comm, struct device_handle **dh)
{
	FAIL("accept");
	int fd = accept(((struct listener *)listen)->fd, NULL, NULL);
	*comm = NULL;
	if (fd < 0)
		return errno == EAGAIN ? OK : SYSTEM;
	say("accept devhandle=%d", dh != NULL);
	*comm = make_comm(fd, 0);
	if (dh)
		*dh = &device;
	return OK;
}

static result_t accept6(void *listen, void **comm) { return accept7(listen, comm, NULL); }

static int is_comm(void *comm) { return comm && ((struct comm *)comm)->magic == 0x434f4d4d; }

static result_t reg8(void *comm, void *data, size_t size, int type, void **handle)
{
	say("regMr size=%zu type=%d", size, type);
	FAIL("regMr");
	if (!is_comm(comm) || type != 1)
		return INVALID;
	struct mr *mr = malloc(sizeof *mr);
	*mr = (struct mr){ data, size };
	*handle = mr;
	return OK;
}

static result_t reg6(void *comm, void *data, int size, int type, void **handle) { return reg8(comm, data, size, type, handle); }

static result_t dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **handle)
{
	say("regMrDmaBuf size=%zu type=%d offset=%llu fd=%d", size, type, (unsigned long long)offset, fd);
	FAIL("regMrDmaBuf");
	return reg8(comm, data, size, 1, handle);
}

static result_t dereg(void *comm, void *handle)
{
	say("deregMr");
	FAIL("deregMr");
	if (!is_comm(comm))
		return INVALID;
	free(handle);
	return OK;
}

static int inside(const struct mr *mr, const char *data, size_t size)
{
	return mr && data >= mr->base && data + size <= mr->base + mr->size;
}

static struct request *take(struct comm *c)
{
	for (int i = 0; i < REQUESTS; i++)
		if (!c->requests[i].used) {
			struct request *r = &c->requests[i];
			memset(r, 0, sizeof *r);
			r->used = 1;
			r->comm = c;
			r->order = c->order++;
			return r;
		}
	return NULL;
}

static void profile(void *phandle)
{
	void *event = NULL;
	if (profiler && phandle)
		profiler(&event, 0, phandle, 0x20001, NULL);
}

static result_t isend10(void *comm, void *data, size_t size, int tag, void *mr, void *phandle, void **request)
{
	struct comm *c = comm;
	FAIL("isend");
#ifdef INSTANT
	*request = &c->requests[0];
	(void)data; (void)size; (void)tag; (void)mr; (void)phandle;
	return OK;
#endif
	*request = NULL;
	if (!is_comm(c) || !c->is_send || !inside(mr, data, size))
		return INVALID;
	if (try_again())
		return OK;
	struct request *r = take(c);
	if (!r)
		return OK;
	say("isend size=%zu tag=%d phandle=%d", size, tag, phandle != NULL);
	profile(phandle);
	r->is_send = 1;
	r->n = 1;
	r->data[0] = data;
	r->room[0] = size;
	r->header = (struct header){ size, tag, 0x4d534721 };
	*request = r;
	return OK;
}

static result_t isend9(void *c, void *d, size_t s, int t, void *m, void **r) { return isend10(c, d, s, t, m, NULL, r); }
static result_t isend6(void *c, void *d, int s, int t, void *m, void **r) { return isend10(c, d, s, t, m, NULL, r); }

static result_t irecv10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs, void **phandles, void **request)
{
	struct comm *c = comm;
	int optional = *request == (void *)1;
	FAIL("irecv");
#ifdef INSTANT
	*request = &c->requests[1];
	return OK;
#endif
	*request = NULL;
	if (!is_comm(c) || c->is_send || n < 1 || n > RECVS)
		return INVALID;
	if (try_again())
		return OK;
	for (int i = 0; i < n; i++)
		if (!inside(mrs[i], data[i], sizes[i]))
			return INVALID;
	struct request *r = take(c);
	if (!r)
		return OK;
	say("irecv n=%d size=%zu tag=%d phandle=%d optional=%d", n, sizes[0], tags[0], phandles && phandles[0], optional);
	profile(phandles ? phandles[0] : NULL);
	r->n = n;
	for (int i = 0; i < n; i++) {
		r->data[i] = data[i];
		r->room[i] = sizes[i];
		r->tags[i] = tags[i];
	}
	*request = r;
	return OK;
}

static result_t irecv9(void *c, int n, void **d, size_t *s, int *t, void **m, void **r) { return irecv10(c, n, d, s, t, m, NULL, r); }
static result_t irecv6(void *c, int n, void **d, int *s, int *t, void **m, void **r)
{
	size_t sizes[RECVS] = { 0 };
	for (int i = 0; i < n && i < RECVS; i++)
		sizes[i] = s[i];
	return irecv10(c, n, d, sizes, t, m, NULL, r);
}

static result_t iflush(void *comm, int n, void **data, int *sizes, void **mrs, void **request)
{
	(void)data; (void)mrs;
	say("iflush n=%d size=%d", n, sizes[0]);
	FAIL("iflush");
	if (!is_comm(comm))
		return INVALID;
	struct request *r = take(comm);
	*request = r;
	if (r)
		r->done = r->n = 1;
	return OK;
}

/* The oldest send that is not out yet. */
static struct request *oldest(struct comm *c, int is_send)
{
	struct request *best = NULL;
	for (int i = 0; i < REQUESTS; i++) {
		struct request *r = &c->requests[i];
		if (r->used && !r->done && r->is_send == is_send && (!best || r->order < best->order))
			best = r;
	}
	return best;
}

static result_t push(struct comm *c)
{
	struct request *r;
	while ((r = oldest(c, 1))) {
		size_t head = sizeof r->header, all = head + r->room[0];
		while (r->sent < all) {
			const char *from = r->sent < head ? (char *)&r->header + r->sent : r->data[0] + (r->sent - head);
			size_t left = r->sent < head ? head - r->sent : all - r->sent;
			ssize_t w = send(c->fd, from, left, MSG_NOSIGNAL);
			if (w < 0)
				return errno == EAGAIN ? OK : REMOTE;
			r->sent += w;
		}
		r->got[0] = r->room[0];
		r->done = 1;
	}
	return OK;
}

/* Where a message with that tag goes: the oldest receive that waits for one. */
static int place(struct comm *c)
{
	for (uint64_t order = 0; order < c->order; order++)
		for (int i = 0; i < REQUESTS; i++) {
			struct request *r = &c->requests[i];
			if (!r->used || r->done || r->is_send || r->order != order)
				continue;
			for (int k = 0; k < r->n; k++)
				if (!r->full[k] && r->tags[k] == c->header.tag) {
					c->into = r;
					c->slot = k;
					return 1;
				}
		}
	return 0;
}

static result_t pull(struct comm *c)
{
	for (;;) {
		if (c->got < sizeof c->header) {
			ssize_t n = recv(c->fd, (char *)&c->header + c->got, sizeof c->header - c->got, 0);
			if (n <= 0)
				return n < 0 && errno == EAGAIN ? OK : REMOTE;
			c->got += n;
			continue;
		}
		if (c->header.magic != 0x4d534721)
			return INTERNAL;
		if (!c->into && !place(c))
			return OK;
		struct request *r = c->into;
		if (c->header.size > r->room[c->slot])
			return INTERNAL;
		while (r->got[c->slot] < c->header.size) {
			ssize_t n = recv(c->fd, r->data[c->slot] + r->got[c->slot], c->header.size - r->got[c->slot], 0);
			if (n <= 0)
				return n < 0 && errno == EAGAIN ? OK : REMOTE;
			r->got[c->slot] += n;
		}
		r->full[c->slot] = 1;
		r->done = 1;
		for (int k = 0; k < r->n; k++)
			r->done &= r->full[k];
		c->into = NULL;
		c->got = 0;
		if (!oldest(c, 0))
			return OK;
	}
}

static result_t test(void *request, int *done, int *sizes)
{
	struct request *r = request;
	FAIL("test");
#ifdef INSTANT
	*done = 1;
	(void)r; (void)sizes;
	return OK;
#endif
	*done = 0;
	if (!r || !r->used || !is_comm(r->comm))
		return INVALID;
	if (!r->done) {
		result_t rc = r->is_send ? push(r->comm) : pull(r->comm);
		if (rc != OK)
			return rc;
	}
	if (!r->done)
		return OK;
	for (int i = 0; sizes && i < r->n; i++)
		sizes[i] = r->got[i];
	*done = 1;
	r->used = 0;
	return OK;
}

static result_t close_comm(void *comm)
{
	struct comm *c = comm;
	if (!is_comm(c))
		return INVALID;
	close(c->fd);
	c->magic = 0;
	free(c);
	return OK;
}

static result_t close_send(void *comm) { say("closeSend"); FAIL("closeSend"); return close_comm(comm); }
static result_t close_recv(void *comm) { say("closeRecv"); FAIL("closeRecv"); return close_comm(comm); }
static result_t close_listen(void *comm)
{
	say("closeListen");
	FAIL("closeListen");
	close(((struct listener *)comm)->fd);
	free(comm);
	return OK;
}

static result_t device_mr(void *comm, void *handle, void **dptr)
{
	say("getDeviceMr");
	FAIL("getDeviceMr");
	*dptr = (char *)handle + 1;
	return is_comm(comm) ? OK : INVALID;
}

static result_t consumed(void *comm, int n, void *request)
{
	struct comm *c = comm;
	struct request *r = request;
	int ours = is_comm(c) && r >= c->requests && r < c->requests + REQUESTS;
	say("irecvConsumed n=%d ours=%d", n, ours);
	FAIL("irecvConsumed");
	return ours ? OK : INVALID;
}

static result_t vdevice(int *dev, struct vprops4 *v)
{
	say("makeVDevice ndevs=%d last=%d", v->ndevs, v->devs[v->ndevs - 1]);
	FAIL("makeVDevice");
	*dev = 42;
	return OK;
}

static result_t finalize(void *ctx)
{
	say("finalize comm=%#llx", (unsigned long long)((struct context *)ctx)->comm_id);
	FAIL("finalize");
	free(ctx);
	return OK;
}

static result_t set_attr(void *ctx, struct attr *a)
{
	say("setNetAttr comm=%#llx op=%u algo=%u proto=%u", (unsigned long long)((struct context *)ctx)->comm_id, a->op, a->algo, a->proto);
	FAIL("setNetAttr");
	return OK;
}

#ifdef SPARSE
#define OPTIONAL(f) NULL
#else
#define OPTIONAL(f) (void *)f
#endif
#define COMMON_MEMBERS(p, l, c, a, r, s, v) \
	(void *)devices, (void *)p, (void *)l, (void *)c, (void *)a, (void *)r, OPTIONAL(dmabuf), (void *)dereg, (void *)s, (void *)v, \
	OPTIONAL(iflush), (void *)test, (void *)close_send, (void *)close_recv, (void *)close_listen
#ifdef LATE
#define TABLE(n, size, start, ...) \
	__attribute__((visibility("default"))) void *ncclNetPlugin_v##n[size] = { "early" #n, (void *)start }; \
	static void *const full_v##n[size] = { "netplug" #n, (void *)start, __VA_ARGS__ }; \
	static void publish_v##n(void) { memcpy(ncclNetPlugin_v##n, full_v##n, sizeof full_v##n); }
#elif defined(HOLLOW)
#define TABLE(n, size, start, ...) \
	__attribute__((visibility("default"))) void *ncclNetPlugin_v##n[size] = { "hollow" #n, (void *)start }; \
	static void publish_v##n(void) { }
#else
#define TABLE(n, size, start, ...) \
	__attribute__((visibility("default"))) void *ncclNetPlugin_v##n[size] = { "netplug" #n, (void *)start, __VA_ARGS__ }; \
	static void publish_v##n(void) { }
#endif

#ifdef V6
TABLE(6, MEMBERS_V6, init6, COMMON_MEMBERS(props6, listen6, connect6, accept6, reg6, isend6, irecv6))
#endif
#ifdef V7
TABLE(7, MEMBERS_V7, init6, COMMON_MEMBERS(props7, listen6, connect7, accept7, reg6, isend6, irecv6), OPTIONAL(device_mr), OPTIONAL(consumed))
#endif
#ifdef V8
TABLE(8, MEMBERS_V7, init6, COMMON_MEMBERS(props8, listen6, connect7, accept7, reg8, isend6, irecv6), OPTIONAL(device_mr), OPTIONAL(consumed))
#endif
#ifdef V9
TABLE(9, MEMBERS_V9, init6, COMMON_MEMBERS(props9, listen6, connect7, accept7, reg8, isend9, irecv9), OPTIONAL(device_mr), OPTIONAL(consumed), OPTIONAL(vdevice))
#endif
#ifdef V10
TABLE(10, MEMBERS_V9, init10, COMMON_MEMBERS(props9, listen6, connect10, accept7, reg8, isend10, irecv10), OPTIONAL(device_mr), OPTIONAL(consumed), OPTIONAL(vdevice))
#endif
#ifdef V11
TABLE(11, MEMBERS_V11, init11, COMMON_MEMBERS(props11, listen11, connect11, accept7, reg8, isend10, irecv10), OPTIONAL(device_mr), OPTIONAL(consumed), OPTIONAL(vdevice), (void *)finalize, OPTIONAL(set_attr))
#endif
#ifdef V12
TABLE(12, MEMBERS_V11, init11, COMMON_MEMBERS(props12, listen11, connect11, accept7, reg8, isend10, irecv10), OPTIONAL(device_mr), OPTIONAL(consumed), OPTIONAL(vdevice), (void *)finalize, OPTIONAL(set_attr))
#endif

static void publish(void)
{
	setup();
#ifdef V6
	publish_v6();
#endif
#ifdef V7
	publish_v7();
#endif
#ifdef V8
	publish_v8();
#endif
#ifdef V9
	publish_v9();
#endif
#ifdef V10
	publish_v10();
#endif
#ifdef V11
	publish_v11();
#endif
#ifdef V12
	publish_v12();
#endif
}

/* Everything is referenced whatever the versions. */
void *const netplug_all[] __attribute__((visibility("hidden"), used)) = {
	(void *)init6, (void *)init10, (void *)init11, (void *)props6, (void *)props7, (void *)props8, (void *)props9, (void *)props11,
	(void *)props12, (void *)listen6, (void *)listen11, (void *)connect6, (void *)connect7, (void *)connect10, (void *)connect11,
	(void *)accept6, (void *)accept7, (void *)reg6, (void *)reg8, (void *)dmabuf, (void *)isend6, (void *)isend9, (void *)isend10,
	(void *)irecv6, (void *)irecv9, (void *)irecv10, (void *)iflush, (void *)device_mr, (void *)consumed, (void *)vdevice,
	(void *)finalize, (void *)set_attr, (void *)devices, (void *)dereg, (void *)test, (void *)close_send, (void *)close_recv,
	(void *)close_listen, (void *)push, (void *)pull, (void *)take,
};
