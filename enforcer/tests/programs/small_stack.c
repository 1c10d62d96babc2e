/* Makes its first HIP calls in a thread whose stack it gives, and prints how much of it was used.
 *
 * small_stack CALL...   malloc:BYTES   info   free (of the last malloc)   nothing
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hipMalloc(void **, size_t);
int hipFree(void *);
int hipMemGetInfo(size_t *, size_t *);

enum { SIZE = 256 * 1024, PAINT = 0x5a };
static __attribute__((aligned(4096))) unsigned char stack[SIZE];
static unsigned char *start;
static char **calls;

static void *thread(void *results)
{
    void *pointer = NULL;
    size_t n, total;
    start = __builtin_frame_address(0);
    for (char **call = calls; *call; call++) {
        int error = 0;
        if (!strncmp(*call, "malloc:", 7))
            error = hipMalloc(&pointer, strtoull(*call + 7, NULL, 0));
        else if (!strcmp(*call, "free"))
            error = hipFree(pointer);
        else if (!strcmp(*call, "info"))
            error = hipMemGetInfo(&n, &total);
        ((int *)results)[call - calls] = error;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int results[64];
    pthread_t id;
    pthread_attr_t attributes;
    calls = argv + 1;
    memset(stack, PAINT, sizeof stack);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, sizeof stack);
    if (argc > 64 || pthread_create(&id, &attributes, thread, results))
        return 1;
    pthread_join(id, NULL);
    for (int i = 0; calls[i]; i++)
        printf("%s = %d\n", calls[i], results[i]);
    unsigned char *lowest = stack;
    while (*lowest == PAINT)
        lowest++;
    printf("used %zu\n", (size_t)(start - lowest));
    return 0;
}
