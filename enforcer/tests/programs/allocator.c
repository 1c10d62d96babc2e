/* A host allocator in the manner of jemalloc and tcmalloc: it replaces malloc and finds the next one with
 * dlsym, from inside of its first malloc, and again when it starts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static char early[1 << 16];
static size_t early_used;
static __thread int finding __attribute__((tls_model("initial-exec")));
static void *(*next_malloc)(size_t);
static void (*next_free)(void *);
static void *(*next_realloc)(void *, size_t);
unsigned long allocator_calls;

static int is_early(void *block)
{
    return (char *)block >= early && (char *)block < early + sizeof early;
}

static void find(void)
{
    finding = 1;
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    finding = 0;
}

void *malloc(size_t size)
{
    allocator_calls++;
    if (!next_malloc && !finding)
        find();
    if (next_malloc)
        return next_malloc(size);
    void *block = early + early_used;
    early_used += (size + 31) & ~(size_t)15;
    return early_used <= sizeof early ? block : NULL;
}

void *calloc(size_t count, size_t size)
{
    void *block = malloc(count * size);
    if (block)
        memset(block, 0, count * size);
    return block;
}

void *realloc(void *block, size_t size)
{
    if (!is_early(block) && next_realloc)
        return next_realloc(block, size);
    void *larger = malloc(size);
    if (larger && block)
        memcpy(larger, block, size);
    return larger;
}

void free(void *block)
{
    if (block && !is_early(block))
        next_free(block);
}

__attribute__((constructor)) static void begin(void)
{
    find();
}
