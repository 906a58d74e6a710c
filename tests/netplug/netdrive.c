/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * NCCL's side of the net interface, from C, with the layouts of net.h: opens a plugin as NCCL does and plays both ends of a
 * connection in one process. It carries out commands and prints what came back; tests/net.rs judges.
 *
 *     netdrive SO < commands > results
 *
 * One command a line, one result a line (log lines come in between, marked LOG):
 *     open V                     use ncclNetPlugin_vV
 *     name                       its name now
 *     members                    which members are null now
 *     init S COMM CLASS          init; v11 and later: context in slot S
 *     devices | props DEV        what they say
 *     pair K S DEV               listen, connect, accept until connection K stands on both ends
 *     connect S DEV              listen and one end alone, until there is a connection or an error
 *     xfer K BYTES N             N transfers, one after the other, compared; with memory registered around
 *     burst K BYTES N            N transfers, as many under way as the plugin takes
 *     group K N                  one receive of N messages, sent in reverse
 *     flush K | dmabuf K | consumed K | devmr K
 *     vdev N                     makeVDevice of N devices
 *     attr S OP ALGO PROTO       setNetAttr
 *     close K | fini S
 *     huge K                     regMr, isend and irecv of 4 GiB
 *     stale K                    calls with connection K, which is closed
 *     nulls                      calls with null connections
 *     sleep MS | threads
 *     fork COMMAND               in a forked child, whose result is the line
 */
#define _GNU_SOURCE
#include "net.h"
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 64
#define WINDOW 64
#define LIMIT 200000

static void *so;
static void **table;
static int version, profiled;
static void *contexts[SLOTS];
static struct { void *listen, *send, *recv; int scope; } pairs[SLOTS];
static const char *const members[] = { "name", "init", "devices", "getProperties", "listen", "connect", "accept", "regMr", "regMrDmaBuf",
	"deregMr", "isend", "irecv", "iflush", "test", "closeSend", "closeRecv", "closeListen", "getDeviceMr", "irecvConsumed",
	"makeVDevice", "finalize", "setNetAttr" };

static int count(void)
{
	return version == 6 ? MEMBERS_V6 : version <= 8 ? MEMBERS_V7 : version <= 10 ? MEMBERS_V9 : MEMBERS_V11;
}

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	(void)file; (void)line;
	va_start(ap, fmt);
	printf("LOG %d %#lx ", level, flags);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
}

static result_t profile(void **event, int type, void *phandle, int64_t plugin, void *data)
{
	(void)event; (void)data;
	profiled += type == 0 && phandle == (void *)0x5150 && plugin == 0x20001;
	return 0;
}

static result_t do_init(void **ctx, uint64_t comm, int class)
{
	struct config config = { class };
	if (version <= 9)
		return ((init6_t)table[INIT])(logger);
	if (version == 10)
		return ((init10_t)table[INIT])(logger, profile);
	return ((init11_t)table[INIT])(ctx, comm, &config, logger, profile);
}

static result_t do_listen(void *ctx, int dev, void *handle, void **comm)
{
	if (version <= 10)
		return ((listen6_t)table[LISTEN])(dev, handle, comm);
	return ((listen11_t)table[LISTEN])(ctx, dev, handle, comm);
}

static result_t do_connect(void *ctx, int dev, void *handle, void **comm, struct device_handle **dh)
{
	struct config config = { 33 };
	if (version == 6)
		return ((connect6_t)table[CONNECT])(dev, handle, comm);
	if (version <= 9)
		return ((connect7_t)table[CONNECT])(dev, handle, comm, dh);
	if (version == 10)
		return ((connect10_t)table[CONNECT])(dev, &config, handle, comm, dh);
	return ((connect11_t)table[CONNECT])(ctx, dev, handle, comm, dh);
}

static result_t do_accept(void *listen, void **comm, struct device_handle **dh)
{
	if (version == 6)
		return ((accept6_t)table[ACCEPT])(listen, comm);
	return ((accept7_t)table[ACCEPT])(listen, comm, dh);
}

