/* Streams, and memory that is allocated and freed in the order of a stream.
 *
 * A pool takes blocks from its device and keeps freed ones. What is freed is unused once the stream has come
 * that far: when the stream or its device is synchronised, or at once for an allocation on the same stream. Then blocks
 * above the release threshold go back to the device. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

/* A freed block. */
struct cached {
    struct cached *next;
    uintptr_t base;
    uint64_t bytes, charged;
    hipStream_t stream;
    bool done, touched;
};

struct pool {
    struct pool *next;
    int device;
    bool is_default;
    uint64_t threshold, most, reserved, reserved_high, used, used_high;
    int reuse[3];
    struct cached *cached;
};

/* All guarded by the lock. */
static struct pool *pools;
static struct pool *default_pool[MaxDevices], *chosen_pool[MaxDevices];

static struct pool *new_pool(int device, bool is_default)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool) {
        *pool = (struct pool){.next = pools, .device = device, .is_default = is_default, .reuse = {1, 1, 1}};
        pools = pool;
    }
    return pool;
}

static struct pool *pool_of_device(int device)
{
    if (!default_pool[device])
        chosen_pool[device] = default_pool[device] = new_pool(device, true);
    return chosen_pool[device];
}

static bool exists(struct pool *pool)
{
    struct pool *each = pools;
    while (each && each != pool)
        each = each->next;
    return each;
}

static void release(struct pool *pool, struct cached **link)
{
    struct cached *cached = *link;
    *link = cached->next;
    pool->reserved -= cached->charged;
    account_give_back(pool->device, KindPool, cached->charged);
    space_give_back(cached->base, cached->bytes, cached->touched);
    free(cached);
}

/* Gives unused blocks back until no more than `keep` bytes are reserved. */
static bool trim(struct pool *pool, uint64_t keep)
{
    bool released = false;
    for (struct cached **link = &pool->cached; *link && pool->reserved > keep;) {
        if ((*link)->done) {
            release(pool, link);
            released = true;
        } else {
            link = &(*link)->next;
        }
    }
    return released;
}

void pools_synchronize(int device, hipStream_t stream, bool all_streams)
{
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool; pool = pool->next) {
        if (pool->device != device)
            continue;
        for (struct cached *cached = pool->cached; cached; cached = cached->next)
            if (all_streams || cached->stream == stream)
                cached->done = true;
        trim(pool, pool->threshold);
    }
    pthread_mutex_unlock(&lock);
}

/* The smallest freed block that is large enough and may be used on this stream. */
static struct cached **fitting(struct pool *pool, uint64_t bytes, hipStream_t stream)
{
    struct cached **best = NULL;
    for (struct cached **link = &pool->cached; *link; link = &(*link)->next)
        if ((*link)->bytes >= bytes && ((*link)->done || (*link)->stream == stream) &&
            (!best || (*link)->bytes < (*best)->bytes))
            best = link;
    return best;
}

static void note_highs(struct pool *pool)
{
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
}

/* The pool's lock is held. */
static hipError_t allocate(void **pointer, uint64_t bytes, struct pool *pool, hipStream_t stream)
{
    struct block block = {.bytes = bytes, .device = pool->device, .kind = KindPool, .pool = pool};
    struct cached **link = fitting(pool, bytes, stream);
    if (link) {
        struct cached *cached = *link;
        block.base = cached->base;
        block.bytes = cached->bytes;
        block.charged = cached->charged;
        block.touched = cached->touched;
        *link = cached->next;
        free(cached);
    } else {
        block.charged = rounded(bytes);
        if (pool->most && pool->reserved + block.charged > pool->most)
            return hipErrorOutOfMemory;
        if (!account_take(pool->device, KindPool, block.charged)) {
            bool released = false;
            for (struct pool *each = pools; each; each = each->next)
                if (each->device == pool->device)
                    released |= trim(each, 0);
            if (!released || !account_take(pool->device, KindPool, block.charged))
                return hipErrorOutOfMemory;
        }
        block.base = space_take(bytes);
        if (!block.base) {
            account_give_back(pool->device, KindPool, block.charged);
            return hipErrorOutOfMemory;
        }
        pool->reserved += block.charged;
    }
    pool->used += block.bytes;
    note_highs(pool);
    block_add(&block);
    *pointer = (void *)block.base;
    return hipSuccess;
}

