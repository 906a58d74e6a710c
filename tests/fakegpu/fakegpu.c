// fakegpu.c: enough of a GPU for a stock, unmodified libnccl.so.2 to initialise communicators, plan collectives and call its
// plugins on a machine that has none. No data moves: of a launch there is only what NCCL's profiler sees of its kernel.
//
// NCCL reaches the GPU in three ways, and each is answered here:
//   1. the CUDA runtime, which is linked into libnccl.so.2: fakegpu_attach() redirects its public entry points, in memory, to
//      the functions of sections 2 to 5 (section 7);
//   2. the driver, by entry points that NCCL asks the runtime for (section 6);
//   3. NVML, opened by name: this library carries that name (soname), so that the loader hands out this copy (section 8).
//
// The comment above each function says in our words which promise of CUDA's documentation NCCL relies on there. A public runtime
// function, or driver function, that is not answered prints its name and fails with cudaErrorNotSupported; the tests count that as a
// failure.
//
// Use: dlopen libnccl.so.2, dlopen this library, call fakegpu_attach(), then NCCL. Linux on x86-64 only. See README.md.
// Environment: FAKEGPU_COUNT (devices, 8), FAKEGPU_SM (compute capability times ten, 90), FAKEGPU_LOG=1.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

// ---- 1. Settings, and errors as CUDA keeps them -----------------------------------------------------------------------------

// Values of cudaError_t; CUresult has the same ones.
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_SUPPORTED = 801 };

enum {
    PAGE = 4096,
    MAX_DEVICES = 64,
    FIRST_BUS = 0x10,       // PCI bus of device 0; device n sits on FIRST_BUS + n
    DRIVER_VERSION = 13000, // CUDA 13.0, which all wheels of nvidia-nccl-cu13 accept
    MULTIPROCESSORS = 132,  // as an H100 has
    SHARED_MEMORY_OPTIN = 227 * 1024,
};
static const size_t DEVICE_MEMORY = 80ull << 30;

static int device_count = 8, compute_capability = 90, log_enabled;
static __thread int current_device, last_error;

static int setting(const char *name, int otherwise, int low, int high) {
    const char *text = getenv(name);
    if (!text)
        return otherwise;
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < low || value > high) {
        dprintf(2, "[fakegpu] %s=%s is not a number from %d to %d\n", name, text, low, high);
        return otherwise;
    }
    return (int)value;
}

__attribute__((constructor)) static void read_settings(void) {
    device_count = setting("FAKEGPU_COUNT", device_count, 1, MAX_DEVICES);
    compute_capability = setting("FAKEGPU_SM", compute_capability, 60, 129);
    log_enabled = getenv("FAKEGPU_LOG") != NULL;
}

static int fail(int error) {
    last_error = error;
    return error;
}

// For what may be answered by doing nothing: everything is already finished, enabled or set.
static int succeed(void) {
    return SUCCESS;
}

// cudaGetLastError: the last error of this thread, which becomes success again.
static int get_last_error(void) {
    int error = last_error;
    last_error = SUCCESS;
    return error;
}

// cudaPeekAtLastError: the same, and it stays.
static int peek_last_error(void) {
    return last_error;
}

// cudaGetErrorString, cudaGetErrorName: text for any code.
static const char *error_text(int error) {
    switch (error) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "fakegpu: invalid argument";
    case OUT_OF_MEMORY: return "fakegpu: out of memory";
    case INVALID_DEVICE: return "fakegpu: invalid device ordinal";
    case NOT_SUPPORTED: return "fakegpu: operation not supported";
    default: return "fakegpu: unknown error";
    }
}

// ---- 2. Memory: every allocation is a mapping of host memory, and is remembered -----------------------------------------------

enum kind { DEVICE, PINNED, REGISTERED, IMPORTED };

struct allocation {
    char *base;
    size_t size;
    enum kind kind;
    int device;
    int shared_fd; // the memfd behind it once another process may open it, else -1
};

static struct allocation *allocations;
static size_t allocation_count, allocation_room;
static pthread_mutex_t allocation_lock = PTHREAD_MUTEX_INITIALIZER;

// The allocation that holds `address`, or NULL. The newest first: a registered range may lie inside another.
static struct allocation *find(const char *address) {
    for (size_t i = allocation_count; i-- > 0;) {
        struct allocation *a = &allocations[i];
        if (address >= a->base && address < a->base + a->size)
            return a;
    }
    return NULL;
}

