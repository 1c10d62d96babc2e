/* Addresses of device memory, and what lies there.
 *
 * Addresses come from one range that is reserved at the start, in sizes of four steps per power of two.
 * A freed range is the first to be used again for its size: the address of a freed block soon is
 * another's, as it is with the real ones. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
bool memory_is_backed;

static uintptr_t arena, arena_next, arena_end;

enum { Steps = 4, Classes = 64 * Steps };
static struct {
    uintptr_t *ranges;
    size_t count, room;
} unused[Classes];

/* Open addressing by base; `base` 0 is an empty place. */
static struct block *table;
static size_t table_room, table_count;

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "hip-standin: out of host memory\n");
        abort();
    }
    return memory;
}

void blocks_open(void)
{
    /* Twice the memory there is, and some: sizes are rounded up, and addresses can be reserved without memory. */
    uint64_t wanted = (uint64_t)1 << 38, least = (uint64_t)1 << 32;
    for (int i = 0; i < boards; i++)
        wanted += 2 * board[i].vram;
    if (wanted > (uint64_t)1 << 45)
        wanted = (uint64_t)1 << 45;
    for (uint64_t bytes = wanted & ~(uint64_t)0x1fffff; bytes >= least && !arena; bytes = bytes / 2 & ~(uint64_t)0x1fffff) {
        for (int backed = 1; backed >= 0 && !arena; backed--) {
            void *memory = mmap(NULL, bytes, backed ? PROT_READ | PROT_WRITE : PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED)
                continue;
            memory_is_backed = backed;
            madvise(memory, bytes, MADV_DONTDUMP);
            arena = (uintptr_t)memory;
            arena_end = arena + bytes;
            arena_next = (arena + 0x3fffff) & ~(uintptr_t)0x1fffff;
        }
    }
    if (!arena) {
        fprintf(stderr, "hip-standin: no address range for device memory: %m\n");
        abort();
    }
}

void blocks_close(void)
{
    munmap((void *)arena, arena_end - arena);
}

void blocks_after_fork(void)
{
    for (int i = 0; i < Classes; i++)
        unused[i].count = 0;
    memset(table, 0, table_room * sizeof *table);
    table_count = 0;
    arena_next = (arena + 0x3fffff) & ~(uintptr_t)0x1fffff;
}

/* The size of a range for so many bytes, and its class. Pages of 4 KiB; of 2 MiB from that size on. */
static int class_of(uint64_t bytes, uint64_t *range)
{
    uint64_t page = bytes > (1 << 20) ? 2 << 20 : 4096;
    uint64_t pages = (bytes + page - 1) / page;
    int power = 63 - __builtin_clzll(pages | 1);
    uint64_t step = power >= 2 ? (uint64_t)1 << (power - 2) : 1;
    pages = (pages + step - 1) / step * step;
    power = 63 - __builtin_clzll(pages | 1);
    step = power >= 2 ? (uint64_t)1 << (power - 2) : 1;
    *range = pages * page;
    int large = page == 4096 ? 0 : Classes / 2;
    return large + power * Steps + (int)((pages >> (power >= 2 ? power - 2 : 0)) & 3);
}

uintptr_t space_take(uint64_t bytes)
{
    uint64_t range;
    if (bytes == 0 || bytes > (uint64_t)1 << 46)
        return 0;
    int class = class_of(bytes, &range);
    if (unused[class].count)
        return unused[class].ranges[--unused[class].count];
    uintptr_t base = arena_next;
    if (range >= 2 << 20)
        base = (base + 0x1fffff) & ~(uintptr_t)0x1fffff;
    if (base + range > arena_end)
        return 0;
    arena_next = base + range;
    return base;
}

void space_give_back(uintptr_t base, uint64_t bytes, bool touched)
{
    uint64_t range;
    int class = class_of(bytes, &range);
    if (touched && memory_is_backed)
        madvise((void *)base, range, MADV_DONTNEED);
    if (unused[class].count == unused[class].room) {
        unused[class].room = unused[class].room ? 2 * unused[class].room : 16;
        unused[class].ranges = must(realloc(unused[class].ranges, unused[class].room * sizeof(uintptr_t)));
    }
    unused[class].ranges[unused[class].count++] = base;
}

static size_t home(uintptr_t base)
{
    return (size_t)((base >> 12) * 0x9e3779b97f4a7c15u >> 20) & (table_room - 1);
}

static size_t place_for(uintptr_t base)
{
    size_t i = home(base);
    while (table[i].base && table[i].base != base)
        i = (i + 1) & (table_room - 1);
    return i;
}

static void grow(void)
{
    struct block *old = table;
    size_t old_room = table_room;
    table_room = old_room ? 2 * old_room : 256;
    table = must(calloc(table_room, sizeof *table));
    for (size_t i = 0; i < old_room; i++)
        if (old[i].base)
            table[place_for(old[i].base)] = old[i];
    free(old);
}

struct block *block_add(const struct block *block)
{
    if (2 * (table_count + 1) > table_room)
        grow();
    struct block *place = &table[place_for(block->base)];
    *place = *block;
    table_count++;
    return place;
}

struct block *block_at(uintptr_t address)
{
    if (!table_count || !address)
        return NULL;
    struct block *place = &table[place_for(address)];
    return place->base ? place : NULL;
}

struct block *block_around(uintptr_t address)
{
    struct block *exact = block_at(address);
    for (size_t i = 0; i < table_room && !exact && table_count; i++)
        if (table[i].base && address - table[i].base < table[i].bytes)
            exact = &table[i];
    return exact;
}

void block_remove(struct block *block)
{
    size_t hole = (size_t)(block - table);
    table_count--;
    /* Whoever had to go further because of this one moves back. */
    for (size_t i = (hole + 1) & (table_room - 1); table[i].base; i = (i + 1) & (table_room - 1)) {
        size_t from_home = (i - home(table[i].base)) & (table_room - 1);
        if (from_home >= ((i - hole) & (table_room - 1))) {
            table[hole] = table[i];
            hole = i;
        }
    }
    table[hole].base = 0;
}

static void each_block(bool (*visit)(struct block *, void *), void *argument, void (*then)(struct block *))
{
    /* Removing moves others about, so the bases are taken down first. */
    uintptr_t *bases = must(malloc((table_count + 1) * sizeof *bases));
    size_t count = 0;
    for (size_t i = 0; i < table_room; i++)
        if (table[i].base)
            bases[count++] = table[i].base;
    for (size_t i = 0; i < count; i++) {
        struct block *block = block_at(bases[i]);
        if (block && visit(block, argument))
            then(block);
    }
    free(bases);
}

void blocks_sweep(bool (*visit)(struct block *, void *), void *argument)
{
    each_block(visit, argument, forget_block);
}

void blocks_forget(bool (*visit)(struct block *, void *), void *argument)
{
    each_block(visit, argument, block_remove);
}