hipError_t pool_free_locked(struct block *block, hipStream_t stream, bool now)
{
    struct pool *pool = block->pool;
    struct cached *cached = malloc(sizeof *cached);
    if (!cached)
        return hipErrorOutOfMemory;
    *cached = (struct cached){pool->cached, block->base, block->bytes, block->charged, stream, now, block->touched};
    pool->cached = cached;
    pool->used -= block->bytes;
    block_remove(block);
    if (now)
        trim(pool, pool->threshold);
    return hipSuccess;
}

static bool is_of_pool(struct block *block, void *pool)
{
    if (block->pool != pool)
        return false;
    ((struct pool *)pool)->used -= block->bytes;
    ((struct pool *)pool)->reserved -= block->charged;
    return true;
}

/* The memory of a pool goes back, used or not. */
static void empty(struct pool *pool)
{
    blocks_sweep(is_of_pool, pool);
    while (pool->cached)
        release(pool, &pool->cached);
}

void pools_reset(int device)
{
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->device == device)
            empty(pool);
}

void pools_after_fork(void)
{
    pools = NULL;
    memset(default_pool, 0, sizeof default_pool);
    memset(chosen_pool, 0, sizeof chosen_pool);
}

static hipError_t allocate_from(void **pointer, size_t bytes, hipMemPool_t pool, hipStream_t stream)
{
    if (!pointer)
        return hipErrorInvalidValue;
    *pointer = NULL; /* written in any case by the real ones */
    if (bytes == 0)
        return hipSuccess;
    return allocate(pointer, bytes, pool, stream);
}

static int device_of(hipStream_t stream)
{
    return (uintptr_t)stream > 2 ? stream->device : current_device(); /* 1 and 2 name default streams */
}

static bool is_capturing(hipStream_t stream)
{
    return (uintptr_t)stream > 2 && stream->capturing;
}

/* An address for an allocation that a graph will make each time it runs. It takes nothing now. (Before 6 it is made
 * at once.) */