static int remember(void *base, size_t size, enum kind kind) {
    int result = SUCCESS;
    pthread_mutex_lock(&allocation_lock);
    if (allocation_count == allocation_room) {
        size_t room = allocation_room ? 2 * allocation_room : 256;
        void *grown = realloc(allocations, room * sizeof *allocations);
        if (grown) {
            allocations = grown;
            allocation_room = room;
        } else {
            result = fail(OUT_OF_MEMORY);
        }
    }
    if (result == SUCCESS)
        allocations[allocation_count++] = (struct allocation){base, size, kind, current_device, -1};
    pthread_mutex_unlock(&allocation_lock);
    return result;
}

// A copy of what is known about `address`; false if nothing is.
static int look_up(const void *address, struct allocation *out) {
    pthread_mutex_lock(&allocation_lock);
    struct allocation *a = find(address);
    if (a)
        *out = *a;
    pthread_mutex_unlock(&allocation_lock);
    return a != NULL;
}

// Takes the allocation that begins at `base` out of the list; false if there is none.
static int forget(const void *base, struct allocation *out) {
    int found = 0;
    pthread_mutex_lock(&allocation_lock);
    for (size_t i = allocation_count; i-- > 0 && !found;) {
        if (allocations[i].base != base)
            continue;
        *out = allocations[i];
        allocations[i] = allocations[--allocation_count];
        found = 1;
    }
    pthread_mutex_unlock(&allocation_lock);
    return found;
}

static int allocate(void **out, size_t size, enum kind kind) {
    size = size ? (size + PAGE - 1) & ~(size_t)(PAGE - 1) : PAGE;
    // Not reserved: a test may "allocate" gigabytes that nobody ever touches.
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return fail(OUT_OF_MEMORY);
    int result = remember(base, size, kind);
    if (result != SUCCESS) {
        munmap(base, size);
        return result;
    }
    *out = base;
    return SUCCESS;
}

// cudaMalloc, cudaMallocAsync, cudaMallocFromPoolAsync: linear memory on the current device, not cleared, aligned for any type.
static int malloc_device(void **out, size_t size) {
    return allocate(out, size, DEVICE);
}

// cudaHostAlloc, cudaMallocHost: host memory that is page-locked and accessible to the device.
static int malloc_host(void **out, size_t size) {
    return allocate(out, size, PINNED);
}

// cudaFree, cudaFreeAsync, cudaFreeHost: frees what an allocation returned; does nothing for a null pointer.
static int free_memory(void *base) {
    struct allocation a;
    if (!base)
        return SUCCESS;
    if (!forget(base, &a))
        return fail(INVALID_VALUE);
    munmap(a.base, a.size);
    if (a.shared_fd >= 0)
        close(a.shared_fd);
    return SUCCESS;
}

// cudaHostRegister: page-locks a range of existing host memory and makes it accessible to the device.
static int host_register(void *base, size_t size) {
    return remember(base, size, REGISTERED);
}

// cudaHostUnregister: takes back cudaHostRegister; an address that was not registered is an invalid value.
static int host_unregister(void *base) {
    struct allocation a;
    return forget(base, &a) ? SUCCESS : fail(INVALID_VALUE);
}

// cudaHostGetDevicePointer: the device's address of mapped host memory; here both are one.
static int host_device_pointer(void **out, void *host) {
    *out = host;
    return SUCCESS;
}

// cudaMemcpy, cudaMemcpyAsync: copies bytes; in stream order, and streams are always idle here.
static int copy(void *to, const void *from, size_t size) {
    memmove(to, from, size);
    return SUCCESS;
}

// Makes zeros of whole pages by giving the pages back, which takes no memory and little time: NCCL clears each of its buffers, some
// megabytes for each channel, and nothing ever uses most of them. False if these pages are not ours alone.
static int drop_pages(char *from, char *to) {
    struct allocation a;
    if (from >= to || !look_up(from, &a) || (a.kind != DEVICE && a.kind != PINNED) || a.shared_fd >= 0)
        return 0;
    return to <= a.base + a.size && madvise(from, (size_t)(to - from), MADV_DONTNEED) == 0;
}