static result_t do_reg(void *comm, void *data, size_t size, void **mr)
{
	if (version <= 7)
		return ((reg6_t)table[REG_MR])(comm, data, (int)size, 1, mr);
	return ((reg8_t)table[REG_MR])(comm, data, size, 1, mr);
}

static result_t do_isend(void *comm, void *data, size_t size, int tag, void *mr, void **request)
{
	if (version <= 8)
		return ((isend6_t)table[ISEND])(comm, data, (int)size, tag, mr, request);
	if (version == 9)
		return ((isend9_t)table[ISEND])(comm, data, size, tag, mr, request);
	return ((isend10_t)table[ISEND])(comm, data, size, tag, mr, (void *)0x5150, request);
}

static result_t do_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs, void **request)
{
	int small[8];
	void *phandles[8];
	for (int i = 0; i < n && i < 8; i++) {
		small[i] = (int)sizes[i];
		phandles[i] = (void *)0x5150;
	}
	if (version <= 8)
		return ((irecv6_t)table[IRECV])(comm, n, data, small, tags, mrs, request);
	/* NCCL's hint that it does not need the completion. */
	*request = (void *)1;
	if (version == 9)
		return ((irecv9_t)table[IRECV])(comm, n, data, sizes, tags, mrs, request);
	return ((irecv10_t)table[IRECV])(comm, n, data, sizes, tags, mrs, phandles, request);
}

static result_t do_test(void *request, int *done, int *sizes)
{
	return ((test_t)table[TEST])(request, done, sizes);
}

static result_t do_close(int member, void *comm)
{
	return ((close_t)table[member])(comm);
}

static void cmd_props(int dev)
{
	union { struct props6 a; struct props7 b; struct props8 c; struct props9 d; struct props11 e; struct props12 f; char bytes[256]; } p;
	memset(&p, 0x5a, sizeof p);
	size_t size = version == 6 ? 48 : version == 7 ? 56 : version == 8 ? 64 : version <= 10 ? 104 : version == 11 ? 112 : 128;
	result_t rc = ((props_t)table[PROPERTIES])(dev, &p);
	for (size_t i = size; i < sizeof p; i++)
		if (p.bytes[i] != 0x5a)
			printf("STRAY ");
	if (rc) {
		printf("props %d\n", rc);
		return;
	}
	printf("props 0 %s %s %#llx", p.a.name, p.a.pci, (unsigned long long)p.a.guid);
#define SHOW(x) printf(" ptr=%d speed=%d port=%d latency=%g comms=%d recvs=%d", x.ptr, x.speed, x.port, x.latency, x.comms, x.recvs)
#define TYPE(x) printf(" type=%d/%d", x.dev_type, x.dev_version)
#define MORE(x) printf(" global=%d flush=%d v=%d[%d,%d] p2p=%zu coll=%zu", x.global, x.flush, x.v.ndevs, x.v.devs[0], x.v.ndevs > 1 ? x.v.devs[1] : -1, x.p2p, x.coll)
	if (version == 6) { SHOW(p.a); }
	else if (version == 7) { SHOW(p.b); TYPE(p.b); }
	else if (version == 8) { SHOW(p.c); TYPE(p.c); printf(" global=%d", p.c.global); }
	else if (version <= 10) { SHOW(p.d); TYPE(p.d); MORE(p.d); }
	else if (version == 11) { SHOW(p.e); TYPE(p.e); MORE(p.e); printf(" multi=%d", p.e.multi); }
	else { SHOW(p.f); TYPE(p.f); MORE(p.f); printf(" multi=%d rail=%d plane=%d", p.f.multi, p.f.rail, p.f.plane); }
	printf("\n");
}

