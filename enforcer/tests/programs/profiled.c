/* A program with a profiler: profiled before|after|size|slot RUNTIME */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "../../../tests/programs/raw_symbol.h"
#include "profiler.h"

int hipMalloc(void **pointer, size_t bytes);
int hipFree(void *pointer);
int hipMemGetInfo(size_t *available, size_t *total);

int main(int argc, char **argv)
{
    size_t available, total;
    void *pointer = NULL, *other = NULL;
    if (argc != 3)
        return 2;
    setenv("PROFILE", argv[1], 1);
    void *runtime = dlopen(argv[2], RTLD_NOW | RTLD_NOLOAD);
    int (*get)(void **, size_t) = (int (*)(void **, size_t))raw_symbol(runtime, "hipMalloc");
    if (hipMemGetInfo(&available, &total))
        return 3;
    if (!strcmp(argv[1], "after"))
        profile();
    printf("3 GiB = %d\n", hipMalloc(&pointer, 3UL << 30));
    printf("3 GiB = %d\n", hipMalloc(&other, 3UL << 30));
    printf("free = %d\n", hipFree(pointer));
    printf("5 GiB = %d\n", get(&other, 5UL << 30));
    printf("1 GiB = %d\n", get(&other, 1UL << 30));
    struct seen seen = profiled();
    printf("profiler: %d of hipMalloc, %d refused, %d of hipFree\n", seen.mallocs, seen.refused, seen.frees);
    fflush(stdout);
    getchar();
    return 0;
}
