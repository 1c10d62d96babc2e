/* A library that uses HIP in its constructor and in its destructor. With FREE_EARLY it holds nothing when the program
 * ends. */
#include <stdio.h>
#include <stdlib.h>

int hipMalloc(void **, size_t);
int hipFree(void *);
int hipMemGetInfo(size_t *, size_t *);

static void *held, *refused;

__attribute__((constructor)) static void begin(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("constructor: %d\n", hipMalloc(&held, 3UL << 30));
    printf("constructor: %d\n", hipMalloc(&refused, 3UL << 30));
}

__attribute__((destructor)) static void end(void)
{
    size_t free_bytes, total;
    void *again;
    hipMemGetInfo(&free_bytes, &total);
    printf("destructor: free %zu\n", free_bytes >> 30);
    hipFree(held);
    printf("destructor: %d\n", hipMalloc(&again, 3UL << 30));
    printf("destructor: %d\n", hipMalloc(&refused, 3UL << 30));
}

int at_load(void)
{
    size_t free_bytes, total;
    hipMemGetInfo(&free_bytes, &total);
    printf("main: free %zu\n", free_bytes >> 30);
    int error = hipMalloc(&refused, 3UL << 30);
    if (getenv("FREE_EARLY")) {
        hipFree(held);
        held = NULL;
    } else {
        hipMalloc(&refused, 1UL << 30);
    }
    return error;
}
