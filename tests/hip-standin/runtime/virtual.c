/* Virtual memory management, and memory that other processes share.
 *
 * A handle's memory lives until it is released and its last mapping is gone. As with the real ones, a handle can be
 * released again, mapped and retained as long as a mapping keeps it, and hipMemRetainAllocationHandle holds nothing.
 * Address ranges take nothing.
 * Imported memory is the exporter's: it takes nothing here either, as the driver's count has it. Its
 * contents are not shared, nor are those of two mappings of one handle. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

struct allocation {
    struct allocation *next;
    uint64_t bytes, charged, number;
    int device;
    enum kind kind;
    bool held;
    int mappings;
};

struct mapping {
    struct mapping *next;
    uintptr_t at;
    uint64_t bytes;
    struct allocation *allocation;
};

/* What travels between processes, in an IPC handle or in the file behind a descriptor. */
struct ticket {
    uint64_t magic, pid, address, bytes, number;
    int32_t device;
};
enum { TicketMagic = 0x6873746b };

/* Guarded by the lock. */
static struct allocation *allocations;
static struct mapping *mappings;
static uint64_t last_number;

void virtual_after_fork(void)
{
    allocations = NULL;
    mappings = NULL;
}

static bool exists(struct allocation *allocation)
{
    struct allocation *each = allocations;
    while (each && each != allocation)
        each = each->next;
    return each;
}

static void drop_unused(struct allocation *allocation)
{
    if (allocation->held || allocation->mappings > 0)
        return;
    struct allocation **link = &allocations;
    while (*link != allocation)
        link = &(*link)->next;
    *link = allocation->next;
    account_give_back(allocation->device, allocation->kind, allocation->charged);
    free(allocation);
}

/* What is mapped stays: nothing can unmap it any more. */
void virtual_reset(int device)
{
    for (struct mapping **link = &mappings, *mapping; (mapping = *link);) {
        if (mapping->allocation->device != device) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        free(mapping);
    }
    for (struct allocation *allocation = allocations, *next; allocation; allocation = next) {
        next = allocation->next;
        if (allocation->device == device) {
            allocation->held = false;
            drop_unused(allocation);
        }
    }
}

/* The lock is held. */
static struct allocation *add(uint64_t bytes, uint64_t charged, int device, enum kind kind)
{
    struct allocation *made = malloc(sizeof *made);
    if (made) {
        *made = (struct allocation){allocations, bytes, charged, ++last_number, device, kind, true, 0};
        allocations = made;
    }
    return made;
}

hipError_t do_hipMemGetAllocationGranularity(size_t *bytes, const hipMemAllocationProp *properties, int option)
{
    if (!bytes || !properties || properties->type != 1 || option < 0 || option > 1)
        return hipErrorInvalidValue;
    *bytes = config.granularity;
    return hipSuccess;
}

/* The device that the memory comes from, by the runtime's own idea. 6.4 takes the one that is named, 7.2 the thread's. */
static hipError_t place_of(const hipMemAllocationProp *properties, int *device, enum kind *kind)
{
    *kind = KindVirtual;
    *device = current_device();
    if (GENERATION >= 7 && properties->location.type == hipMemLocationTypeHost) {
        *kind = KindHost;
        return hipSuccess;
    }
    if (properties->location.type != hipMemLocationTypeDevice)
        return hipErrorInvalidValue;
    int named = device_on_board(properties->location.id);
    if (named < 0)
        return GENERATION >= 7 ? hipErrorInvalidDevice : hipErrorInvalidValue;
    if (!config.create_on_current)
        *device = named;
    return hipSuccess;
}

hipError_t do_hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t bytes, const hipMemAllocationProp *properties,
                           unsigned long long flags)
{
    int device;
    enum kind kind;
    if (!handle || bytes == 0 || !properties || flags != 0 || properties->type != 1 || bytes % config.granularity != 0)
        return hipErrorInvalidValue;
    hipError_t error = place_of(properties, &device, &kind);
    if (error != hipSuccess)
        return error;
    uint64_t charged = rounded(bytes);
    if (!account_take(device, kind, charged))
        return hipErrorOutOfMemory;
    pthread_mutex_lock(&lock);
    struct allocation *made = add(bytes, charged, device, kind);
    pthread_mutex_unlock(&lock);
    if (!made) {
        account_give_back(device, kind, charged);
        return hipErrorOutOfMemory;
    }
    *handle = made;
    return hipSuccess;
}

