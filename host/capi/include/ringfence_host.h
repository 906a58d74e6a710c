/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ringfence_host.h: asking policies for decisions of your own. Made from host/capi/src; do not edit.
 *
 *     rf_host *host; rf_hook *hook; rf_error err;
 *     const char *schema = "ep_mode.toml";
 *     rf_options options = { sizeof options, NULL, &schema, 1 };
 *     if (rf_open(&options, &host, &err) < 0) give_up(err.text);
 *     if (rf_hook_open(host, "ep/mode", sizeof(struct EpModeContext), NULL, &hook, &err) < 0) give_up(err.text);
 *
 *     struct EpModeContext ctx = { .n_tokens = 128, .mode = my_own_choice };
 *     rf_decide(hook, &ctx, sizeof ctx, NULL);
 *     use(ctx.mode);                             // a policy's choice, or still your own
 *
 * The struct comes from the schema: `ringfence schema header ep_mode.toml > ep_mode.h`.
 *
 * Rules for every function. A pointer is NULL, or points to what its type says for as long as the call lasts: strings end in a NUL,
 * and memory that is written is used by nobody else meanwhile. NULL where it is not allowed is an error, not a crash.
 * rf_host and rf_hook are no pointers to memory: a handle that was closed is refused, never followed.
 * Nothing throws, nothing ends the process, and no signal handler is installed. After a fork, the child opens hosts and hooks anew.
 * Log lines go to standard error as far as RINGFENCE_LOG says (error, warn, info, debug, trace; warn unless it is set).
 */
#ifndef RINGFENCE_HOST_H
#define RINGFENCE_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles, see above. */
typedef struct rf_host rf_host;
typedef struct rf_hook rf_hook;

/* Done. */
#define RF_OK 0
/*
 * Done, but the policies were refused and none is in force from them; the text says why. The host takes a
 * corrected set when it appears.
 */
#define RF_REFUSED 1
/* A null or misaligned pointer, text that is no UTF-8, a struct that does not begin with its size. */
#define RF_ERR_ARGUMENT (-1)
/* No such host or hook: never opened, closed, or in use by another thread at this moment. */
#define RF_ERR_HANDLE (-2)
/* No schema for the hook, or one that cannot be read; the text says which. */
#define RF_ERR_SCHEMA (-3)
/* The context, key or value does not have the size that the schema or the map says. */
#define RF_ERR_SIZE (-4)
/* No map of that name, or no such key in it. */
#define RF_ERR_NOT_FOUND (-5)
/* The map does not take this: it is full, the key is there already, or its kind has no such operation. */
#define RF_ERR_MAP (-6)
/* Too many hosts, hooks or schemas in this process. */
#define RF_ERR_LIMIT (-7)
/* A defect of Ringfence was stopped at the border. What it was inside of stays closed. */
#define RF_ERR_INTERNAL (-8)

/* Why a call did not do what was asked. Every function that takes one takes NULL as well. */
typedef struct rf_error {
	/* The result of the call, RF_OK included. */
	int32_t code;
	/* 0. */
	uint32_t reserved;
	/* One line, with what to do; empty if all is well. NUL-terminated UTF-8, cut to fit. */
	char text[504];
} rf_error;

/* What rf_open reads. Members that a newer header adds come behind these, and count if struct_size says that they are there. */
typedef struct rf_options {
	/* sizeof(rf_options). */
	size_t struct_size;
	/* A policy object or directory; NULL: what RINGFENCE_POLICY names, and none if that is unset. */
	const char *policy;
	/* Files of schemas, beside those that the policy directory's manifest names. May be NULL if n_schemas is 0. */
	const char *const *schemas;
	/* How many. */
	size_t n_schemas;
} rf_options;

/* Who decides alike: a communicator of the library's own, or a group of ranks. */
typedef struct rf_group {
	/* sizeof(rf_group). */
	size_t struct_size;
	/* A number that all ranks of the group share; 0 if there is none. For logs. */
	uint64_t id;
	/*
	 * Ranks; 0 and 1 mean this caller alone. In a group of several, whose schema says that the ranks decide alike
	 * (a decided field with rank = "uniform"), new policies are taken by new hooks only.
	 */
	uint32_t n_ranks;
	/* Nodes; 0 if nobody knows. */
	uint32_t n_nodes;
} rf_group;

/* What came of one decision. */
typedef struct rf_outcome {
	/* Policies on the hook. */
	uint32_t policies;
	/* Those that submitted a decision. */
	uint32_t submitted;
	/* Those that faulted and were skipped, or whose decision the schema does not allow, which was put back. */
	uint32_t faults;
	/* 0. */
	uint32_t reserved;
} rf_outcome;