static void cmd_pair(int k, int s, int dev, int both)
{
	char handle[128] = { 0 };
	void *l = NULL, *c = NULL, *a = NULL;
	struct device_handle *d1 = NULL, *d2 = NULL;
	int polls = 0;
	result_t rc = do_listen(contexts[s], dev, handle, &l);
	for (; rc == 0 && (!c || (both && !a)) && polls < LIMIT; polls++) {
		if (!c)
			rc = do_connect(contexts[s], dev, handle, &c, &d1);
		if (rc == 0 && both && !a)
			rc = do_accept(l, &a, &d2);
	}
	pairs[k].listen = l;
	pairs[k].send = c;
	pairs[k].recv = a;
	printf("%s %d %s polls=%s device=%d%d\n", both ? "pair" : "connect", rc, c && (a || !both) ? "up" : "down",
	       polls > 1 ? "some" : "one", d1 != NULL, d2 != NULL);
}

static void fill(unsigned char *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(seed * 131 + i * 7 + (i >> 8));
}

/* Waits for a request; the code, or -1 if it never ends. */
static int wait_for(void *request, int *sizes)
{
	int done = 0;
	for (long i = 0; i < LIMIT && !done; i++) {
		int rc = do_test(request, &done, sizes);
		if (rc)
			return rc;
	}
	return done ? 0 : -1;
}

/* As NCCL does with each receive that it has found done, once the GPU has read the data. */
static int consume(int k, int n, void *request)
{
	if (version < 7 || !table[CONSUMED])
		return 0;
	return ((consumed_t)table[CONSUMED])(pairs[k].recv, n, request);
}

static int one(int k, unsigned char *from, unsigned char *to, size_t bytes, int i, void *ms, void *mr)
{
	void *sr = NULL, *rr = NULL, *data = to;
	int tag = 100 + i, rc = 0, sizes[8] = { 0 };
	fill(from, bytes, i);
	memset(to, 0, bytes);
	for (int n = 0; !rr && n < LIMIT; n++)
		if ((rc = do_irecv(pairs[k].recv, 1, &data, &bytes, &tag, &mr, &rr)))
			return rc;
	for (int n = 0; !sr && n < LIMIT; n++)
		if ((rc = do_isend(pairs[k].send, from, bytes, tag, ms, &sr)))
			return rc;
	/* Both ends are here, so they take turns. */
	int sdone = 0, rdone = 0;
	for (long n = 0; n < LIMIT && !(sdone && rdone); n++) {
		if (!sdone && (rc = do_test(sr, &sdone, NULL)))
			return rc;
		if (!rdone && (rc = do_test(rr, &rdone, sizes)))
			return rc;
	}
	if (!sdone || !rdone)
		return -1;
	if ((rc = consume(k, 1, rr)))
		return rc;
	return sizes[0] != (int)bytes || memcmp(from, to, bytes) != 0 ? -2 : 0;
}

static void cmd_xfer(int k, size_t bytes, int n)
{
	unsigned char *from = malloc(bytes + 1), *to = malloc(bytes + 1);
	void *ms = NULL, *mr = NULL;
	int rc = do_reg(pairs[k].send, from, bytes, &ms), ok = 0;
	if (!rc)
		rc = do_reg(pairs[k].recv, to, bytes, &mr);
	for (int i = 0; i < n && !rc; i++) {
		rc = one(k, from, to, bytes, i, ms, mr);
		ok += rc == 0;
	}
	if (ms && mr && !rc) {
		rc = ((dereg_t)table[DEREG_MR])(pairs[k].send, ms);
		if (!rc)
			rc = ((dereg_t)table[DEREG_MR])(pairs[k].recv, mr);
	}
	printf("xfer %d ok=%d profiled=%d\n", rc, ok, profiled);
	free(from);
	free(to);
}

