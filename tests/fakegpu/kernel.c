// What a launched kernel leaves behind.
#include "fakegpu.h"
#include <stdio.h>
#include <time.h>

// The launch of a kernel of NCCL's. Nothing is computed, but NCCL's profiler thread waits for what a kernel would have written, two
// tables in pinned memory with 64 channels of 64 places each: a counter (the work that last began, or ended, in that place) and
// the GPU's clock at that moment. Without them a communicator whose profiler asked for kernel events never ends. A kernel that is finished as
// soon as it is launched leaves a counter that every work has reached.
enum { CHANNELS = 64, PLACES = 64 };
struct kernel_times {
    struct {
        uint64_t counter, nanoseconds;
    } places[PLACES];
};

// The argument block of NCCL's kernels, 2.27 to 2.32: the communicator's part on the device, and the channels that the launch is for.
struct kernel_arguments {
    void **communicator;
    uint64_t channels;
};

// cuLaunchKernel: `extra` is a list of pairs; CU_LAUNCH_PARAM_BUFFER_POINTER (1) comes before the address of the argument block.
static const struct kernel_arguments *argument_block(void **extra) {
    for (; extra && extra[0]; extra += 2)
        if (extra[0] == (void *)1)
            return extra[1];
    return NULL;
}

// One of the two tables, if `address` is: pinned, and of their size. Other pinned memory of a communicator is smaller or larger.
static struct kernel_times *times_at(void *address) {
    struct allocation a;
    int is = look_up(address, &a) && a.base == address && a.kind == PINNED && a.size == CHANNELS * sizeof(struct kernel_times);
    return is ? address : NULL;
}

// The ends are written before the starts, and the counters last: a reader that has seen a start finds an end that is not before it.
static void tell_times(struct kernel_times *started, struct kernel_times *completed, uint64_t channels) {
    enum { DURATION = 1000 };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t start = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    for (int c = 0; c < CHANNELS; c++)
        for (int i = 0; channels >> c & 1 && i < PLACES; i++) {
            __atomic_store_n(&completed[c].places[i].nanoseconds, start + DURATION, __ATOMIC_RELEASE);
            __atomic_store_n(&started[c].places[i].nanoseconds, start, __ATOMIC_RELEASE);
            __atomic_store_n(&completed[c].places[i].counter, UINT64_MAX, __ATOMIC_RELEASE);
            __atomic_store_n(&started[c].places[i].counter, UINT64_MAX, __ATOMIC_RELEASE);
        }
}

// The tables' addresses stand side by side in the communicator's part, within its first 16 words in all releases; where, differs.
static int run_kernel(void **extra) {
    enum { WORDS = 16 };
    const struct kernel_arguments *arguments = argument_block(extra);
    struct allocation a;
    if (!arguments || !look_up(arguments->communicator, &a))
        return SUCCESS;
    for (int i = 0; i + 1 < WORDS; i++) {
        struct kernel_times *started = times_at(arguments->communicator[i]);
        struct kernel_times *completed = started ? times_at(arguments->communicator[i + 1]) : NULL;
        if (!completed)
            continue;
        tell_times(started, completed, arguments->channels);
        return SUCCESS;
    }
    if (log_enabled)
        dprintf(2, "[fakegpu] a launch without the profiler's tables\n");
    return SUCCESS;
}

// cuLaunchKernelEx: launches a kernel as `config` says; it runs after what its stream holds, which is nothing here.
int driver_launch_ex(const void *config, void *function, void **parameters, void **extra) {
    (void)config, (void)function, (void)parameters;
    return run_kernel(extra);
}

// cuLaunchKernel: the same with grid, block, shared memory and stream as arguments.
int driver_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                         unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)parameters;
    return run_kernel(extra);
}
