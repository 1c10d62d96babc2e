/* Questions about devices, contexts, and starting anew. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>

#include "internal.h"

enum { ComputeUnits = 104, WarpSize = 64 };
static const char device_name[] = "Stand-in GPU", architecture[] = "gfx90a:sramecc+:xnack-";

#if GENERATION == 5 && MINOR < 7
enum { Version = 50221153 };
#elif GENERATION == 5
enum { Version = 50731921 };
#elif GENERATION == 6
enum { Version = 60443484 };
#else
enum { Version = 70253211 };
#endif

hipError_t do_hipInit(unsigned flags)
{
    return flags ? hipErrorInvalidValue : hipSuccess;
}

static hipError_t answer(int *place, int value)
{
    if (!place)
        return hipErrorInvalidValue;
    *place = value;
    return hipSuccess;
}

hipError_t do_hipRuntimeGetVersion(int *version)
{
    return answer(version, Version);
}

hipError_t do_hipDriverGetVersion(int *version)
{
    return answer(version, Version);
}

hipError_t do_hipGetDeviceCount(int *count)
{
    hipError_t error = answer(count, visible_count);
    return error == hipSuccess && visible_count == 0 ? hipErrorNoDevice : error;
}

hipError_t do_hipGetDevice(int *device)
{
    return answer(device, current_ordinal());
}

hipError_t do_hipSetDevice(int device)
{
    if (device_on_board(device) < 0)
        return hipErrorInvalidDevice;
    set_current_ordinal(device);
    return hipSuccess;
}

hipError_t do_hipDeviceGet(hipDevice_t *device, int ordinal)
{
    if (device_on_board(ordinal) < 0)
        return hipErrorInvalidDevice;
    return answer(device, ordinal);
}

/* Copies a text as far as it fits. False: not all of it did. */
static bool give_text(char *out, int length, const char *text)
{
    snprintf(out, (size_t)length, "%s", text);
    return strlen(text) < (size_t)length;
}

hipError_t do_hipDeviceGetName(char *name, int length, hipDevice_t device)
{
    if (!name || length <= 0)
        return hipErrorInvalidValue;
    if (device_on_board(device) < 0)
        return hipErrorInvalidDevice;
    return give_text(name, length, device_name) ? hipSuccess : hipErrorInvalidValue;
}

/* The partitions of one board have one address. 5.x writes 0 for the function. */
hipError_t do_hipDeviceGetPCIBusId(char *id, int length, int ordinal)
{
    int place = device_on_board(ordinal);
    if (place < 0)
        return hipErrorInvalidDevice;
    if (!id || length <= 0)
        return hipErrorInvalidValue;
    const struct device *device = &board[place];
    char text[32];
    snprintf(text, sizeof text, "%04x:%02x:%02x.%01x", device->domain, device->bus, device->device,
             GENERATION == 5 ? 0 : device->function);
    return give_text(id, length, text) ? hipSuccess : hipErrorInvalidValue;
}

/* ROCr's UUID without its "GPU-": 16 digits and no terminator, "XX" for a GPU that has none. Seen on 5.7.1, 6.4.3 and
 * 7.2.4. */
hipError_t do_hipDeviceGetUuid(hipUUID *uuid, hipDevice_t ordinal)
{
    int place = device_on_board(ordinal);
    if (!uuid)
        return hipErrorInvalidValue;
    if (place < 0)
        return hipErrorInvalidDevice;
    char text[sizeof uuid->bytes + 1] = "XX";
    if (board[place].unique_id)
        snprintf(text, sizeof text, "%016" PRIx64, board[place].unique_id);
    memcpy(uuid->bytes, text, sizeof uuid->bytes);
    return hipSuccess;
}

hipError_t do_hipDeviceGetByPCIBusId(int *device, const char *id)
{
    unsigned domain, bus, number;
    if (!device || !id || sscanf(id, "%4x:%2x:%2x", &domain, &bus, &number) != 3)
        return hipErrorInvalidValue;
    for (int i = 0; i < visible_count; i++) {
        const struct device *each = &board[visible[i]];
        if (each->domain == domain && each->bus == bus && each->device == number)
            return answer(device, i);
    }
    return hipErrorInvalidValue;
}

hipError_t do_hipDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    int place = device_on_board(ordinal);
    if (!value)
        return hipErrorInvalidValue;
    if (place < 0)
        return hipErrorInvalidDevice;
    switch (attribute) {
    case AttributeMultiprocessorCount:
    case AttributePhysicalMultiProcessorCount:
        return answer(value, ComputeUnits);
    case AttributePciBusId:
        return answer(value, (int)board[place].bus);
    case AttributePciDeviceId:
        return answer(value, (int)board[place].device);
    case AttributePciDomainId:
        return answer(value, (int)board[place].domain);
    case AttributeTexturePitchAlignment:
        return answer(value, (int)config.pitch);
#if GENERATION >= 6
    case AttributeTotalGlobalMem:
        return answer(value, board[place].vram < INT_MAX ? (int)board[place].vram : INT_MAX);
#endif
    case AttributeWarpSize:
        return answer(value, WarpSize);
    default:
        return hipErrorInvalidValue;
    }
}

hipError_t do_hipDeviceTotalMem(size_t *bytes, hipDevice_t ordinal)
{
    int device = device_on_board(ordinal);
    if (!bytes)
        return hipErrorInvalidValue;
    if (device < 0)
        return hipErrorInvalidDevice;
    *bytes = board[device].vram;
    return hipSuccess;
}

