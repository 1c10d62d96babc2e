/* A tool that wraps hipMalloc and calls the next one; or, with WRAPPER_BY_HANDLE, the one that it finds in the
 * runtime. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int hipMalloc(void **out, size_t bytes)
{
    static int (*next)(void **, size_t);
    if (!next) {
        void *from = getenv("WRAPPER_BY_HANDLE") ? dlopen(getenv("HIP_RUNTIME"), RTLD_NOW) : RTLD_NEXT;
        next = (int (*)(void **, size_t))dlsym(from, "hipMalloc");
    }
    fputs("wrapper: hipMalloc\n", stderr);
    return next(out, bytes);
}
