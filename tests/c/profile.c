/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Drives a profiler plugin through ncclProfiler_v4, v5, v6 or v7 from C. The structures are written here from NCCL's
 * headers, apart from the Rust ones, so that a C compiler checks the layouts. It prints what came back; tests/profiler.rs
 * judges. With the policy tests/c/policies/samples.bpf.c in force, the plugin's tuner answers what the profiler saw.
 *
 *     profile SO VERSION
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef int result_t;
typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);

struct coll4 {
	uint64_t seqNumber;
	const char *func;
	void const *sendBuff;
	void *recvBuff;
	size_t count;
	int root;
	const char *datatype;
	uint8_t nChannels;
	uint8_t nWarps;
	const char *algo;
	const char *proto;
};
struct p2p4 {
	const char *func;
	void *buff;
	const char *datatype;
	size_t count;
	int peer;
	uint8_t nChannels;
};
struct proxy_op {
	pid_t pid;
	uint8_t channelId;
	int peer;
	int nSteps;
	int chunkSize;
	int isSend;
};
struct kernel_ch {
	uint8_t channelId;
	uint64_t pTimer;
};
struct net_plugin {
	int64_t id;
	void *data;
};
struct coll_api {
	const char *func;
	size_t count;
	const char *datatype;
	int root;
	void *stream;
	bool graphCaptured;
};
struct group_api {
	bool graphCaptured;
	int groupDepth;
};

typedef struct {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct coll4 coll;
		struct p2p4 p2p;
		struct proxy_op proxyOp;
		struct { int step; } proxyStep;
		struct kernel_ch kernelCh;
		struct net_plugin netPlugin;
	};
} descr_v4;

/* The members of version 5 follow those of version 4 without a gap, as in NCCL's headers. */
#define V5_MEMBERS                                                            \
	struct group_api groupApi;                                            \
	struct proxy_op proxyOp;                                              \
	struct { int step; } proxyStep;                                       \
	struct kernel_ch kernelCh;                                            \
	struct net_plugin netPlugin;                                          \
	struct { void *stream; } kernelLaunch;
struct coll5 {
	uint64_t seqNumber;
	const char *func;
	void const *sendBuff;
	void *recvBuff;
	size_t count;
	int root;
	const char *datatype;
	uint8_t nChannels;
	uint8_t nWarps;
	const char *algo;
	const char *proto;
	void *parentGroup;
};
struct ce_coll {
	uint64_t seqNumber;
	const char *func;
	void const *sendBuff;
	void *recvBuff;
	size_t count;
	int root;
	const char *datatype;
	const char *syncStrategy;
	bool intraBatchSync;
	uint32_t batchSize;
	uint32_t numBatches;
	uint32_t ceSeqNum;
	void *stream;
};

typedef struct {
	uint64_t type;
	void *parentObj;
	int rank;
	union {
		V5_MEMBERS
		struct coll_api collApi;
		struct coll5 coll;
	};
} descr_v5;

typedef struct {
	uint64_t type;
	void *parentObj;
	int rank;
	union {
		V5_MEMBERS
		struct coll_api collApi;
		struct coll5 coll;
		struct ce_coll ceColl;
	};
} descr_v6;

typedef struct {
	uint64_t type;
	void *parentObj;
	int rank;
	union {
		V5_MEMBERS
		struct {
			const char *func;
			size_t count;
			const char *datatype;
			int root;
			void *stream;
			bool graphCaptured;
			uint64_t userTag;
		} collApi;
		struct {
			uint64_t seqNumber;
			const char *func;
			void const *sendBuff;
			void *recvBuff;
			size_t count;
			int root;
			const char *datatype;
			uint8_t nChannels;
			uint8_t nWarps;
			const char *algo;
			const char *proto;
			void *parentGroup;
			const char *kernelVariant;
			bool isSymColl;
			uint64_t userTag;
		} coll;
	};
} descr_v7;

_Static_assert(sizeof(descr_v4) == 104, "v4");
_Static_assert(sizeof(descr_v5) == 112, "v5");
_Static_assert(sizeof(descr_v6) == 112, "v6");
_Static_assert(sizeof(descr_v7) == 136, "v7");
_Static_assert(offsetof(descr_v7, coll.userTag) == 128, "v7 userTag");

