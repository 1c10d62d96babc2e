/* Looks hipMalloc up in the runtime, with dlsym or ("dlvsym") by version. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    void *runtime = dlopen(getenv("HIP_RUNTIME"), RTLD_NOW);
    setvbuf(stdout, NULL, _IONBF, 0);
    void *found = strcmp(argv[argc - 1], "dlvsym") ? dlsym(runtime, "hipMalloc")
                                                  : dlvsym(runtime, "hipMalloc", "hip_4.2");
    printf("found: %d\n", found != NULL);
    return 0;
}
