// fakegpu: enough of a GPU for a stock, unmodified libnccl.so.2 to initialise communicators, plan collectives and call its
// plugins on a machine that has none. No data moves: of a launch there is only what NCCL's profiler sees of its kernel.
//
// NCCL reaches the GPU in three ways, and each is answered here:
//   1. the CUDA runtime, which is linked into libnccl.so.2: fakegpu_attach() redirects its public entry points, in memory, to
//      the functions of settings.c, memory.c, device.c (attach.c);
//   2. the driver, by entry points that NCCL asks the runtime for (driver.c, kernel.c);
//   3. NVML, opened by name: this library carries that name (soname), so that the loader hands out this copy (nvml.c).
//
// All files make one library. The comment above each function says in our words which promise of CUDA's documentation NCCL relies on there. A public runtime
// function, or driver function, that is not answered prints its name and fails with cudaErrorNotSupported; the tests count that as a
// failure.
//
// Use: dlopen libnccl.so.2, dlopen this library, call fakegpu_attach(), then NCCL. Linux on x86-64 only. See README.md.
// Environment: FAKEGPU_COUNT (devices, 8), FAKEGPU_SM (compute capability times ten, 90), FAKEGPU_LOG=1.
#ifndef FAKEGPU_H
#define FAKEGPU_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

// All else is hidden (-fvisibility=hidden).
#define PUBLIC __attribute__((visibility("default")))

// Values of cudaError_t; CUresult has the same ones.
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_SUPPORTED = 801 };

enum {
    PAGE = 4096,
    MAX_DEVICES = 64,
    FIRST_BUS = 0x10, // PCI bus of device 0; device n sits on FIRST_BUS + n
};

// settings.c
extern int device_count, compute_capability, log_enabled;
extern __thread int current_device;
int fail(int error);
int succeed(void);
const char *error_text(int error);

// memory.c
enum kind { DEVICE, PINNED, REGISTERED, IMPORTED };

struct allocation {
    char *base;
    size_t size;
    enum kind kind;
    int device;
    int shared_fd; // the memfd behind it once another process may open it, else -1
};

int look_up(const void *address, struct allocation *out);

// device.c
int get_device(int *out);
int set_device(int device);
int get_attribute(int *out, int attribute, int device);
int get_uuid(char *out, int device);

// kernel.c
int driver_launch_ex(const void *config, void *function, void **parameters, void **extra);
int driver_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra);

// attach.c
struct entry {
    const char *name;
    void *function;
};
#define ENTRY(name, function) {name, (void *)(function)}

// The function of a name in a table that ends with a null name; NULL if it is not there.
void *entry_in(const struct entry *table, const char *name);
int not_implemented(const char *name);
int redirect(unsigned char *at, void *target, const char *argument);

// The functions of the CUDA runtime that are answered, by file.
extern const struct entry error_functions[], memory_functions[], device_functions[], driver_functions[];

#endif