// cudaMemset, cudaMemsetAsync: fills bytes, in stream order.
static int fill(void *start, int value, size_t size) {
    char *at = start, *end = at + size;
    char *first = (char *)(((uintptr_t)at + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    char *last = (char *)((uintptr_t)end & ~(uintptr_t)(PAGE - 1));
    if (value == 0 && drop_pages(first, last)) {
        memset(at, 0, (size_t)(first - at));
        memset(last, 0, (size_t)(end - last));
    } else {
        memset(at, value, size);
    }
    return SUCCESS;
}

// The leading fields of cudaPointerAttributes, alike in CUDA 12 and 13.
struct pointer_attributes {
    int type; // 1 host, 2 device
    int device;
    void *device_pointer, *host_pointer;
};

// cudaPointerGetAttributes: type, device and addresses of a pointer. An unknown one counts as device memory, so that NCCL's
// check of pointers (NCCL_CHECK_POINTERS) lets a test pass plain buffers.
static int pointer_get_attributes(struct pointer_attributes *out, void *address) {
    struct allocation a;
    int known = look_up(address, &a);
    int host = known && (a.kind == PINNED || a.kind == REGISTERED);
    out->type = host ? 1 : 2;
    out->device = known ? a.device : current_device;
    out->device_pointer = address;
    out->host_pointer = host ? address : NULL;
    return SUCCESS;
}

// ---- 3. Memory between processes ----------------------------------------------------------------------------------------------

// cudaIpcMemHandle_t is 64 bytes that only its maker need understand; it is passed by value.
struct ipc_handle {
    int64_t pid;
    int64_t fd;
    uint64_t size;
    char *base;
    char unused[32];
};
_Static_assert(sizeof(struct ipc_handle) == 64, "cudaIpcMemHandle_t");

// Copies the pages that exist; the others are zeros on both sides. /proc/self/pagemap has 8 bytes a page, with bits for "present" and
// "swapped" (Documentation/admin-guide/mm/pagemap.rst).
static int copy_pages(char *to, const char *from, size_t size) {
    const uint64_t EXISTS = 3ull << 62;
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        return -1;
    int result = 0;
    uint64_t entries[512];
    for (size_t at = 0; at < size && result == 0; at += sizeof entries / sizeof *entries * PAGE) {
        off_t offset = (off_t)((uintptr_t)(from + at) / PAGE * sizeof *entries);
        ssize_t bytes = pread(pagemap, entries, sizeof entries, offset);
        size_t count = bytes < 0 ? 0 : (size_t)bytes / sizeof *entries;
        size_t left = (size - at) / PAGE;
        if (count < (left < 512 ? left : 512))
            result = -1;
        for (size_t i = 0; i < count && i < left; i++)
            if (entries[i] & EXISTS)
                memcpy(to + at + i * PAGE, from + at + i * PAGE, PAGE);
    }
    close(pagemap);
    return result;
}

// Puts a memfd of the same content under the allocation, at the same address, so that another process can map it. NCCL exports
// memory right after it made it, when nobody else knows the address: nothing is written meanwhile.
static int make_shared(struct allocation *a) {
    int fd = memfd_create("fakegpu", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    char *copy_of = MAP_FAILED;
    if (ftruncate(fd, (off_t)a->size) == 0)
        copy_of = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (copy_of == MAP_FAILED) {
        close(fd);
        return -1;
    }
    if (copy_pages(copy_of, a->base, a->size) != 0) {
        munmap(copy_of, a->size);
        close(fd);
        return -1;
    }
    if (mremap(copy_of, a->size, a->size, MREMAP_MAYMOVE | MREMAP_FIXED, a->base) == MAP_FAILED) {
        munmap(copy_of, a->size);
        close(fd);
        return -1;
    }
    a->shared_fd = fd;
    return 0;
}

// cudaIpcGetMemHandle: a handle by which another process can open existing device memory.
static int ipc_get_handle(struct ipc_handle *out, void *address) {
    int result = SUCCESS;
    pthread_mutex_lock(&allocation_lock);
    struct allocation *a = find(address);
    if (!a || a->kind != DEVICE)
        result = fail(INVALID_VALUE);
    else if (a->shared_fd < 0 && make_shared(a) != 0)
        result = fail(OUT_OF_MEMORY);
    else
        *out = (struct ipc_handle){.pid = getpid(), .fd = a->shared_fd, .size = a->size, .base = a->base};
    pthread_mutex_unlock(&allocation_lock);
    return result;
}

// cudaIpcOpenMemHandle: maps memory that another process exported into this one.
static int ipc_open_handle(void **out, struct ipc_handle handle) {
    if (handle.pid == getpid()) { // CUDA refuses that; NCCL uses the pointer itself between ranks of one process
        *out = handle.base;
        return SUCCESS;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)handle.pid, (long long)handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return fail(INVALID_VALUE);
    void *base = mmap(NULL, handle.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return fail(OUT_OF_MEMORY);
    *out = base;
    return remember(base, handle.size, IMPORTED);
}

// cudaIpcCloseMemHandle: unmaps memory that cudaIpcOpenMemHandle mapped; the exporter keeps it.
static int ipc_close_handle(void *base) {
    struct allocation a;
    if (look_up(base, &a) && a.kind == IMPORTED)
        return free_memory(base);
    return SUCCESS;
}

// ---- 4. Devices ---------------------------------------------------------------------------------------------------------------

// cudaGetDevice, cuCtxGetDevice: the device of the calling host thread.
static int get_device(int *out) {
    *out = current_device;
    return SUCCESS;
}

// cudaSetDevice: sets it, for the calling thread alone.
static int set_device(int device) {
    if (device < 0 || device >= device_count)
        return fail(INVALID_DEVICE);
    current_device = device;
    return SUCCESS;
}

// cudaGetDeviceCount: how many devices can be used.
static int get_device_count(int *out) {
    *out = device_count;
    return SUCCESS;
}

// cudaDriverGetVersion, cudaRuntimeGetVersion: 1000 * major + 10 * minor.
static int get_version(int *out) {
    *out = DRIVER_VERSION;
    return SUCCESS;
}

// cudaDeviceGetPCIBusId: domain, bus and device as text, within the given length.
static int get_pci_bus_id(char *out, int size, int device) {
    snprintf(out, (size_t)size, "0000:%02X:00.0", FIRST_BUS + device);
    return SUCCESS;
}

// cudaDeviceGetAttribute, cuDeviceGetAttribute (they share their numbers): one integer property of a device. What is not listed is
// 0, "no": no virtual memory management, no GPUDirect, no multicast, no DMA-BUF.
static int get_attribute(int *out, int attribute, int device) {
    switch (attribute) {
    case 16: *out = MULTIPROCESSORS; break;
    case 33: *out = FIRST_BUS + device; break; // PCI bus
    case 75: *out = compute_capability / 10; break;
    case 76: *out = compute_capability % 10; break;
    case 91: *out = 1; break; // a registered host pointer is usable on the device as it is
    case 97: *out = SHARED_MEMORY_OPTIN; break;
    default: *out = 0;
    }
    return SUCCESS;
}

// cuDeviceGetUuid: 16 bytes that tell devices apart.
static int get_uuid(char *out, int device) {
    memcpy(out, "fakegpu........", 15);
    out[15] = (char)device;
    return SUCCESS;
}

// cudaGetDeviceProperties: cudaDeviceProp. Only fields whose offset is the same in CUDA 12 and 13 are filled, and nothing behind
// them is written, since the structure grew.
static int get_properties(char *out, int device) {
    enum { UUID = 256, TOTAL_MEMORY = 288, MAJOR = 360, MINOR = 364, END = 368 };
    int major = compute_capability / 10, minor = compute_capability % 10;
    memset(out, 0, END);
    strcpy(out, "fakegpu");
    get_uuid(out + UUID, device);
    memcpy(out + TOTAL_MEMORY, &DEVICE_MEMORY, sizeof DEVICE_MEMORY);
    memcpy(out + MAJOR, &major, sizeof major);
    memcpy(out + MINOR, &minor, sizeof minor);
    return SUCCESS;
}

// cudaDeviceCanAccessPeer: whether one device may read another's memory; not its own.
static int can_access_peer(int *out, int device, int peer) {
    *out = device != peer;
    return SUCCESS;
}

// ---- 5. Streams, events and kernels: everything is finished as soon as it is asked for ------------------------------------------

// cudaStreamCreate*, cudaEventCreate*, cudaMemPoolCreate: a new handle.
static int create_handle(void **out) {
    *out = calloc(1, 16);
    return *out ? SUCCESS : fail(OUT_OF_MEMORY);
}

// cudaStreamDestroy, cudaEventDestroy, cudaMemPoolDestroy: the handle's end.
static int destroy_handle(void *handle) {
    free(handle);
    return SUCCESS;
}

// cudaStreamGetId: a number that no other stream has for the life of the program.
static int stream_get_id(void *stream, unsigned long long *out) {
    *out = (uintptr_t)stream;
    return SUCCESS;
}

// cudaStreamIsCapturing, cudaStreamGetCaptureInfo*: 0, not capturing. All versions have stream, status, id in this order; results
// beyond them are set only while a capture is under way.
static int capture_status(void *stream, int *status, uint64_t *id) {
    (void)stream;
    if (status)
        *status = 0;
    if (id)
        *id = 0;
    return SUCCESS;
}

// cudaStreamIsCapturing has no third argument, so whatever is in its register must not be used.
static int is_capturing(void *stream, int *status) {
    return capture_status(stream, status, NULL);
}

// cudaLaunchHostFunc: the function is called after all work queued before it, which is none.
static int launch_host_function(void *stream, void (*function)(void *), void *argument) {
    (void)stream;
    function(argument);
    return SUCCESS;
}

// cudaFuncGetAttributes: limits of a kernel (cudaFuncAttributes). Only fields that NCCL reads are not 0.
static int function_attributes(void *out) {
    enum { MAX_THREADS = 6, REGISTERS = 7, PTX_VERSION = 8, BINARY_VERSION = 9, BYTES = 48 };
    int *fields = out;
    memset(out, 0, BYTES);
    fields[MAX_THREADS] = 1024;
    fields[REGISTERS] = 96;
    fields[PTX_VERSION] = fields[BINARY_VERSION] = compute_capability;
    return SUCCESS;
}

// cudaGetFuncBySymbol: the driver's handle of a kernel; only ever given back to a launch.
static int function_by_symbol(void **out, const void *symbol) {
    *out = (void *)symbol;
    return SUCCESS;
}

// ---- 6. The driver --------------------------------------------------------------------------------------------------------------

// cuDeviceGet: the handle of a device by number.
static int driver_device(int *out, int ordinal) {
    if (ordinal < 0 || ordinal >= device_count)
        return INVALID_DEVICE;
    *out = ordinal;
    return SUCCESS;
}

// cuGetErrorString, cuGetErrorName.
static int driver_error_text(int error, const char **out) {
    *out = error_text(error);
    return SUCCESS;
}

// cuCtxGetCurrent: the context bound to the calling thread; one a thread, never null.
static int driver_context(void **out) {
    *out = &current_device;
    return SUCCESS;
}

// cuMemGetAddressRange: base and size of the allocation that an address lies in. An unknown address is taken for the start of a
// gibibyte, for the same reason as in pointer_get_attributes.
static int driver_address_range(void **base, size_t *size, void *address) {
    struct allocation a;
    if (!look_up(address, &a))
        a = (struct allocation){.base = address, .size = 1ul << 30};
    if (base)
        *base = a.base;
    if (size)
        *size = a.size;
    return SUCCESS;
}

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
static int driver_launch_ex(const void *config, void *function, void **parameters, void **extra) {
    (void)config, (void)function, (void)parameters;
    return run_kernel(extra);
}

// cuLaunchKernel: the same with grid, block, shared memory and stream as arguments.
static int driver_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                         unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)parameters;
    return run_kernel(extra);
}


// cuMemGetAllocationGranularity: the unit of virtual memory. There is none here (attribute 102), but NCCL 2.30 asks for it before the
// first AllGather without a look whether the function is there.
static int driver_granularity(size_t *out, const void *properties, int option) {
    (void)properties, (void)option;
    *out = 2 << 20;
    return SUCCESS;
}

// cuPointerGetAttribute: a property of the memory behind a pointer. NCCL asks whether CUDA IPC can export a buffer that was registered.
static int driver_pointer_attribute(void *out, int attribute, void *address) {
    enum { IS_LEGACY_CUDA_IPC_CAPABLE = 10 };
    struct allocation a;
    if (attribute != IS_LEGACY_CUDA_IPC_CAPABLE) {
        dprintf(2, "[fakegpu] cuPointerGetAttribute(%d) is not implemented\n", attribute);
        return NOT_SUPPORTED;
    }
    *(int *)out = look_up(address, &a) && a.kind == DEVICE;
    return SUCCESS;
}

struct entry {
    const char *name;
    void *function;
};
#define ENTRY(name, function) {name, (void *)(function)}

static const struct entry driver[] = {
    ENTRY("cuDeviceGet", driver_device),
    ENTRY("cuDeviceGetAttribute", get_attribute),
    ENTRY("cuDeviceGetUuid", get_uuid),
    ENTRY("cuGetErrorString", driver_error_text),
    ENTRY("cuGetErrorName", driver_error_text),
    ENTRY("cuCtxGetCurrent", driver_context),
    ENTRY("cuCtxSetCurrent", succeed),
    ENTRY("cuCtxGetDevice", get_device),
    ENTRY("cuMemGetAddressRange", driver_address_range),
    ENTRY("cuMemGetAllocationGranularity", driver_granularity),
    ENTRY("cuPointerGetAttribute", driver_pointer_attribute),
    ENTRY("cuLaunchKernel", driver_launch),
    ENTRY("cuLaunchKernelEx", driver_launch_ex),
};

static void *entry_in(const struct entry *table, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].function;
    return NULL;
}

// Where every function that is not in a table ends.
static int not_implemented(const char *name) {
    dprintf(2, "[fakegpu] %s is not implemented\n", name);
    return fail(NOT_SUPPORTED);
}

// Makes the code at `at` jump to `target`, with `argument` as the first argument unless that is NULL.
static int redirect(unsigned char *at, void *target, const char *argument) {
    static const unsigned char MOV_RDI[] = {0x48, 0xBF}, MOV_R11[] = {0x49, 0xBB}, JMP_R11[] = {0x41, 0xFF, 0xE3};
    unsigned char code[32];
    size_t size = 0;
#define PUT(from, bytes) (memcpy(code + size, (from), (bytes)), size += (bytes))
    if (argument) {
        PUT(MOV_RDI, sizeof MOV_RDI);
        PUT(&argument, sizeof argument);
    }
    PUT(MOV_R11, sizeof MOV_R11);
    PUT(&target, sizeof target);
    PUT(JMP_R11, sizeof JMP_R11);
#undef PUT
    // Code of `size` bytes lies in at most two pages.
    unsigned char *first = (unsigned char *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1));
    unsigned char *last = (unsigned char *)((uintptr_t)(at + size - 1) & ~(uintptr_t)(PAGE - 1));
    size_t length = (size_t)(last - first) + PAGE;
    if (mprotect(first, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return -1;
    memcpy(at, code, size);
    return mprotect(first, length, PROT_READ | PROT_EXEC);
}

// A function that says that `name` is not implemented. NCCL calls many driver functions without a look whether they are there, and a
// call of a null pointer would tell nobody what was missing.
static void *stub_of(const char *name) {
    enum { STUB = 32, STUBS = 4096 };
    static pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER;
    static unsigned char *stubs;
    static const char *names[STUBS];
    static size_t count;
    void *found = NULL;
    pthread_mutex_lock(&stub_lock);
    if (!stubs) {
        stubs = mmap(NULL, STUB * STUBS, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stubs == MAP_FAILED)
            stubs = NULL;
    }
    for (size_t i = 0; i < count && !found; i++)
        if (strcmp(names[i], name) == 0)
            found = stubs + i * STUB;
    if (!found && stubs && count < STUBS && (names[count] = strdup(name))
        && redirect(stubs + count * STUB, (void *)not_implemented, names[count]) == 0)
        found = stubs + count++ * STUB;
    pthread_mutex_unlock(&stub_lock);
    return found;
}

// cudaGetDriverEntryPointByVersion: the driver function of a name.
static int driver_entry(const char *name, void **out, unsigned version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    *out = entry_in(driver, sizeof driver / sizeof *driver, name);
    if (!*out)
        *out = stub_of(name);
    if (status)
        *status = *out ? 0 : 1; // cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound
    return SUCCESS;
}

// cudaGetDriverEntryPoint: the same without a version.
static int driver_entry_unversioned(const char *name, void **out, unsigned long long flags, int *status) {
    return driver_entry(name, out, 0, flags, status);
}

// ---- 7. The runtime, and how it is taken over --------------------------------------------------------------------------------------

static const struct entry runtime[] = {
    ENTRY("cudaDeviceCanAccessPeer", can_access_peer),
    ENTRY("cudaDeviceEnablePeerAccess", succeed),
    ENTRY("cudaDeviceGetAttribute", get_attribute),
    ENTRY("cudaDeviceGetPCIBusId", get_pci_bus_id),
    ENTRY("cudaDeviceSetLimit", succeed),
    ENTRY("cudaDeviceSynchronize", succeed),
    ENTRY("cudaDriverGetVersion", get_version),
    ENTRY("cudaEventCreate", create_handle),
    ENTRY("cudaEventCreateWithFlags", create_handle),
    ENTRY("cudaEventDestroy", destroy_handle),
    ENTRY("cudaEventQuery", succeed),
    ENTRY("cudaEventRecord", succeed),
    ENTRY("cudaEventSynchronize", succeed),
    ENTRY("cudaFree", free_memory),
    ENTRY("cudaFreeAsync", free_memory),
    ENTRY("cudaFreeHost", free_memory),
    ENTRY("cudaFuncGetAttributes", function_attributes),
    ENTRY("cudaFuncSetAttribute", succeed),
    ENTRY("cudaGetDevice", get_device),
    ENTRY("cudaGetDeviceCount", get_device_count),
    ENTRY("cudaGetDeviceProperties", get_properties),
    ENTRY("cudaGetDeviceProperties_v2", get_properties),
    ENTRY("cudaGetDriverEntryPoint", driver_entry_unversioned),
    ENTRY("cudaGetDriverEntryPointByVersion", driver_entry),
    ENTRY("cudaGetErrorName", error_text),
    ENTRY("cudaGetErrorString", error_text),
    ENTRY("cudaGetFuncBySymbol", function_by_symbol),
    ENTRY("cudaGetLastError", get_last_error),
    ENTRY("cudaHostAlloc", malloc_host),
    ENTRY("cudaHostGetDevicePointer", host_device_pointer),
    ENTRY("cudaHostRegister", host_register),
    ENTRY("cudaHostUnregister", host_unregister),
    ENTRY("cudaIpcCloseMemHandle", ipc_close_handle),
    ENTRY("cudaIpcGetMemHandle", ipc_get_handle),
    ENTRY("cudaIpcOpenMemHandle", ipc_open_handle),
    ENTRY("cudaLaunchHostFunc", launch_host_function),
    ENTRY("cudaLaunchKernel", succeed),
    ENTRY("cudaLaunchKernelExC", succeed),
    ENTRY("cudaMalloc", malloc_device),
    ENTRY("cudaMallocAsync", malloc_device),
    ENTRY("cudaMallocFromPoolAsync", malloc_device),
    ENTRY("cudaMallocHost", malloc_host),
    ENTRY("cudaMemPoolCreate", create_handle),
    ENTRY("cudaMemPoolDestroy", destroy_handle),
    ENTRY("cudaMemPoolSetAttribute", succeed),
    ENTRY("cudaMemcpy", copy),
    ENTRY("cudaMemcpyAsync", copy),
    ENTRY("cudaMemset", fill),
    ENTRY("cudaMemsetAsync", fill),
    ENTRY("cudaPeekAtLastError", peek_last_error),
    ENTRY("cudaPointerGetAttributes", pointer_get_attributes),
    ENTRY("cudaRuntimeGetVersion", get_version),
    ENTRY("cudaSetDevice", set_device),
    ENTRY("cudaStreamCreate", create_handle),
    ENTRY("cudaStreamCreateWithFlags", create_handle),
    ENTRY("cudaStreamCreateWithPriority", create_handle),
    ENTRY("cudaStreamDestroy", destroy_handle),
    ENTRY("cudaStreamGetCaptureInfo", capture_status),
    ENTRY("cudaStreamGetCaptureInfo_v2", capture_status),
    ENTRY("cudaStreamGetCaptureInfo_v3", capture_status),
    ENTRY("cudaStreamGetId", stream_get_id),
    ENTRY("cudaStreamIsCapturing", is_capturing),
    ENTRY("cudaStreamQuery", succeed),
    ENTRY("cudaStreamSynchronize", succeed),
    ENTRY("cudaStreamWaitEvent", succeed),
    ENTRY("cudaThreadExchangeStreamCaptureMode", succeed),
};

// Whether a symbol is a public function of the CUDA runtime with room for the jump. cudaPfn... are functions of NCCL's own.
static int is_runtime_function(const char *name, const Elf64_Sym *symbol) {
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF || symbol->st_size < 32)
        return 0;
    return strncmp(name, "cuda", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z' && strncmp(name, "cudaPfn", 7) != 0;
}

// Redirects the runtime functions of one symbol table. The number that is answered, or -1.
static int attach_symbols(const char *file, const Elf64_Shdr *table, const char *names, char *loaded_at) {
    const Elf64_Sym *symbols = (const void *)(file + table->sh_offset);
    int answered = 0, trapped = 0;
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        const char *name = names + symbols[i].st_name;
        if (!is_runtime_function(name, &symbols[i]))
            continue;
        void *ours = entry_in(runtime, sizeof runtime / sizeof *runtime, name);
        // The name outlives the mapping of the file.
        const char *kept = ours ? NULL : strdup(name);
        if (redirect((unsigned char *)loaded_at + symbols[i].st_value, ours ? ours : (void *)not_implemented, kept) != 0)
            return -1;
        ours ? answered++ : trapped++;
    }
    if (log_enabled)
        dprintf(2, "[fakegpu] %d functions of the CUDA runtime answered, %d trapped\n", answered, trapped);
    return answered;
}

static int attach_file(const char *file, char *loaded_at) {
    const Elf64_Ehdr *header = (const void *)file;
    const Elf64_Shdr *sections = (const void *)(file + header->e_shoff);
    for (int s = 0; s < header->e_shnum; s++)
        if (sections[s].sh_type == SHT_SYMTAB)
            return attach_symbols(file, &sections[s], file + sections[sections[s].sh_link].sh_offset, loaded_at);
    return -1;
}

static int is_nccl(struct dl_phdr_info *info, size_t size, void *out) {
    (void)size;
    if (!strstr(info->dlpi_name, "/libnccl.so"))
        return 0;
    *(struct dl_phdr_info *)out = *info;
    return 1;
}

// Takes over the CUDA runtime inside the libnccl.so that is loaded. Returns how many of its functions are answered, or -1 if none is
// loaded, it has no symbol table, or its code cannot be written. Call it once, before NCCL is used.
PUBLIC int fakegpu_attach(void) {
    struct dl_phdr_info library;
    struct stat status;
    if (!dl_iterate_phdr(is_nccl, &library))
        return -1;
    int fd = open(library.dlpi_name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    char *file = MAP_FAILED;
    if (fstat(fd, &status) == 0)
        file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return -1;
    int answered = attach_file(file, (char *)library.dlpi_addr);
    munmap(file, (size_t)status.st_size);
    return answered;
}

// What a program does with cudaSetDevice before ncclCommInitRank: our driver has no CUDA runtime of its own.
PUBLIC int fakegpu_set_device(int device) {
    return set_device(device);
}

// ---- 8. NVML: a device's handle is its number plus one. Optional parts (fabric, platform, confidential computing) are left out ------

enum { NVML_SUCCESS = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3 };
enum { PCIE_MBPS = 32000, PCIE_GENERATION = 5, PCIE_WIDTH = 16, H100 = 0x233010de };

static unsigned nvml_index(void *handle) {
    return (unsigned)(uintptr_t)handle - 1;
}

// Starts NVML; any number of times.
PUBLIC int nvmlInit_v2(void) {
    return NVML_SUCCESS;
}

PUBLIC int nvmlShutdown(void) {
    return NVML_SUCCESS;
}

PUBLIC const char *nvmlErrorString(int error) {
    return error == NVML_SUCCESS ? "success" : "fakegpu: NVML error";
}

// How many devices the machine has.
PUBLIC int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = (unsigned)device_count;
    return NVML_SUCCESS;
}

// The handle of a device by number.
PUBLIC int nvmlDeviceGetHandleByIndex(unsigned index, void **out) {
    if (index >= (unsigned)device_count)
        return NVML_INVALID_ARGUMENT;
    *out = (void *)(uintptr_t)(index + 1);
    return NVML_SUCCESS;
}

// The handle of a device by its place on the PCI bus.
PUBLIC int nvmlDeviceGetHandleByPciBusId(const char *text, void **out) {
    unsigned domain, bus;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2 || bus < FIRST_BUS)
        return NVML_INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex(bus - FIRST_BUS, out);
}

