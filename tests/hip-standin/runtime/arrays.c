/* Arrays and mipmapped arrays: opaque handles, memory of the current device. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

struct array {
    struct array *next;
    uint64_t charged;
    int device;
    bool mipmapped;
};

static struct array *arrays; /* guarded by the lock */

/* Bytes of a channel, 0: no such format. */
static unsigned format_bytes(unsigned format)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 1;
    case 0x02:
    case 0x09:
    case 0x10:
        return 2;
    case 0x03:
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 0;
    }
}

static bool channels_are_right(unsigned channels)
{
    return channels == 1 || channels == 2 || channels == 4;
}

/* Bytes of an element, 0: not a format that arrays can have. */
static unsigned element_of_channels(const hipChannelFormatDesc *format)
{
    const int bits[] = {format->x, format->y, format->z, format->w};
    unsigned channels = 0;
    while (channels < 4 && bits[channels] != 0)
        channels++;
    for (unsigned i = 0; i < 4; i++)
        if (bits[i] != (i < channels ? bits[0] : 0))
            return 0;
    if ((bits[0] != 8 && bits[0] != 16 && bits[0] != 32) || !channels_are_right(channels))
        return 0;
    return channels * (unsigned)bits[0] / 8;
}

static unsigned element_of_format(unsigned format, unsigned channels)
{
    return channels_are_right(channels) ? format_bytes(format) * channels : 0;
}

static bool extent_is_right(hipExtent extent)
{
    size_t limit = extent.height ? config.image_limit : 0x7fffffff;
    return extent.width != 0 && !(extent.height == 0 && extent.depth != 0) && extent.width <= limit &&
           extent.height <= config.image_limit && extent.depth <= config.image_limit;
}

static size_t at_least_one(size_t value)
{
    return value ? value : 1;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Levels 0, 1, 2 ... each half as wide, high and deep, but never less than one element. */
static uint64_t bytes_of(unsigned element, hipExtent extent, unsigned levels)
{
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels; level++)
        sum += element * (uint64_t)at_least_one(extent.width >> level) * at_least_one(extent.height >> level) *
               at_least_one(extent.depth >> level);
    return sum;
}

static hipError_t create(struct array **out, unsigned element, hipExtent extent, unsigned levels, bool mipmapped)
{
    if (element == 0 || !extent_is_right(extent))
        return hipErrorInvalidValue;
    unsigned most = 64 - (unsigned)__builtin_clzll(larger(extent.width, larger(extent.height, extent.depth)));
    if (levels == 0 || levels > most)
        return hipErrorInvalidValue;
    int device = current_device();
    uint64_t charged = rounded(bytes_of(element, extent, levels));
    if (!account_take(device, KindArray, charged))
        return hipErrorOutOfMemory;
    struct array *array = malloc(sizeof *array);
    if (!array) {
        account_give_back(device, KindArray, charged);
        return hipErrorOutOfMemory;
    }
    pthread_mutex_lock(&lock);
    *array = (struct array){arrays, charged, device, mipmapped};
    arrays = array;
    pthread_mutex_unlock(&lock);
    *out = array;
    return hipSuccess;
}

static hipError_t destroy(struct array *array, bool mipmapped)
{
    if (!array)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct array **link = &arrays;
    while (*link && *link != array)
        link = &(*link)->next;
    bool found = *link && array->mipmapped == mipmapped;
    if (found) {
        *link = array->next;
        account_give_back(array->device, KindArray, array->charged);
    }
    pthread_mutex_unlock(&lock);
    if (!found) {
        account_bad_free();
        return hipErrorContextIsDestroyed; /* what the real ones say to a second one */
    }
    free(array);
    return hipSuccess;
}

void arrays_after_fork(void)
{
    arrays = NULL;
}

hipError_t do_hipMallocArray(hipArray_t *array, const hipChannelFormatDesc *format, size_t width, size_t height,
                             unsigned flags)
{
    (void)flags;
    if (!array || !format)
        return hipErrorInvalidValue;
    return create(array, element_of_channels(format), (hipExtent){width, height, 0}, 1, false);
}

hipError_t do_hipMalloc3DArray(hipArray_t *array, const hipChannelFormatDesc *format, hipExtent extent, unsigned flags)
{
    (void)flags;
    if (!array || !format)
        return hipErrorInvalidValue;
    return create(array, element_of_channels(format), extent, 1, false);
}

hipError_t do_hipArrayCreate(hipArray_t *array, const HIP_ARRAY_DESCRIPTOR *descriptor)
{
    if (!array || !descriptor)
        return hipErrorInvalidValue;
    return create(array, element_of_format(descriptor->Format, descriptor->NumChannels),
                  (hipExtent){descriptor->Width, descriptor->Height, 0}, 1, false);
}

hipError_t do_hipArray3DCreate(hipArray_t *array, const HIP_ARRAY3D_DESCRIPTOR *descriptor)
{
    if (!array || !descriptor)
        return hipErrorInvalidValue;
    return create(array, element_of_format(descriptor->Format, descriptor->NumChannels),
                  (hipExtent){descriptor->Width, descriptor->Height, descriptor->Depth}, 1, false);
}

hipError_t do_hipFreeArray(hipArray_t array)
{
    return destroy(array, false);
}

hipError_t do_hipArrayDestroy(hipArray_t array)
{
    return destroy(array, false);
}

hipError_t do_hipMallocMipmappedArray(hipMipmappedArray_t *array, const hipChannelFormatDesc *format, hipExtent extent,
                                      unsigned levels, unsigned flags)
{
    (void)flags;
    if (!array || !format)
        return hipErrorInvalidValue;
    if (!config.mipmaps)
        return hipErrorNotSupported;
    return create(array, element_of_channels(format), extent, levels, true);
}

hipError_t do_hipMipmappedArrayCreate(hipMipmappedArray_t *array, HIP_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    if (!array || !descriptor)
        return hipErrorInvalidValue;
    if (!config.mipmaps)
        return hipErrorNotSupported;
    return create(array, element_of_format(descriptor->Format, descriptor->NumChannels),
                  (hipExtent){descriptor->Width, descriptor->Height, descriptor->Depth}, levels, true);
}

hipError_t do_hipFreeMipmappedArray(hipMipmappedArray_t array)
{
    return destroy(array, true);
}

hipError_t do_hipMipmappedArrayDestroy(hipMipmappedArray_t array)
{
    return destroy(array, true);
}