hipError_t do_hipMemRelease(hipMemGenericAllocationHandle_t handle)
{
    if (!handle)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    bool right = exists(handle);
    if (right) {
        handle->held = false;
        drop_unused(handle);
    }
    pthread_mutex_unlock(&lock);
    if (!right)
        account_bad_free();
    return right ? hipSuccess : hipErrorInvalidValue;
}

static struct mapping *mapping_around(uintptr_t address)
{
    struct mapping *mapping = mappings;
    while (mapping && address - mapping->at >= mapping->bytes)
        mapping = mapping->next;
    return mapping;
}

hipError_t do_hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t *handle, void *pointer)
{
    if (!handle || !pointer)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct mapping *mapping = mapping_around((uintptr_t)pointer);
    if (mapping)
        *handle = mapping->allocation;
    pthread_mutex_unlock(&lock);
    return mapping ? hipSuccess : hipErrorInvalidValue;
}

hipError_t do_hipMemAddressReserve(void **pointer, size_t bytes, size_t alignment, void *wish, unsigned long long flags)
{
    (void)wish;
    if (!pointer || flags != 0 || bytes == 0 || bytes % config.granularity != 0 || (alignment & (alignment - 1)) != 0)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct block block = {.base = space_take(bytes), .bytes = bytes, .device = current_device(), .kind = KindVirtual};
    if (block.base)
        block_add(&block);
    pthread_mutex_unlock(&lock);
    if (!block.base)
        return hipErrorOutOfMemory;
    *pointer = (void *)block.base;
    return hipSuccess;
}

/* The reservation that such a range lies in. */
static struct block *reservation(uintptr_t at, uint64_t bytes)
{
    struct block *block = block_around(at);
    bool right = block && block->kind == KindVirtual && at - block->base + bytes <= block->bytes;
    return right ? block : NULL;
}

static bool any_mapping_in(uintptr_t at, uint64_t bytes)
{
    for (struct mapping *each = mappings; each; each = each->next)
        if (each->at < at + bytes && at < each->at + each->bytes)
            return true;
    return false;
}