/* State of a host. */
typedef struct rf_host_stats {
	/* sizeof(rf_host_stats), set by the caller. */
	size_t struct_size;
	/* Counts up with every set that is put in force. */
	uint64_t generation;
	/* Policies of the set in force, on all hooks. */
	uint32_t policies;
	/* Hooks that are open, and communicators of NCCL that use this host. */
	uint32_t endpoints;
	/* Attempts to load a set so far. */
	uint64_t loads;
	/* 1 if the latest attempt was refused. */
	uint32_t refused;
	/* 0. */
	uint32_t reserved;
	/* Bytes of all maps. */
	uint64_t map_bytes;
	/* Defects of Ringfence that were stopped at the border, in this process. */
	uint64_t panics;
} rf_host_stats;

/* What came of all decisions of a hook. */
typedef struct rf_totals {
	/* sizeof(rf_totals), set by the caller. */
	size_t struct_size;
	/* Generation of the set that the hook uses. */
	uint64_t generation;
	/* Decisions. */
	uint64_t decisions;
	/* Decisions that policies submitted. */
	uint64_t submitted;
	/* Faults, and decisions that were put back. */
	uint64_t faults;
} rf_totals;

/* Shape of a map. */
typedef struct rf_map_shape {
	/* sizeof(rf_map_shape), set by the caller. */
	size_t struct_size;
	/* Bytes of a key; 0 for a ring buffer. */
	uint32_t key_size;
	/* Bytes of a value; 0 for a ring buffer. */
	uint32_t value_size;
	/* Most entries. */
	uint32_t max_entries;
	/* Entries in use. */
	uint32_t entries;
} rf_map_shape;

/*
 * Is called for each entry of a map: arg as given, then key and value, which are copies and gone when it returns. 0 goes on,
 * anything else ends the walk. It may call anything of this API, and must not throw or longjmp.
 */
typedef int32_t (*rf_visit)(void *arg, const void *key, size_t key_size, const void *value, size_t value_size);

/* Version of the library, as "0.1.0". Never NULL. */
const char *rf_version(void);

/*
 * Opens a host: reads schemas and policies, and watches the policies from then on, on a thread of its own, until the last
 * host and hook are closed. Callers in one process that name the same policies share them, and their maps.
 * RF_OK; RF_REFUSED (the host is open, see there); or an error, and *out is NULL. Any thread. May take a second: policies
 * are verified and compiled here. options may be NULL: all defaults.
 */
int32_t rf_open(const rf_options *options, rf_host **out, rf_error *err);

/*
 * Opens a place where policies are asked. hook is the schema's name, as "ep/mode"; context_size is sizeof the caller's
 * struct, and must be the schema's. A hook without policies is no error: rf_decide then leaves everything as it is, until policies appear.
 * group may be NULL: this caller alone. Any thread.
 */
int32_t rf_hook_open(rf_host *host, const char *hook, size_t context_size, const rf_group *group, rf_hook **out, rf_error *err);

/* Fills a context with zeros and each decided field with the schema's default. ctx has size bytes. */
int32_t rf_context_init(rf_hook *hook, void *ctx, size_t size);

/*
 * Asks the policies on a hook, in the order of the manifest. ctx is the context, of size bytes; its decided fields come in with
 * the caller's own choice, and are left as the policies decided, within what the schema allows. On any result but RF_OK,
 * ctx is as it was: the caller goes on with its own choice. outcome may be NULL.
 * One thread at a time for a hook; another one is turned away with RF_ERR_HANDLE. Allocates nothing and makes no system
 * call; what a policy may use is bounded by its fuel.
 */
int32_t rf_decide(rf_hook *hook, void *ctx, size_t size, rf_outcome *outcome);

/* Shape of a map that policies on the hook use, by its name. Any thread; so are all functions of maps. */
int32_t rf_map_info(rf_hook *hook, const char *map, rf_map_shape *info, rf_error *err);

/* Copies the value of a key. RF_ERR_NOT_FOUND if there is none. */
int32_t rf_map_get(rf_hook *hook, const char *map, const void *key, size_t key_size, void *value, size_t value_size, rf_error *err);

/*
 * Sets the value of a key. flags: 0 create or replace, 1 create only, 2 replace only, as bpf_map_update_elem.
 * Aligned 8-byte words of the value are never torn; two words may be of two updates.
 */