static void cmd_burst(int k, size_t bytes, int n)
{
	unsigned char *from = malloc(bytes * n), *to = calloc(n, bytes);
	void *ms, *mr, **sr = calloc(n, sizeof *sr), **rr = calloc(n, sizeof *rr);
	int sent = 0, posted = 0, sdone = 0, rdone = 0, peak = 0;
	int rc = do_reg(pairs[k].send, from, bytes * n, &ms);
	if (!rc)
		rc = do_reg(pairs[k].recv, to, bytes * n, &mr);
	fill(from, bytes * n, 7);
	for (long turn = 0; !rc && turn < LIMIT && (sdone < n || rdone < n); turn++) {
		while (!rc && posted < n) {
			void *data = to + posted * bytes;
			if ((rc = do_irecv(pairs[k].recv, 1, &data, &bytes, &posted, &mr, &rr[posted])) || !rr[posted])
				break;
			posted++;
		}
		while (!rc && sent < n) {
			if ((rc = do_isend(pairs[k].send, from + sent * bytes, bytes, sent, ms, &sr[sent])) || !sr[sent])
				break;
			sent++;
		}
		peak = sent - sdone > peak ? sent - sdone : peak;
		for (int done = 1; !rc && done && sdone < sent; sdone += done)
			if ((rc = do_test(sr[sdone], &done, NULL)))
				done = 0;
		for (int done = 1, size = 0; !rc && done && rdone < posted; rdone += done)
			if ((rc = do_test(rr[rdone], &done, &size)) || (done && (rc = consume(k, 1, rr[rdone]))))
				done = 0;
	}
	printf("burst %d sent=%d received=%d peak=%d %s\n", rc, sdone, rdone, peak, memcmp(from, to, bytes * n) ? "DIFFERENT" : "same");
	free(from); free(to); free(sr); free(rr);
}

static void cmd_group(int k, int n)
{
	unsigned char from[8][64], to[8][64];
	void *data[8], *mrs[8], *ms, *mr, *request = NULL, *sends[8] = { NULL };
	size_t sizes[8];
	int tags[8], got[8] = { 0 }, rc, bad = 0;
	rc = do_reg(pairs[k].send, from, sizeof from, &ms);
	if (!rc)
		rc = do_reg(pairs[k].recv, to, sizeof to, &mr);
	for (int i = 0; i < n; i++) {
		fill(from[i], 64, i);
		data[i] = to[i];
		sizes[i] = 64;
		tags[i] = 50 + i;
		mrs[i] = mr;
	}
	while (!rc && !request)
		rc = do_irecv(pairs[k].recv, n, data, sizes, tags, mrs, &request);
	/* Sizes differ, so that each has its own. */
	for (int i = n - 1; i >= 0 && !rc; i--) {
		while (!rc && !sends[i])
			rc = do_isend(pairs[k].send, from[i], 10 + i, tags[i], ms, &sends[i]);
		if (!rc)
			rc = wait_for(sends[i], NULL);
	}
	if (!rc)
		rc = wait_for(request, got);
	if (!rc)
		rc = consume(k, n, request);
	for (int i = 0; i < n; i++)
		bad += got[i] != 10 + i || memcmp(from[i], to[i], 10 + i) != 0;
	printf("group %d bad=%d\n", rc, bad);
}

static void cmd_flush(int k)
{
	char byte[16];
	void *data = byte, *mr = NULL, *request = NULL;
	int size = 16, rc = 0;
	if (!table[IFLUSH]) {
		printf("flush null\n");
		return;
	}
	rc = ((iflush_t)table[IFLUSH])(pairs[k].recv, 1, &data, &size, &mr, &request);
	printf("flush %d %d\n", rc, rc || !request ? -9 : wait_for(request, NULL));
}

static void cmd_consumed(int k)
{
	char byte[16];
	void *data = byte, *mr = NULL, *request = NULL;
	size_t size = 16;
	int tag = 1, rc = do_reg(pairs[k].recv, byte, 16, &mr);
	if (version < 7 || !table[CONSUMED]) {
		printf("consumed null\n");
		return;
	}
	while (!rc && !request)
		rc = do_irecv(pairs[k].recv, 1, &data, &size, &tag, &mr, &request);
	printf("consumed %d %d\n", rc, ((consumed_t)table[CONSUMED])(pairs[k].recv, 1, request));
}

