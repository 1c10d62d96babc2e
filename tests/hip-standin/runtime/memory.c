/* Linear memory: hipMalloc and its relatives, copies, and questions about it. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

bool times(uint64_t a, uint64_t b, uint64_t *product)
{
    return __builtin_mul_overflow(a, b, product);
}

uint64_t rounded(uint64_t bytes)
{
    uint64_t over = bytes % config.round;
    return over && bytes <= UINT64_MAX - config.round ? bytes + config.round - over : bytes;
}

hipError_t take_memory(void **pointer, uint64_t bytes, enum kind kind, unsigned flags)
{
    struct block block = {
        .bytes = bytes, .charged = rounded(bytes), .device = current_device(), .kind = kind, .flags = flags};
    block.touched = kind == KindManaged || kind == KindHost;
    /* What pools keep is not given back for that, as with the real ones. */
    if (!account_take(block.device, kind, block.charged))
        return hipErrorOutOfMemory;
    pthread_mutex_lock(&lock);
    block.base = space_take(bytes);
    if (block.base)
        block_add(&block);
    pthread_mutex_unlock(&lock);
    if (!block.base) {
        account_give_back(block.device, kind, block.charged);
        return hipErrorOutOfMemory;
    }
    *pointer = (void *)block.base;
    return hipSuccess;
}

/* The lock is held. */
void forget_block(struct block *block)
{
    account_give_back(block->device, block->kind, block->charged);
    space_give_back(block->base, block->bytes, block->touched);
    block_remove(block);
}

hipError_t free_memory(void *pointer)
{
    hipError_t error = hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    if (block && block->kind == KindPool) {
        error = pool_free_locked(block, NULL, true);
    } else if (block && block->kind != KindVirtual && block->kind != KindImported) {
        forget_block(block);
        error = hipSuccess;
    }
    pthread_mutex_unlock(&lock);
    if (error != hipSuccess)
        account_bad_free();
    return error;
}

/* hipMalloc and hipFree, as the others reach them when HIP_STANDIN_NESTED is set: by their names. */
static __thread bool inside_nested __attribute__((tls_model("initial-exec")));

static hipError_t by_way_of_malloc(void **pointer, uint64_t bytes, unsigned flags)
{
    if (!config.nested || inside_nested)
        return take_memory(pointer, bytes, KindDevice, flags);
    inside_nested = true;
    hipError_t error = hipMalloc(pointer, bytes);
    inside_nested = false;
    return error;
}

hipError_t do_hipMalloc(void **pointer, size_t bytes)
{
    if (!pointer)
        return hipErrorInvalidValue;
    if (bytes == 0) {
        *pointer = NULL;
        return hipSuccess;
    }
    return by_way_of_malloc(pointer, bytes, 0);
}

hipError_t do_hipFree(void *pointer)
{
    if (!pointer)
        return hipSuccess;
    if (!config.nested || inside_nested)
        return free_memory(pointer);
    inside_nested = true;
    hipError_t error = hipFree(pointer);
    inside_nested = false;
    return error;
}

/* Flags: 0 default, 1 fine-grained, 3 uncached, 4 contiguous; 2 is signal memory, of 8 bytes only. */
hipError_t do_hipExtMallocWithFlags(void **pointer, size_t bytes, unsigned flags)
{
    if (!pointer || flags > 4 || (flags == 2 && bytes != 8))
        return hipErrorInvalidValue;
    if (bytes == 0) {
        *pointer = NULL;
        return hipSuccess;
    }
    return by_way_of_malloc(pointer, bytes, flags);
}

/* Flags: 1 all devices, 2 the host. Managed memory is not in the driver's count of VRAM. */
hipError_t do_hipMallocManaged(void **pointer, size_t bytes, unsigned flags)
{
    if (!pointer || bytes == 0 || (flags != 1 && flags != 2))
        return hipErrorInvalidValue;
    return take_memory(pointer, bytes, KindManaged, flags);
}

/* A row's length in memory. False: it does not fit into 64 bits. */
static bool pitch_of(size_t width, uint64_t *pitch)
{
    uint64_t over = width % config.pitch;
    return !__builtin_add_overflow(width, over ? config.pitch - over : 0, pitch);
}

/* The pitch is written before the memory is asked for, so it is also there after a failure. */
hipError_t do_hipMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    uint64_t bytes;
    if (!pointer || !pitch)
        return hipErrorInvalidValue;
    if (width == 0 || height == 0) {
        *pointer = NULL;
        return hipSuccess;
    }
    uint64_t row;
    if (!pitch_of(width, &row))
        return hipErrorOutOfMemory;
    *pitch = row;
    if (times(row, height, &bytes)) {
        *pointer = NULL;
        return hipErrorOutOfMemory;
    }
    return by_way_of_malloc(pointer, bytes, 0);
}

/* Calls hipMallocPitch through the PLT in 5.x, as the real one does. */
hipError_t do_hipMemAllocPitch(void **pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (element != 4 && element != 8 && element != 16)
        return hipErrorInvalidValue;
    return NESTED(hipMallocPitch)(pointer, pitch, width, height);
}