typedef union {
	struct { size_t transSize; } proxyStep;
	struct { int appendedProxyOps; } proxyCtrl;
	struct { void *data; } netPlugin;
	struct { uint64_t pTimer; } kernelCh;
} state_args;

enum { GROUP = 1, COLL = 2, PROXY_OP = 8, PROXY_STEP = 0x10, KERNEL_CH = 0x40, GROUP_API = 0x100, COLL_API = 0x200,
       CE_COLL = 0x1000 };
enum { STEP_SEND_WAIT = 9, KERNEL_CH_STOP = 22, GROUP_START_API_STOP = 23 };

struct vtable {
	const char *name;
	void *init;
	result_t (*startEvent)(void *ctx, void **handle, void *descr);
	result_t (*stopEvent)(void *handle);
	result_t (*recordEventState)(void *handle, int state, state_args *args);
	result_t (*finalize)(void *ctx);
};
typedef result_t (*init_v4_t)(void **, int *, const char *, uint64_t, int, int, int, logger_t);
typedef result_t (*init_v5_t)(void **, uint64_t, int *, const char *, int, int, int, logger_t);

struct tuner {
	const char *name;
	result_t (*init)(void **, uint64_t, size_t, size_t, logger_t, void *, void *);
	result_t (*get)(void *, int, size_t, int, float **, int, int, int, int *);
	result_t (*finalize)(void *);
};

static int version, mask, codes;
static const struct vtable *plugin;
static const struct tuner *tuner;
static void *asked;

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	(void)level, (void)flags, (void)file, (void)line;
	va_start(ap, fmt);
	printf("LOG ");
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
}

/* What the policy keeps as field number `field`. */
static unsigned long long field(int field)
{
	unsigned long long value = 0;
	for (int nibble = 0; nibble < 16; nibble++) {
		float table[21];
		int channels = 0;
		for (int i = 0; i < 21; i++)
			table[i] = i < 6 ? 1.0f : -1.0f;
		codes |= tuner->get(asked, 4, field << 8 | nibble, 1, (float **)table, 7, 3, 0, &channels);
		value |= (unsigned long long)(channels - 1) << (4 * nibble);
	}
	return value;
}

static void *init(const char *name, uint64_t comm, int rank)
{
	void *ctx = (void *)1;
	if (version == 4)
		codes |= ((init_v4_t)plugin->init)(&ctx, &mask, name, comm, 2, 4, rank, logger);
	else
		codes |= ((init_v5_t)plugin->init)(&ctx, comm, &mask, name, 2, 4, rank, logger);
	return ctx;
}

/* Starts an event of whichever version; guards around it must stay as they are. */
#define START(ctx, parent, kind, ...)                                                               \
	({                                                                                          \
		struct { uint64_t before; void *handle; uint64_t after; } h = { 77, NULL, 78 };     \
		switch (version) {                                                                  \
		case 4: START_V(descr_v4, ctx, parent, kind, __VA_ARGS__);                          \
		case 5: START_V(descr_v5, ctx, parent, kind, __VA_ARGS__);                          \
		case 6: START_V(descr_v6, ctx, parent, kind, __VA_ARGS__);                          \
		default: START_V(descr_v7, ctx, parent, kind, __VA_ARGS__);                         \
		}                                                                                   \
		if (h.before != 77 || h.after != 78)                                                \
			printf("STRAY WRITE\n");                                                    \
		if (!h.handle)                                                                      \
			printf("NULL HANDLE %x\n", kind);                                           \
		h.handle;                                                                           \
	})
#define START_V(T, ctx, parent, kind, ...)                                                          \
	{                                                                                           \
		T d;                                                                                \
		memset(&d, 0xa5, sizeof d); /* what NCCL leaves out is not zero */                  \
		d.type = kind;                                                                      \
		d.parentObj = parent;                                                               \
		d.rank = 3;                                                                         \
		__VA_ARGS__;                                                                        \
		codes |= plugin->startEvent(ctx, &h.handle, &d);                                    \
	}                                                                                           \
	break