static void cmd_misc(const char *what, int k)
{
	char bytes[64];
	void *mr = (void *)0x100, *out = NULL;
	int rc;
	if (strcmp(what, "dmabuf") == 0) {
		if (!table[REG_DMABUF]) {
			printf("dmabuf null\n");
			return;
		}
		rc = ((dmabuf_t)table[REG_DMABUF])(pairs[k].send, bytes, (size_t)5 << 32, 4, 77, 9, &mr);
		printf("dmabuf %d\n", rc);
	} else {
		if (version < 7 || !table[DEVICE_MR]) {
			printf("devmr null\n");
			return;
		}
		rc = ((device_mr_t)table[DEVICE_MR])(pairs[k].send, mr, &out);
		printf("devmr %d %s\n", rc, out == (char *)mr + 1 ? "good" : "BAD");
	}
}

static void cmd_vdev(int n)
{
	struct vprops8 v = { n, { 1, 2, 3, 4, 5, 6, 7, 8 } };
	int dev = -1;
	if (version < 9 || !table[MAKE_VDEVICE]) {
		printf("vdev null\n");
		return;
	}
	int rc = ((vdevice_t)table[MAKE_VDEVICE])(&dev, &v);
	printf("vdev %d %d\n", rc, dev);
}

static void cmd_attr(int s, unsigned op, unsigned algo, unsigned proto)
{
	struct attr a = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, op, algo, proto };
	if (version < 11 || !table[SET_ATTR]) {
		printf("attr null\n");
		return;
	}
	printf("attr %d\n", ((attr_t)table[SET_ATTR])(contexts[s], &a));
}

static void cmd_close(int k)
{
	int a = pairs[k].send ? do_close(CLOSE_SEND, pairs[k].send) : -9;
	int b = pairs[k].recv ? do_close(CLOSE_RECV, pairs[k].recv) : -9;
	printf("close %d %d %d\n", a, b, do_close(CLOSE_LISTEN, pairs[k].listen));
}

static void cmd_stale(int k)
{
	char bytes[16];
	void *request = NULL, *mr = NULL, *comm = NULL;
	int a = do_isend(pairs[k].send, bytes, 16, 1, NULL, &request), b = do_reg(pairs[k].recv, bytes, 16, &mr);
	int c = do_close(CLOSE_SEND, pairs[k].send), d = do_accept(pairs[k].listen, &comm, NULL);
	printf("stale %d %d %d %d %s\n", a, b, c, d, request || mr || comm ? "WRITTEN" : "untouched");
}

static void cmd_huge(int k)
{
	char bytes[16];
	void *request = NULL, *data = bytes, *mr = NULL, *rr = NULL;
	size_t size = (size_t)1 << 32;
	int tag = 1, a = do_reg(pairs[k].send, bytes, size, &mr), b = do_isend(pairs[k].send, bytes, size, 1, mr, &request);
	printf("huge %d %d %d\n", a, b, do_irecv(pairs[k].recv, 1, &data, &size, &tag, &mr, &rr));
}

