// The driver, by the entry points that NCCL asks the runtime for.
#include "fakegpu.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    {NULL, NULL},
};

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
    *out = entry_in(driver, name);
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

const struct entry driver_functions[] = {
    ENTRY("cudaGetDriverEntryPoint", driver_entry_unversioned),
    ENTRY("cudaGetDriverEntryPointByVersion", driver_entry),
    {NULL, NULL},
};
