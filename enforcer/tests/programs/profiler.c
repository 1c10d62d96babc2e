/* A profiler, as rocprofiler-sdk is one: it is given the dispatch table of HIP, and puts wrappers into its slots. When: at
 * once, if PROFILE is "before"; else when it is told to. "size" and "slot": what it leaves there is no table, or has no
 * function in the slot of hipMallocPitch. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "profiler.h"

/* HipDispatchTable of hip/amd_detail/hip_api_trace.hpp: its size, then pointers. */
enum { HIP_MALLOC = 1 + 215, HIP_FREE = 1 + 90, HIP_MALLOC_PITCH = 1 + 224 };
static void **table;
static int (*next_malloc)(void **, size_t), (*next_free)(void *);
static struct seen seen;

static int wrapped_malloc(void **pointer, size_t bytes)
{
    int error = next_malloc(pointer, bytes);
    seen.mallocs++;
    seen.refused += error == 2;
    return error;
}

static int wrapped_free(void *pointer)
{
    seen.frees++;
    return next_free(pointer);
}

void profile(void)
{
    if (!table)
        abort();
    next_malloc = (int (*)(void **, size_t))table[HIP_MALLOC];
    next_free = (int (*)(void *))table[HIP_FREE];
    table[HIP_MALLOC] = (void *)wrapped_malloc;
    table[HIP_FREE] = (void *)wrapped_free;
}

struct seen profiled(void)
{
    return seen;
}

int rocprofiler_register_library_api_table(const char *name, uint32_t (*import)(void), uint32_t version, void **tables,
                                           uint64_t count, uint64_t *identifier)
{
    if (!import || import() != version || count != 1 || !identifier)
        return 2;
    if (!strcmp(name, "hip")) {
        const char *when = getenv("PROFILE");
        table = tables[0];
        if (when && !strcmp(when, "before"))
            profile();
        if (when && !strcmp(when, "size"))
            table[0] = (void *)24;
        if (when && !strcmp(when, "slot"))
            table[HIP_MALLOC_PITCH] = &seen;
    }
    return 0;
}