static void cmd_nulls(void)
{
	char bytes[16];
	void *request = NULL, *mr = NULL;
	int done = 0, a = do_isend(NULL, bytes, 16, 1, NULL, &request), b = do_reg(NULL, bytes, 16, &mr), c = do_test(NULL, &done, NULL);
	printf("nulls %d %d %d %d\n", a, b, c, do_close(CLOSE_SEND, NULL));
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

static int threads(void)
{
	int n = count_threads();
	for (int i = 0; n > 1 && i < 1000; i++) {
		usleep(1000);
		n = count_threads();
	}
	return n;
}

static void run(char *line)
{
	char word[32], symbol[64];
	unsigned long long comm;
	unsigned op, algo, proto;
	int a, b, c;
	size_t bytes;
	if (sscanf(line, "open %d", &version) == 1) {
		snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
		table = dlsym(so, symbol);
		printf("open %s\n", table ? (char *)table[NAME] : "(no symbol)");
	} else if (strncmp(line, "name", 4) == 0) {
		printf("name %s\n", (char *)table[NAME]);
	} else if (strncmp(line, "members", 7) == 0) {
		printf("members null:");
		for (int i = 0; i < count(); i++)
			if (!table[i])
				printf(" %s", members[i]);
		printf("\n");
	} else if (sscanf(line, "init %d %lli %d", &a, &comm, &b) == 3) {
		contexts[a] = (void *)7;
		int rc = do_init(&contexts[a], comm, b);
		printf("init %d %s\n", rc, version <= 10 ? "-" : !contexts[a] ? "null" : contexts[a] == (void *)7 ? "unset" : "set");
	} else if (strncmp(line, "devices", 7) == 0) {
		int n = -1, rc = ((devices_t)table[DEVICES])(&n);
		printf("devices %d %d\n", rc, n);
	} else if (sscanf(line, "props %d", &a) == 1) {
		cmd_props(a);
	} else if (sscanf(line, "pair %d %d %d", &a, &b, &c) == 3) {
		cmd_pair(a, b, c, 1);
	} else if (sscanf(line, "connect %d %d", &a, &b) == 2) {
		cmd_pair(SLOTS - 1, a, b, 0);
	} else if (sscanf(line, "xfer %d %zu %d", &a, &bytes, &b) == 3) {
		cmd_xfer(a, bytes, b);
	} else if (sscanf(line, "burst %d %zu %d", &a, &bytes, &b) == 3) {
		cmd_burst(a, bytes, b);
	} else if (sscanf(line, "group %d %d", &a, &b) == 2) {
		cmd_group(a, b);
	} else if (sscanf(line, "flush %d", &a) == 1) {
		cmd_flush(a);
	} else if (sscanf(line, "consumed %d", &a) == 1) {
		cmd_consumed(a);
	} else if (sscanf(line, "vdev %d", &a) == 1) {
		cmd_vdev(a);
	} else if (sscanf(line, "attr %d %u %u %u", &a, &op, &algo, &proto) == 4) {
		cmd_attr(a, op, algo, proto);
	} else if (sscanf(line, "close %d", &a) == 1) {
		cmd_close(a);
	} else if (sscanf(line, "fini %d", &a) == 1) {
		printf("fini %d\n", version <= 10 ? 0 : ((close_t)table[FINALIZE])(contexts[a]));
	} else if (sscanf(line, "stale %d", &a) == 1) {
		cmd_stale(a);
	} else if (sscanf(line, "huge %d", &a) == 1) {
		cmd_huge(a);
	} else if (strncmp(line, "nulls", 5) == 0) {
		cmd_nulls();
	} else if (sscanf(line, "sleep %d", &a) == 1) {
		usleep(a * 1000);
		printf("sleep\n");
	} else if (strncmp(line, "threads", 7) == 0) {
		printf("threads %d\n", threads());
	} else if (strncmp(line, "fork ", 5) == 0) {
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			alarm(20);
			run(line + 5);
			fflush(stdout);
			_exit(0);
		}
		int status = -1;
		waitpid(pid, &status, 0);
		if (status)
			printf("fork %d\n", status);
	} else if (sscanf(line, "%31s %d", word, &a) == 2) {
		cmd_misc(word, a);
	} else {
		printf("unknown command: %s", line);
		exit(3);
	}
}

int main(int argc, char **argv)
{
	static char line[1 << 12];
	setvbuf(stdout, NULL, _IOLBF, 0);
	so = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!so) {
		fprintf(stderr, "netdrive: %s\n", argc == 2 ? dlerror() : "usage: netdrive SO");
		return 2;
	}
	while (fgets(line, sizeof line, stdin))
		run(line);
	return dlclose(so) ? 4 : 0;
}
