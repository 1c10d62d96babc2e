/* A tool that wraps hipMalloc and calls the next one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int hipMalloc(void **out, size_t bytes)
{
    static int (*next)(void **, size_t);
    if (!next)
        next = (int (*)(void **, size_t))dlsym(RTLD_NEXT, "hipMalloc");
    fputs("wrapper: hipMalloc\n", stderr);
    return next(out, bytes);
}
