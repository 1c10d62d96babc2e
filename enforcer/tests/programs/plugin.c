/* A plugin that is linked to the runtime. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int hipMalloc(void **, size_t);

int plugin(void)
{
    void *out;
    size_t bytes = 5UL << 30;
    printf("linked %d\n", hipMalloc(&out, bytes));
    int (*found)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_DEFAULT, "hipMalloc");
    printf("RTLD_DEFAULT %d\n", found ? found(&out, bytes) : -1);
    printf("linked %d\n", hipMalloc(&out, 1UL << 30));
    return 0;
}