hipError_t do_hipMemAddressFree(void *pointer, size_t bytes)
{
    hipError_t error = hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct block *block = reservation((uintptr_t)pointer, bytes);
    if (block && block->base == (uintptr_t)pointer && block->bytes == bytes) {
        error = any_mapping_in(block->base, bytes) ? hipErrorUnknown : hipSuccess;
        if (error == hipSuccess)
            forget_block(block);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

hipError_t do_hipMemMap(void *pointer, size_t bytes, size_t offset, hipMemGenericAllocationHandle_t handle,
                        unsigned long long flags)
{
    if (!pointer || !handle || bytes == 0 || offset != 0 || flags != 0)
        return hipErrorInvalidValue;
    struct mapping *made = malloc(sizeof *made);
    if (!made)
        return hipErrorOutOfMemory;
    pthread_mutex_lock(&lock);
    bool right = exists(handle) && bytes <= handle->bytes && reservation((uintptr_t)pointer, bytes) &&
                 !any_mapping_in((uintptr_t)pointer, bytes);
    if (right) {
        *made = (struct mapping){mappings, (uintptr_t)pointer, bytes, handle};
        mappings = made;
        handle->mappings++;
    }
    pthread_mutex_unlock(&lock);
    if (!right)
        free(made);
    return right ? hipSuccess : hipErrorInvalidValue;
}

/* What the mappings inside of a range come to. */
static uint64_t mapped_in(uintptr_t at, uint64_t bytes)
{
    uint64_t sum = 0;
    for (struct mapping *each = mappings; each; each = each->next)
        if (each->at >= at && each->at + each->bytes <= at + bytes)
            sum += each->bytes;
    return sum;
}

/* A range that is not one mapping: 6.4 says success and does nothing; 7.2 unmaps what consists of whole ones, and says no
 * to anything else. */
hipError_t do_hipMemUnmap(void *pointer, size_t bytes)
{
    uintptr_t at = (uintptr_t)pointer;
    pthread_mutex_lock(&lock);
    bool whole = bytes != 0 && mapped_in(at, bytes) == bytes, done = false;
    struct mapping *around = mapping_around(at);
    bool exact = around && around->at == at && around->bytes == bytes;
    for (struct mapping **link = &mappings; *link && (exact || (whole && GENERATION >= 7));) {
        struct mapping *mapping = *link;
        if (mapping->at < at || mapping->at + mapping->bytes > at + bytes) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        mapping->allocation->mappings--;
        drop_unused(mapping->allocation);
        free(mapping);
        done = true;
    }
    pthread_mutex_unlock(&lock);
    return done || (GENERATION < 7 && around) ? hipSuccess : hipErrorInvalidValue;
}

hipError_t do_hipMemSetAccess(void *pointer, size_t bytes, const hipMemAccessDesc *access, size_t count)
{
    if (!pointer || bytes == 0 || !access || count == 0)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    bool mapped = mapping_around((uintptr_t)pointer);
    pthread_mutex_unlock(&lock);
    return mapped ? hipSuccess : hipErrorInvalidValue;
}

/* Type 1: a file descriptor. */
hipError_t do_hipMemExportToShareableHandle(void *shareable, hipMemGenericAllocationHandle_t handle, int type,
                                            unsigned long long flags)
{
    if (!shareable || !handle || type != 1 || flags != 0)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    bool right = exists(handle);
    struct ticket ticket = {.magic = TicketMagic, .pid = (uint64_t)getpid()};
    if (right) {
        ticket.bytes = handle->bytes;
        ticket.device = handle->device;
        ticket.number = handle->number;
    }
    pthread_mutex_unlock(&lock);
    int file = right ? memfd_create("hip-standin allocation", MFD_CLOEXEC) : -1;
    if (file < 0)
        return hipErrorInvalidValue;
    if (pwrite(file, &ticket, sizeof ticket, 0) != sizeof ticket) {
        close(file);
        return hipErrorUnknown;
    }
    *(int *)shareable = file;
    return hipSuccess;
}

/* `shareable` is the address of the descriptor up to 6.x, and the descriptor itself from 7. */
hipError_t do_hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle, void *shareable, int type)
{
    struct ticket ticket;
    if (!handle || type != 1 || (GENERATION < 7 && !shareable))
        return hipErrorInvalidValue;
    int file = GENERATION >= 7 ? (int)(uintptr_t)shareable : *(int *)shareable;
    if (pread(file, &ticket, sizeof ticket, 0) != sizeof ticket || ticket.magic != TicketMagic)
        return hipErrorInvalidValue;
    pthread_mutex_lock(&lock);
    struct allocation *found = add(ticket.bytes, ticket.bytes, ticket.device, KindImported);
    if (found)
        account_take(ticket.device, KindImported, ticket.bytes);
    pthread_mutex_unlock(&lock);
    if (!found)
        return hipErrorInvalidValue;
    *handle = found;
    return hipSuccess;
}

_Static_assert(sizeof(struct ticket) <= sizeof(hipIpcMemHandle_t), "tickets travel in IPC handles");

hipError_t do_hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *pointer)
{
    if (!handle || !pointer)
        return hipErrorInvalidValue;
    struct ticket ticket = {.magic = TicketMagic, .pid = (uint64_t)getpid()};
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    bool right = block && block->kind == KindDevice;
    if (right) {
        ticket.address = block->base;
        ticket.bytes = block->bytes;
        ticket.device = block->device;
    }
    pthread_mutex_unlock(&lock);
    if (!right)
        return hipErrorInvalidValue;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return hipSuccess;
}

/* hipIpcMemLazyEnablePeerAccess, the one flag that is accepted, is 0 in 5.x and 1 since. */
hipError_t do_hipIpcOpenMemHandle(void **pointer, hipIpcMemHandle_t handle, unsigned flags)
{
    struct ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    if (!pointer || flags != (GENERATION >= 6) || ticket.magic != TicketMagic)
        return hipErrorInvalidValue;
    if (ticket.pid == (uint64_t)getpid())
        return hipErrorInvalidContext;
    if (kill((pid_t)ticket.pid, 0) != 0 && errno == ESRCH)
        return hipErrorInvalidDevicePointer;
    struct block block = {.bytes = ticket.bytes, .charged = ticket.bytes, .device = ticket.device, .kind = KindImported};
    pthread_mutex_lock(&lock);
    block.base = space_take(ticket.bytes);
    if (block.base) {
        account_take(block.device, KindImported, block.charged);
        block_add(&block);
    }
    pthread_mutex_unlock(&lock);
    if (!block.base)
        return hipErrorOutOfMemory;
    *pointer = (void *)block.base;
    return hipSuccess;
}

hipError_t do_hipIpcCloseMemHandle(void *pointer)
{
    pthread_mutex_lock(&lock);
    struct block *block = block_at((uintptr_t)pointer);
    bool right = block && block->kind == KindImported;
    if (right)
        forget_block(block);
    pthread_mutex_unlock(&lock);
    return right ? hipSuccess : hipErrorInvalidValue;
}
