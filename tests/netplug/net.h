/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * NCCL's net interface, versions 6 to 12, as tables of pointers: what netplug.c exports and netdrive.c calls. Written from the
 * layout of NCCL's headers and independent of the definitions in host/src/ffi/net/types.rs, so that each checks the other.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int result_t;
typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);
typedef result_t (*profiler_t)(void **, int, void *, int64_t, void *);

/* Members, as indices into a table. */
enum {
	NAME, INIT, DEVICES, PROPERTIES, LISTEN, CONNECT, ACCEPT, REG_MR, REG_DMABUF, DEREG_MR, ISEND, IRECV, IFLUSH, TEST,
	CLOSE_SEND, CLOSE_RECV, CLOSE_LISTEN, /* v7: */ DEVICE_MR, CONSUMED, /* v9: */ MAKE_VDEVICE, /* v11: */ FINALIZE, SET_ATTR,
	MEMBERS
};
/* Members of a version. */
#define MEMBERS_V6 17
#define MEMBERS_V7 19
#define MEMBERS_V9 20
#define MEMBERS_V11 22

struct config { int traffic_class; };
struct vprops4 { int ndevs, devs[4]; };
struct vprops8 { int ndevs, devs[8]; };
struct comm_attr { int32_t max_peers, min_peers, max_flows, min_flows; };
struct attr { struct comm_attr send, recv; uint32_t op, algo, proto; };
struct device_handle { int type, version; void *handle; size_t size; int proxy; };

struct props6 {
	char *name, *pci; uint64_t guid; int ptr, speed, port; float latency; int comms, recvs;
};
struct props7 {
	char *name, *pci; uint64_t guid; int ptr, speed, port; float latency; int comms, recvs, dev_type, dev_version;
};
struct props8 {
	char *name, *pci; uint64_t guid; int ptr, global, speed, port; float latency; int comms, recvs, dev_type, dev_version;
};
struct props9 {
	char *name, *pci; uint64_t guid; int ptr, global, flush, speed, port; float latency; int comms, recvs, dev_type, dev_version;
	struct vprops4 v; size_t p2p, coll;
};
struct props11 {
	char *name, *pci; uint64_t guid; int ptr, global, flush, speed, port; float latency; int comms, recvs, dev_type, dev_version;
	struct vprops4 v; size_t p2p, coll; int multi;
};
struct props12 {
	char *name, *pci; uint64_t guid; int ptr, global, flush, speed, port; float latency; int comms, recvs, dev_type, dev_version;
	struct vprops8 v; size_t p2p, coll; int multi; int16_t rail, plane;
};
_Static_assert(sizeof(struct props6) == 48 && sizeof(struct props7) == 56 && sizeof(struct props8) == 64, "properties");
_Static_assert(sizeof(struct props9) == 104 && sizeof(struct props11) == 112 && sizeof(struct props12) == 128, "properties");
_Static_assert(sizeof(struct attr) == 44 && sizeof(struct device_handle) == 32, "attributes");

typedef result_t (*init6_t)(logger_t);
typedef result_t (*init10_t)(logger_t, profiler_t);
typedef result_t (*init11_t)(void **, uint64_t, struct config *, logger_t, profiler_t);
typedef result_t (*devices_t)(int *);
typedef result_t (*props_t)(int, void *);
typedef result_t (*listen6_t)(int, void *, void **);
typedef result_t (*listen11_t)(void *, int, void *, void **);
typedef result_t (*connect6_t)(int, void *, void **);
typedef result_t (*connect7_t)(int, void *, void **, struct device_handle **);
typedef result_t (*connect10_t)(int, struct config *, void *, void **, struct device_handle **);
typedef result_t (*connect11_t)(void *, int, void *, void **, struct device_handle **);
typedef result_t (*accept6_t)(void *, void **);
typedef result_t (*accept7_t)(void *, void **, struct device_handle **);
typedef result_t (*reg6_t)(void *, void *, int, int, void **);
typedef result_t (*reg8_t)(void *, void *, size_t, int, void **);
typedef result_t (*dmabuf_t)(void *, void *, size_t, int, uint64_t, int, void **);
typedef result_t (*dereg_t)(void *, void *);
typedef result_t (*isend6_t)(void *, void *, int, int, void *, void **);
typedef result_t (*isend9_t)(void *, void *, size_t, int, void *, void **);
typedef result_t (*isend10_t)(void *, void *, size_t, int, void *, void *, void **);
typedef result_t (*irecv6_t)(void *, int, void **, int *, int *, void **, void **);
typedef result_t (*irecv9_t)(void *, int, void **, size_t *, int *, void **, void **);
typedef result_t (*irecv10_t)(void *, int, void **, size_t *, int *, void **, void **, void **);
typedef result_t (*iflush_t)(void *, int, void **, int *, void **, void **);
typedef result_t (*test_t)(void *, int *, int *);
typedef result_t (*close_t)(void *);
typedef result_t (*device_mr_t)(void *, void *, void **);
typedef result_t (*consumed_t)(void *, int, void *);
typedef result_t (*vdevice_t)(int *, void *);
typedef result_t (*attr_t)(void *, struct attr *);
