/* Sets its limit after it has looked HIP up, and before it calls it: late_limit RUNTIME PLUGIN */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    (void)argc;
    void *pointer, *runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    int (*get)(void **, size_t) = runtime ? (int (*)(void **, size_t))dlsym(runtime, "hipMalloc") : NULL;
    if (!get || setenv("FH_MEMORY_LIMIT", "4GiB", 1))
        return 2;
    printf("by name: 5 GiB = %d\n", get(&pointer, (size_t)5 << 30));
    void *plugin = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    int (*deep)(unsigned long) = plugin ? (int (*)(unsigned long))dlsym(plugin, "allocate") : NULL;
    if (!deep)
        return 3;
    printf("deep: 5 GiB = %d\n", deep(5UL << 30));
    printf("deep: 1 GiB = %d\n", deep(1UL << 30));
    return 0;
}