int32_t rf_map_set(rf_hook *hook, const char *map, const void *key, size_t key_size, const void *value, size_t value_size, uint64_t flags, rf_error *err);

/* Removes a key. */
int32_t rf_map_delete(rf_hook *hook, const char *map, const void *key, size_t key_size, rf_error *err);

/* Calls visit for each entry, in no order that means anything. Entries that come or go meanwhile may be missing. */
int32_t rf_map_iterate(rf_hook *hook, const char *map, rf_visit visit, void *arg, rf_error *err);

/*
 * Reads the policies again now, on this thread, rather than when the directory changes. RF_OK if what is there is in force;
 * RF_REFUSED with the reason if it is refused, and what was in force stays. Any thread.
 */
int32_t rf_reload(rf_host *host, rf_error *err);

/* State of a host. Any thread. */
int32_t rf_stats(rf_host *host, rf_host_stats *stats);

/* What came of all decisions of a hook. Any thread. */
int32_t rf_hook_stats(rf_hook *hook, rf_totals *stats);

/* Closes a hook; NULL is fine. Any thread, once no other is inside. */
int32_t rf_hook_close(rf_hook *hook);

/* Closes a host; NULL is fine. Hooks that are still open keep working until they are closed. Any thread. */
int32_t rf_close(rf_host *host);

#ifdef __cplusplus
}
#define RF_ASSERT(what) static_assert(what, "the layout of libringfence")
#else
#define RF_ASSERT(what) _Static_assert(what, "the layout of libringfence")
#endif
RF_ASSERT(sizeof(rf_error) == 512);
RF_ASSERT(offsetof(rf_error, code) == 0);
RF_ASSERT(offsetof(rf_error, reserved) == 4);
RF_ASSERT(offsetof(rf_error, text) == 8);
RF_ASSERT(sizeof(rf_options) == 32);
RF_ASSERT(offsetof(rf_options, struct_size) == 0);
RF_ASSERT(offsetof(rf_options, policy) == 8);
RF_ASSERT(offsetof(rf_options, schemas) == 16);
RF_ASSERT(offsetof(rf_options, n_schemas) == 24);
RF_ASSERT(sizeof(rf_group) == 24);
RF_ASSERT(offsetof(rf_group, struct_size) == 0);
RF_ASSERT(offsetof(rf_group, id) == 8);
RF_ASSERT(offsetof(rf_group, n_ranks) == 16);
RF_ASSERT(offsetof(rf_group, n_nodes) == 20);
RF_ASSERT(sizeof(rf_outcome) == 16);
RF_ASSERT(offsetof(rf_outcome, policies) == 0);
RF_ASSERT(offsetof(rf_outcome, submitted) == 4);
RF_ASSERT(offsetof(rf_outcome, faults) == 8);
RF_ASSERT(offsetof(rf_outcome, reserved) == 12);
RF_ASSERT(sizeof(rf_host_stats) == 56);
RF_ASSERT(offsetof(rf_host_stats, struct_size) == 0);
RF_ASSERT(offsetof(rf_host_stats, generation) == 8);
RF_ASSERT(offsetof(rf_host_stats, policies) == 16);
RF_ASSERT(offsetof(rf_host_stats, endpoints) == 20);
RF_ASSERT(offsetof(rf_host_stats, loads) == 24);
RF_ASSERT(offsetof(rf_host_stats, refused) == 32);
RF_ASSERT(offsetof(rf_host_stats, reserved) == 36);
RF_ASSERT(offsetof(rf_host_stats, map_bytes) == 40);
RF_ASSERT(offsetof(rf_host_stats, panics) == 48);
RF_ASSERT(sizeof(rf_totals) == 40);
RF_ASSERT(offsetof(rf_totals, struct_size) == 0);
RF_ASSERT(offsetof(rf_totals, generation) == 8);
RF_ASSERT(offsetof(rf_totals, decisions) == 16);
RF_ASSERT(offsetof(rf_totals, submitted) == 24);
RF_ASSERT(offsetof(rf_totals, faults) == 32);
RF_ASSERT(sizeof(rf_map_shape) == 24);
RF_ASSERT(offsetof(rf_map_shape, struct_size) == 0);
RF_ASSERT(offsetof(rf_map_shape, key_size) == 8);
RF_ASSERT(offsetof(rf_map_shape, value_size) == 12);
RF_ASSERT(offsetof(rf_map_shape, max_entries) == 16);
RF_ASSERT(offsetof(rf_map_shape, entries) == 20);
#undef RF_ASSERT
#endif
