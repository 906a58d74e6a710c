/* The baseline: what a hand-written tuner plugin costs. Tuner v5 by its layout (nccl_tuner.h), behaviour chosen by
 * NATIVE_POLICY: noop, or size_aware (the same table as policies/c/size_aware.bpf.c). */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int (*decide)(size_t, int, size_t, int *, int *, int *); size_t ranks; } context;

static int noop(size_t bytes, int func, size_t ranks, int *algo, int *proto, int *channels) {
  (void)bytes; (void)func; (void)ranks; (void)algo; (void)proto; (void)channels;
  return 0;
}

static int size_aware(size_t bytes, int func, size_t ranks, int *algo, int *proto, int *channels) {
  *algo = func == 4 && bytes <= (1 << 15) ? 0 : 1;
  *proto = bytes < 4096 ? 2 : bytes < (1 << 20) ? 0 : 2;
  *channels = bytes < 4096 ? 2 : bytes < (1 << 20) ? 4 : func == 4 && ranks >= 8 ? 10 : 8;
  return 1;
}

static int init(void **ctx, uint64_t comm, size_t ranks, size_t nodes, void *log, void *nvl, void *constants) {
  (void)comm; (void)nodes; (void)log; (void)nvl; (void)constants;
  const char *policy = getenv("NATIVE_POLICY");
  context *c = malloc(sizeof *c);
  if (!c) return 2;
  c->decide = policy && strcmp(policy, "noop") == 0 ? noop : size_aware;
  c->ranks = ranks;
  *ctx = c;
  return 0;
}

static int get_coll_info(void *ctx, int func, size_t bytes, int pipe_ops, float **table, int num_algo, int num_proto,
                         int reg_buff, int *channels) {
  (void)pipe_ops; (void)reg_buff;
  context *c = ctx;
  float *cost = (float *)table;
  int algo, proto, n;
  if (!c->decide(bytes, func, c->ranks, &algo, &proto, &n)) return 0;
  if (algo < num_algo && proto < num_proto && cost[algo * num_proto + proto] != -1.0f) {
    cost[algo * num_proto + proto] = 0.0f;
    *channels = n;
  }
  return 0;
}

static int finalize(void *ctx) { free(ctx); return 0; }

struct tuner_v5 {
  const char *name;
  int (*init)(void **, uint64_t, size_t, size_t, void *, void *, void *);
  int (*get_coll_info)(void *, int, size_t, int, float **, int, int, int, int *);
  int (*finalize)(void *);
};
const struct tuner_v5 ncclTunerPlugin_v5 = {"native", init, get_coll_info, finalize};