static hipError_t record_allocation(void **pointer, uint64_t bytes, hipStream_t stream)
{
    if (!pointer)
        return hipErrorInvalidValue;
    struct block block = {.bytes = bytes, .device = stream->device, .kind = KindVirtual};
    pthread_mutex_lock(&lock);
    block.base = space_take(bytes);
    if (block.base)
        block_add(&block);
    pthread_mutex_unlock(&lock);
    *pointer = (void *)block.base;
    return block.base || bytes == 0 ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t do_hipMallocAsync(void **pointer, size_t bytes, hipStream_t stream)
{
    if (GENERATION >= 6 && is_capturing(stream))
        return record_allocation(pointer, bytes, stream);
    pthread_mutex_lock(&lock);
    struct pool *pool = pool_of_device(device_of(stream));
    hipError_t error = pool ? allocate_from(pointer, bytes, pool, stream) : hipErrorOutOfMemory;
    pthread_mutex_unlock(&lock);
    return error;
}

hipError_t do_hipMallocFromPoolAsync(void **pointer, size_t bytes, hipMemPool_t pool, hipStream_t stream)
{
    if (GENERATION >= 6 && is_capturing(stream))
        return record_allocation(pointer, bytes, stream);
    pthread_mutex_lock(&lock);
    hipError_t error = exists(pool) ? allocate_from(pointer, bytes, pool, stream) : hipErrorInvalidValue;
    pthread_mutex_unlock(&lock);
    return error;
}

hipError_t do_hipFreeAsync(void *pointer, hipStream_t stream)
{
    if (!pointer)
        return GENERATION >= 7 ? hipSuccess : hipErrorInvalidValue;
    if (is_capturing(stream))
        return hipSuccess; /* recorded: nothing is freed now */
    hipError_t error = hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    if (block && block->kind == KindPool) {
        error = pool_free_locked(block, stream, false);
    } else if (block && block->kind != KindVirtual && block->kind != KindImported) {
        forget_block(block); /* of hipMalloc: allowed, and done at once */
        error = hipSuccess;
    }
    pthread_mutex_unlock(&lock);
    if (error == hipErrorInvalidValue)
        account_bad_free();
    return error;
}

static hipError_t give_pool(hipMemPool_t *out, int ordinal, bool the_default)
{
    int device = device_on_board(ordinal);
    if (!out)
        return hipErrorInvalidValue;
    if (device < 0)
        return hipErrorInvalidDevice;
    pthread_mutex_lock(&lock);
    struct pool *pool = pool_of_device(device);
    *out = the_default ? default_pool[device] : pool;
    pthread_mutex_unlock(&lock);
    return pool ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t do_hipDeviceGetDefaultMemPool(hipMemPool_t *pool, int device)
{
    return give_pool(pool, device, true);
}

hipError_t do_hipDeviceGetMemPool(hipMemPool_t *pool, int device)
{
    return give_pool(pool, device, false);
}

hipError_t do_hipDeviceSetMemPool(int ordinal, hipMemPool_t pool)
{
    int device = device_on_board(ordinal);
    if (device < 0)
        return hipErrorInvalidDevice;
    pthread_mutex_lock(&lock);
    bool right = exists(pool) && pool->device == device && pool_of_device(device);
    if (right)
        chosen_pool[device] = pool;
    pthread_mutex_unlock(&lock);
    return right ? hipSuccess : hipErrorInvalidValue;
}

hipError_t do_hipMemPoolCreate(hipMemPool_t *pool, const hipMemPoolProps *properties)
{
    if (!pool || !properties || properties->allocType != 1 || properties->location.type != hipMemLocationTypeDevice)
        return hipErrorInvalidValue;
    int device = device_on_board(properties->location.id);
    if (device < 0)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct pool *made = new_pool(device, false);
    if (made)
        made->most = properties->maxSize;
    pthread_mutex_unlock(&lock);
    if (!made)
        return hipErrorOutOfMemory;
    *pool = made;
    return hipSuccess;
}

hipError_t do_hipMemPoolDestroy(hipMemPool_t pool)
{
    hipError_t error = hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    if (exists(pool) && !pool->is_default) {
        empty(pool);
        struct pool **link = &pools;
        while (*link != pool)
            link = &(*link)->next;
        *link = pool->next;
        if (chosen_pool[pool->device] == pool)
            chosen_pool[pool->device] = default_pool[pool->device];
        free(pool);
        error = hipSuccess;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

hipError_t do_hipMemPoolTrimTo(hipMemPool_t pool, size_t keep)
{
    pthread_mutex_lock(&lock);
    bool right = exists(pool);
    if (right)
        trim(pool, keep);
    pthread_mutex_unlock(&lock);
    return right ? hipSuccess : hipErrorInvalidValue;
}

hipError_t do_hipMemPoolGetAttribute(hipMemPool_t pool, int attribute, void *value)
{
    hipError_t error = value ? hipSuccess : hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    if (error != hipSuccess || !exists(pool)) {
        error = hipErrorInvalidValue;
    } else {
        uint64_t numbers[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used, pool->used_high};
        if (PoolReuseFollowEventDependencies <= attribute && attribute <= PoolReuseAllowInternalDependencies)
            *(int *)value = pool->reuse[attribute - PoolReuseFollowEventDependencies];
        else if (PoolReleaseThreshold <= attribute && attribute <= PoolUsedMemHigh)
            *(uint64_t *)value = numbers[attribute - PoolReleaseThreshold];
        else
            error = hipErrorInvalidValue;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* Who may use what is in a pool: its own device. 5.2 says success and answers nothing. */
hipError_t do_hipMemPoolGetAccess(int *flags, hipMemPool_t pool, hipMemLocation *location)
{
    enum { ReadAndWrite = 3 };
    if (!flags || !location)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    bool known = exists(pool);
    if (known && (GENERATION > 5 || MINOR >= 7)) {
        bool own = location->type == hipMemLocationTypeDevice && device_on_board(location->id) == pool->device;
        *flags = own ? ReadAndWrite : 0;
    }
    pthread_mutex_unlock(&lock);
    return known ? hipSuccess : hipErrorInvalidValue;
}

/* The high-water marks can only be set to 0, which makes them start anew. */
hipError_t do_hipMemPoolSetAttribute(hipMemPool_t pool, int attribute, void *value)
{
    hipError_t error = value ? hipSuccess : hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    if (error != hipSuccess || !exists(pool))
        error = hipErrorInvalidValue;
    else if (PoolReuseFollowEventDependencies <= attribute && attribute <= PoolReuseAllowInternalDependencies)
        pool->reuse[attribute - PoolReuseFollowEventDependencies] = *(int *)value;
    else if (attribute == PoolReleaseThreshold)
        pool->threshold = *(uint64_t *)value;
    else if (attribute == PoolReservedMemHigh && *(uint64_t *)value == 0)
        pool->reserved_high = pool->reserved;
    else if (attribute == PoolUsedMemHigh && *(uint64_t *)value == 0)
        pool->used_high = pool->used;
    else
        error = hipErrorInvalidValue;
    pthread_mutex_unlock(&lock);
    return error;
}

hipError_t do_hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags)
{
    if (!stream || flags > 1)
        return hipErrorInvalidValue;
    struct stream *made = malloc(sizeof *made);
    if (!made)
        return hipErrorOutOfMemory;
    *made = (struct stream){.device = current_device()};
    *stream = made;
    return hipSuccess;
}

hipError_t do_hipStreamCreate(hipStream_t *stream)
{
    return do_hipStreamCreateWithFlags(stream, 0);
}

hipError_t do_hipExtStreamCreateWithCUMask(hipStream_t *stream, uint32_t words, const uint32_t *mask)
{
    if (!mask || words == 0)
        return hipErrorInvalidValue;
    return do_hipStreamCreateWithFlags(stream, 0);
}

hipError_t do_hipStreamSynchronize(hipStream_t stream)
{
    pools_synchronize(device_of(stream), stream, (uintptr_t)stream <= 2);
    return hipSuccess;
}

hipError_t do_hipStreamDestroy(hipStream_t stream)
{
    if ((uintptr_t)stream <= 2)
        return hipErrorInvalidHandle;
    pools_synchronize(stream->device, stream, false);
    free(stream);
    return hipSuccess;
}

hipError_t do_hipStreamBeginCapture(hipStream_t stream, int mode)
{
    if (mode < 0 || mode > 2)
        return hipErrorInvalidValue;
    if ((uintptr_t)stream <= 2)
        return hipErrorStreamCaptureUnsupported;
    if (stream->capturing)
        return hipErrorIllegalState;
    stream->capturing = true;
    return hipSuccess;
}

/* 0: no, 1: yes. */
hipError_t do_hipStreamIsCapturing(hipStream_t stream, int *status)
{
    if (!status)
        return hipErrorInvalidValue;
    *status = is_capturing(stream);
    return hipSuccess;
}

struct graph {
    int nothing; /* it cannot be run */
};

hipError_t do_hipStreamEndCapture(hipStream_t stream, hipGraph_t *graph)
{
    if (!graph)
        return hipErrorInvalidValue;
    if (!is_capturing(stream))
        return hipErrorIllegalState;
    hipGraph_t made = calloc(1, sizeof *made);
    if (!made)
        return hipErrorOutOfMemory;
    stream->capturing = false;
    *graph = made;
    return hipSuccess;
}

hipError_t do_hipGraphDestroy(hipGraph_t graph)
{
    if (!graph)
        return hipErrorInvalidValue;
    free(graph);
    return hipSuccess;
}

#if GENERATION > 5 || MINOR >= 7
hipError_t do_hipStreamGetDevice(hipStream_t stream, hipDevice_t *device)
{
    if (!device)
        return hipErrorInvalidValue;
    if ((uintptr_t)stream == 1)
        return hipErrorContextIsDestroyed; /* the legacy stream: what 5.7 says; later ones crash */
    *device = ordinal_of(device_of(stream));
    return hipSuccess;
}
#endif
