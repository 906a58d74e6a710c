// Every allocation is a mapping of host memory, and is remembered.
#include "fakegpu.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
int look_up(const void *address, struct allocation *out) {
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

// ---- Memory between processes

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

const struct entry memory_functions[] = {
    ENTRY("cudaFree", free_memory),
    ENTRY("cudaFreeAsync", free_memory),
    ENTRY("cudaFreeHost", free_memory),
    ENTRY("cudaHostAlloc", malloc_host),
    ENTRY("cudaHostGetDevicePointer", host_device_pointer),
    ENTRY("cudaHostRegister", host_register),
    ENTRY("cudaHostUnregister", host_unregister),
    ENTRY("cudaIpcCloseMemHandle", ipc_close_handle),
    ENTRY("cudaIpcGetMemHandle", ipc_get_handle),
    ENTRY("cudaIpcOpenMemHandle", ipc_open_handle),
    ENTRY("cudaMalloc", malloc_device),
    ENTRY("cudaMallocAsync", malloc_device),
    ENTRY("cudaMallocFromPoolAsync", malloc_device),
    ENTRY("cudaMallocHost", malloc_host),
    ENTRY("cudaMemcpy", copy),
    ENTRY("cudaMemcpyAsync", copy),
    ENTRY("cudaMemset", fill),
    ENTRY("cudaMemsetAsync", fill),
    ENTRY("cudaPointerGetAttributes", pointer_get_attributes),
    {NULL, NULL},
};
