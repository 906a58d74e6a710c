/* The baseline: what an empty profiler plugin costs. Version 6 by its layout (profiler_v6.h); asks for collectives and
 * kernels, gives one handle for everything, keeps nothing. */
#include <stddef.h>
#include <stdint.h>

static int event;

static int init(void **ctx, uint64_t comm, int *mask, const char *name, int nodes, int ranks, int rank, void *log) {
  (void)comm; (void)name; (void)nodes; (void)ranks; (void)rank; (void)log;
  *ctx = &event;
  *mask |= 0x42;
  return 0;
}

static int start(void *ctx, void **handle, void *descr) { (void)descr; *handle = ctx; return 0; }
static int stop(void *handle) { (void)handle; return 0; }
static int state(void *handle, int number, void *args) { (void)handle; (void)number; (void)args; return 0; }
static int finalize(void *ctx) { (void)ctx; return 0; }

struct profiler_v6 {
  const char *name;
  int (*init)(void **, uint64_t, int *, const char *, int, int, int, void *);
  int (*start)(void *, void **, void *);
  int (*stop)(void *);
  int (*state)(void *, int, void *);
  int (*finalize)(void *);
};
const struct profiler_v6 ncclProfiler_v6 = {"native", init, start, stop, state, finalize};