/* The real ones write every byte of the structure too. */
static hipError_t fill_r0000(hipDeviceProp_tR0000 *out, int ordinal)
{
    int device = device_on_board(ordinal);
    if (!out)
        return hipErrorInvalidValue;
    if (device < 0)
        return hipErrorInvalidDevice;
    memset(out, 0, sizeof *out);
    strcpy(out->name, device_name);
    strcpy(out->gcnArchName, architecture);
    out->totalGlobalMem = board[device].vram;
    out->warpSize = WarpSize;
    out->maxThreadsPerBlock = 1024;
    out->multiProcessorCount = ComputeUnits;
    out->major = 9;
    out->canMapHostMemory = 1;
    out->gcnArch = 910;
    out->pciDomainID = (int)board[device].domain;
    out->pciBusID = (int)board[device].bus;
    out->pciDeviceID = (int)board[device].device;
    return hipSuccess;
}

/* In every release the plain name has the old layout: headers since 6.0 call it by another. */
hipError_t do_hipGetDeviceProperties(hipDeviceProp_tR0000 *properties, int device)
{
    return fill_r0000(properties, device);
}

#if GENERATION >= 6
hipError_t do_hipGetDevicePropertiesR0000(hipDeviceProp_tR0000 *properties, int device)
{
    return fill_r0000(properties, device);
}

hipError_t do_hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *out, int ordinal)
{
    int device = device_on_board(ordinal);
    if (!out)
        return hipErrorInvalidValue;
    if (device < 0)
        return hipErrorInvalidDevice;
    memset(out, 0, sizeof *out);
    strcpy(out->name, device_name);
    strcpy(out->gcnArchName, architecture);
    snprintf(out->uuid, sizeof out->uuid, "%014x", (unsigned)device);
    out->totalGlobalMem = board[device].vram;
    out->warpSize = WarpSize;
    out->maxThreadsPerBlock = 1024;
    out->multiProcessorCount = ComputeUnits;
    out->major = 9;
    out->texturePitchAlignment = config.pitch;
    out->pciDomainID = (int)board[device].domain;
    out->pciBusID = (int)board[device].bus;
    out->pciDeviceID = (int)board[device].device;
    return hipSuccess;
}

/* Answers with exports, found as the real one finds them: by asking the dynamic linker about its own library. A program
 * that says it was built for 6.0 or later means the new layout by the plain name. */
hipError_t do_hipGetProcAddress(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    enum { Found, NotFound };
    static void *_Atomic own;
    if (!symbol || !function || !*symbol)
        return hipErrorInvalidValue;
    (void)flags;
    if (!own) {
        Dl_info here;
        if (!dladdr((void *)&board, &here))
            return hipErrorUnknown;
        own = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    if (version >= 600 && strcmp(symbol, "hipGetDeviceProperties") == 0)
        symbol = "hipGetDevicePropertiesR0600";
    void *address = strncmp(symbol, "hip", 3) == 0 && own ? dlsym(own, symbol) : NULL;
    *function = address;
    if (status)
        *status = address ? Found : NotFound;
    return address ? hipSuccess : hipErrorInvalidValue;
}
#endif

hipError_t do_hipDeviceSynchronize(void)
{
    pools_synchronize(current_device(), NULL, true);
    return hipSuccess;
}

/* Linear memory. That of pools goes with them; arrays and managed memory stay. */
static bool is_of_device(struct block *block, void *device)
{
    return block->device == *(int *)device && block->kind == KindDevice;
}

/* Linear memory, pools, and physical memory that is not mapped. 5.2 only forgets its pointers. */
static hipError_t reset(int device)
{
    pthread_mutex_lock(&lock);
    if (GENERATION == 5 && MINOR < 7) {
        blocks_forget(is_of_device, &device);
    } else {
        blocks_sweep(is_of_device, &device);
        pools_reset(device);
        virtual_reset(device);
    }
    pthread_mutex_unlock(&lock);
    return hipSuccess;
}

hipError_t do_hipDeviceReset(void)
{
    return reset(current_device());
}

/* Takes the device and leaves its memory alone: HIP on AMD has one context per device. */
hipError_t do_hipDevicePrimaryCtxReset(hipDevice_t ordinal)
{
    return device_on_board(ordinal) < 0 ? hipErrorInvalidDevice : hipSuccess;
}

/* A context is a device with another name; freeing it frees no memory. */
struct context {
    int ordinal;
};
static struct context contexts[MaxDevices];

static bool is_context(hipCtx_t context)
{
    return context >= contexts && context < contexts + visible_count;
}

hipError_t do_hipCtxCreate(hipCtx_t *context, unsigned flags, hipDevice_t device)
{
    (void)flags;
    if (!context)
        return hipErrorInvalidValue;
    if (device_on_board(device) < 0)
        return hipErrorInvalidDevice;
    contexts[device].ordinal = device;
    *context = &contexts[device];
    set_current_ordinal(device);
    return hipSuccess;
}

hipError_t do_hipCtxDestroy(hipCtx_t context)
{
    return is_context(context) ? hipSuccess : hipErrorInvalidValue;
}

hipError_t do_hipCtxSetCurrent(hipCtx_t context)
{
    if (!is_context(context))
        return hipErrorInvalidContext;
    set_current_ordinal(context->ordinal);
    return hipSuccess;
}

hipError_t do_hipCtxGetDevice(hipDevice_t *device)
{
    return answer(device, current_ordinal());
}
