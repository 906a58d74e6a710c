// Devices, streams and events. Everything that is asked for is finished at once.
#include "fakegpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRIVER_VERSION = 13000, // CUDA 13.0, which all wheels of nvidia-nccl-cu13 accept
    MULTIPROCESSORS = 132,  // as an H100 has
    SHARED_MEMORY_OPTIN = 227 * 1024,
};
static const size_t DEVICE_MEMORY = 80ull << 30;

// cudaGetDevice, cuCtxGetDevice: the device of the calling host thread.
int get_device(int *out) {
    *out = current_device;
    return SUCCESS;
}

// cudaSetDevice: sets it, for the calling thread alone.
int set_device(int device) {
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
int get_attribute(int *out, int attribute, int device) {
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
int get_uuid(char *out, int device) {
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

// ---- Streams, events and attributes of kernels

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

const struct entry device_functions[] = {
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
    ENTRY("cudaFuncGetAttributes", function_attributes),
    ENTRY("cudaFuncSetAttribute", succeed),
    ENTRY("cudaGetDevice", get_device),
    ENTRY("cudaGetDeviceCount", get_device_count),
    ENTRY("cudaGetDeviceProperties", get_properties),
    ENTRY("cudaGetDeviceProperties_v2", get_properties),
    ENTRY("cudaGetFuncBySymbol", function_by_symbol),
    ENTRY("cudaLaunchHostFunc", launch_host_function),
    ENTRY("cudaLaunchKernel", succeed),
    ENTRY("cudaLaunchKernelExC", succeed),
    ENTRY("cudaMemPoolCreate", create_handle),
    ENTRY("cudaMemPoolDestroy", destroy_handle),
    ENTRY("cudaMemPoolSetAttribute", succeed),
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
    {NULL, NULL},
};
