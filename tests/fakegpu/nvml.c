// NVML: a device's handle is its number plus one. Optional parts (fabric, platform, confidential computing) are left out.
#include "fakegpu.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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
