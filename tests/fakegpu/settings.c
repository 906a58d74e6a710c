// Settings from the environment, and errors as CUDA keeps them.
#include "fakegpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int device_count = 8, compute_capability = 90, log_enabled;
__thread int current_device;
static __thread int last_error;

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

int fail(int error) {
    last_error = error;
    return error;
}

// For what may be answered by doing nothing: everything is already finished, enabled or set.
int succeed(void) {
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
const char *error_text(int error) {
    switch (error) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "fakegpu: invalid argument";
    case OUT_OF_MEMORY: return "fakegpu: out of memory";
    case INVALID_DEVICE: return "fakegpu: invalid device ordinal";
    case NOT_SUPPORTED: return "fakegpu: operation not supported";
    default: return "fakegpu: unknown error";
    }
}

const struct entry error_functions[] = {
    ENTRY("cudaGetErrorName", error_text),
    ENTRY("cudaGetErrorString", error_text),
    ENTRY("cudaGetLastError", get_last_error),
    ENTRY("cudaPeekAtLastError", peek_last_error),
    {NULL, NULL},
};