hipError_t do_hipMalloc3D(hipPitchedPtr *pitched, hipExtent extent)
{
    if (!pitched)
        return hipErrorInvalidValue;
    if (extent.width == 0 || extent.height == 0 || extent.depth == 0) {
        *pitched = (hipPitchedPtr){NULL, 0, extent.width, extent.height};
        return hipSuccess;
    }
    uint64_t row, plane, bytes;
    if (!pitch_of(extent.width, &row) || times(row, extent.height, &plane) || times(plane, extent.depth, &bytes)) {
        pitched->ptr = NULL;
        return hipErrorOutOfMemory;
    }
    void *pointer;
    hipError_t error = by_way_of_malloc(&pointer, bytes, 0);
    if (error == hipSuccess)
        *pitched = (hipPitchedPtr){pointer, row, extent.width, extent.height};
    return error;
}

hipError_t do_hipHostMalloc(void **pointer, size_t bytes, unsigned flags)
{
    if (!pointer)
        return hipErrorInvalidValue;
    if (bytes == 0) {
        *pointer = NULL;
        return hipSuccess;
    }
    return take_memory(pointer, bytes, KindHost, flags);
}

hipError_t do_hipHostFree(void *pointer)
{
    return pointer ? free_memory(pointer) : hipSuccess;
}

hipError_t do_hipFreeHost(void *pointer)
{
    return do_hipHostFree(pointer);
}

hipError_t do_hipMemGetInfo(size_t *available, size_t *total)
{
    int device = current_device();
    uint64_t used = account_used(device), vram = board[device].vram;
    uint64_t unused = used < vram ? vram - used : 0;
    if (available)
        *available = unused - unused % config.info_step;
    if (total)
        *total = vram;
    return hipSuccess;
}

hipError_t do_hipMemPtrGetInfo(void *pointer, size_t *bytes)
{
    if (!pointer || !bytes)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    if (block)
        *bytes = block->bytes;
    pthread_mutex_unlock(&lock);
    return block ? hipSuccess : hipErrorInvalidValue;
}

hipError_t do_hipMemGetAddressRange(void **base, size_t *bytes, void *pointer)
{
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    if (block && base)
        *base = (void *)block->base;
    if (block && bytes)
        *bytes = block->bytes;
    pthread_mutex_unlock(&lock);
    return block ? hipSuccess : hipErrorNotFound;
}

hipError_t do_hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *pointer)
{
    if (!attributes || !pointer)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    if (block) {
        bool host = block->kind == KindHost, managed = block->kind == KindManaged;
        /* hipMemoryType: 5.x counts from host = 0, and has managed memory as the device's; since 6 host is 1. */
        int type = GENERATION == 5 ? !host : host ? 1 : managed ? 3 : 2;
        *attributes = (hipPointerAttribute_t){type,    ordinal_of(block->device), (void *)pointer, host || managed ? (void *)pointer : NULL,
                                              managed, block->flags};
    }
    pthread_mutex_unlock(&lock);
    return block ? hipSuccess : hipErrorInvalidValue;
}

/* Remembers that pages of a block are in use. True if they are there at all. */
static bool touch(const void *pointer)
{
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    if (block)
        block->touched = true;
    pthread_mutex_unlock(&lock);
    return !block || memory_is_backed;
}

hipError_t do_hipMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    (void)kind;
    if (bytes == 0)
        return hipSuccess;
    if (!to || !from)
        return hipErrorInvalidValue;
    bool there = touch(to);
    if (touch(from) && there)
        memmove(to, from, bytes);
    return hipSuccess;
}

hipError_t do_hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, hipStream_t stream)
{
    (void)stream;
    return do_hipMemcpy(to, from, bytes, kind);
}

hipError_t do_hipMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                          int kind)
{
    if (width > to_pitch || width > from_pitch)
        return hipErrorInvalidValue;
    hipError_t error = hipSuccess;
    for (size_t row = 0; row < height && error == hipSuccess; row++)
        error = do_hipMemcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
    return error;
}

hipError_t do_hipMemset(void *pointer, int value, size_t bytes)
{
    if (bytes == 0)
        return hipSuccess;
    if (!pointer)
        return hipErrorInvalidValue;
    if (touch(pointer))
        memset(pointer, value, bytes);
    return hipSuccess;
}

hipError_t do_hipMemsetAsync(void *pointer, int value, size_t bytes, hipStream_t stream)
{
    (void)stream;
    return do_hipMemset(pointer, value, bytes);
}

hipError_t do_hipMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height)
{
    if (width > pitch)
        return hipErrorInvalidValue;
    hipError_t error = hipSuccess;
    for (size_t row = 0; row < height && error == hipSuccess; row++)
        error = do_hipMemset((char *)pointer + row * pitch, value, width);
    return error;
}

hipError_t do_hipMemsetD32(void *pointer, int value, size_t count)
{
    if (!pointer)
        return hipErrorInvalidValue;
    if (touch(pointer))
        for (size_t i = 0; i < count; i++)
            ((int *)pointer)[i] = value;
    return hipSuccess;
}