// The number of a device by its handle.
PUBLIC int nvmlDeviceGetIndex(void *handle, unsigned *out) {
    *out = nvml_index(handle);
    return NVML_SUCCESS;
}

PUBLIC int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    (void)handle;
    *major = compute_capability / 10;
    *minor = compute_capability % 10;
    return NVML_SUCCESS;
}

// 0, OK: two devices reach each other in the asked-for way.
PUBLIC int nvmlDeviceGetP2PStatus(void *handle, void *peer, int capability, int *out) {
    (void)handle, (void)peer, (void)capability;
    *out = 0;
    return NVML_SUCCESS;
}

// The first 36 bytes of nvmlPciInfo_t. NCCL passes 52 and NVML's own call fills 68, so no more than NCCL reads is written.
struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
};

PUBLIC int nvmlDeviceGetPciInfo_v3(void *handle, struct pci_info *out) {
    memset(out, 0, sizeof *out);
    out->bus = FIRST_BUS + nvml_index(handle);
    out->device_id = H100;
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "0000:%02X:00.0", out->bus & 0xff);
    return NVML_SUCCESS;
}

PUBLIC int nvmlDeviceGetFieldValues(void *handle, int count, void *values) {
    (void)handle, (void)count, (void)values;
    return NVML_NOT_SUPPORTED;
}

