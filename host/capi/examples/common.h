/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the examples share: a seeded generator of random numbers, and opening a hook or giving up. */
#ifndef RINGFENCE_EXAMPLES_COMMON_H
#define RINGFENCE_EXAMPLES_COMMON_H

#include "ringfence_host.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64: the same numbers on every machine. */
static inline uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* In (0, 1). */
static inline double uniform(uint64_t *state)
{
	return ((double)(draw(state) >> 11) + 0.5) / 9007199254740992.0;
}

static inline void check(int32_t code, const rf_error *err, const char *what)
{
	if (code == RF_OK)
		return;
	fprintf(stderr, "%s: %d: %s\n", what, code, err->text);
	exit(1);
}

/* A host for a policy and a schema, and its hook. */
static inline rf_hook *open_hook(const char *policy, const char *schema, const char *name, size_t context_size,
				 const rf_group *group, rf_host **host)
{
	rf_options options = { .struct_size = sizeof options, .policy = policy, .schemas = &schema, .n_schemas = 1 };
	rf_hook *hook = NULL;
	rf_error err;

	check(rf_open(&options, host, &err), &err, "rf_open");
	check(rf_hook_open(*host, name, context_size, group, &hook, &err), &err, "rf_hook_open");
	return hook;
}

/* An entry of an array map of __u32, set by the operator: here from NAME:INDEX=VALUE on the command line. */
static inline void set_entry(rf_hook *hook, const char *text)
{
	char name[64];
	uint32_t index, value;
	rf_error err;

	if (sscanf(text, "%63[^:]:%u=%u", name, &index, &value) != 3) {
		fprintf(stderr, "%s is not MAP:INDEX=VALUE\n", text);
		exit(2);
	}
	check(rf_map_set(hook, name, &index, sizeof index, &value, sizeof value, 0, &err), &err, "rf_map_set");
}

#endif