static void end(void *kernel, uint64_t timer)
{
	state_args args;
	args.kernelCh.pTimer = timer;
	codes |= plugin->recordEventState(kernel, KERNEL_CH_STOP, &args);
	codes |= plugin->stopEvent(kernel);
}

int main(int argc, char **argv)
{
	char symbol[64];
	void *so = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!so) {
		fprintf(stderr, "profile: %s\n", argc == 3 ? dlerror() : "usage: profile SO VERSION");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	version = atoi(argv[2]);
	snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
	plugin = dlsym(so, symbol);
	tuner = dlsym(so, "ncclTunerPlugin_v5");
	if (!plugin || !tuner)
		return 3;
	void *ctx = init("tp group", 0xabc123, 3);
	codes |= tuner->init(&asked, 1, 1, 1, logger, NULL, NULL);
	printf("open %s %s mask %#x\n", plugin->name, ctx && ctx != (void *)1 ? "set" : "unset", mask);

	void *api = NULL;
	if (version >= 5) {
		void *group = NULL;
		{
			void *handle = NULL;
			descr_v5 d5;
			descr_v6 d6;
			descr_v7 d7;
			void *d = version == 5 ? (void *)&d5 : version == 6 ? (void *)&d6 : (void *)&d7;
			d5.type = d6.type = d7.type = GROUP_API;
			d5.parentObj = d6.parentObj = d7.parentObj = NULL;
			d5.rank = d6.rank = d7.rank = 0;
			d5.groupApi.graphCaptured = d6.groupApi.graphCaptured = d7.groupApi.graphCaptured = false;
			d5.groupApi.groupDepth = d6.groupApi.groupDepth = d7.groupApi.groupDepth = 1;
			codes |= plugin->startEvent(ctx, &handle, d);
			group = handle;
		}
		codes |= plugin->recordEventState(group, GROUP_START_API_STOP, NULL);
		codes |= plugin->stopEvent(group);
	}
	void *coll = START(ctx, api, COLL, {
		d.coll.seqNumber = 41;
		d.coll.func = "ReduceScatter";
		d.coll.count = 1000;
		d.coll.root = 0;
		d.coll.datatype = "ncclBfloat16";
		d.coll.nChannels = 3;
		d.coll.nWarps = 16;
		d.coll.algo = "NVLS_TREE";
		d.coll.proto = "LL128";
	});
	codes |= plugin->stopEvent(coll);
	uint64_t base = 1700000000000000000ull;
	void *kernels[3];
	for (int i = 0; i < 3; i++)
		kernels[i] = START(ctx, coll, KERNEL_CH, {
			d.kernelCh.channelId = 20 + i;
			d.kernelCh.pTimer = base + 100 - i;
		});
	for (int i = 0; i < 3; i++)
		end(kernels[i], base + 5000 + i);
	static const char *const names[] = { "samples", "duration", "bytes", "seq", "func", "algo", "proto", "channels", "rank",
		"ranks", "nodes", "timing", "element", "peer", "flags", "comm", "name0", "name1" };
	for (int i = 0; i < 18; i++)
		printf("%s %#llx\n", names[i], field(i));

	/* A proxy operation of this process, one of another, and a step of each. */
	for (int other = 0; other < 2; other++) {
		void *op = START(ctx, coll, PROXY_OP, {
			d.proxyOp.pid = getpid() + other;
			d.proxyOp.channelId = 5;
			d.proxyOp.peer = 2;
			d.proxyOp.nSteps = 3;
			d.proxyOp.chunkSize = 4096;
			d.proxyOp.isSend = 1;
		});
		void *step = START(ctx, op, PROXY_STEP, d.proxyStep.step = 7);
		state_args args;
		args.proxyStep.transSize = 12345;
		codes |= plugin->recordEventState(step, STEP_SEND_WAIT, &args);
		printf("step value %#llx state %llu\n", field(22), field(24));
		codes |= plugin->stopEvent(step);
		codes |= plugin->stopEvent(op);
		printf("ops %llu steps %llu states %llu stops %llu\n", field(32 + 9), field(32 + 12), field(32 + 14),
		       field(32 + 10));
	}
	codes |= plugin->finalize(ctx);
	codes |= tuner->finalize(asked);
	printf("codes %d mask %#x\n", codes, mask);
	return 0;
}