// No NVLink: a topology file says otherwise where a test wants some.
PUBLIC int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active) {
    (void)handle, (void)link;
    *active = 0;
    return NVML_NOT_SUPPORTED;
}

PUBLIC int nvmlDeviceGetNvLinkRemotePciInfo(void *handle, unsigned link, void *pci) {
    (void)handle, (void)link, (void)pci;
    return NVML_NOT_SUPPORTED;
}

PUBLIC int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *pci) {
    return nvmlDeviceGetNvLinkRemotePciInfo(handle, link, pci);
}

PUBLIC int nvmlDeviceGetNvLinkCapability(void *handle, unsigned link, int capability, unsigned *out) {
    (void)handle, (void)link, (void)capability;
    *out = 0;
    return NVML_NOT_SUPPORTED;
}

// The next three are asked when sysfs does not know the GPU's slot and there is no topology file; NCCL does not check that they
// exist before it calls them.
PUBLIC int nvmlDeviceGetPcieLinkMaxSpeed(void *handle, unsigned *out) {
    (void)handle;
    *out = PCIE_MBPS;
    return NVML_SUCCESS;
}

PUBLIC int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *out) {
    (void)handle;
    *out = PCIE_GENERATION;
    return NVML_SUCCESS;
}

PUBLIC int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *out) {
    (void)handle;
    *out = PCIE_WIDTH;
    return NVML_SUCCESS;
}
