/* A thread is cancelled while it is inside of the runtime. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

int hipMalloc(void **, size_t);

static void *allocate(void *out)
{
    hipMalloc(out, 1UL << 30);
    return NULL;
}

int main(void)
{
    pthread_t thread;
    void *out, *result;
    pthread_create(&thread, NULL, allocate, &out);
    usleep(100 * 1000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("cancelled: %d\n", result == PTHREAD_CANCELED);
    printf("hipMalloc: %d\n", hipMalloc(&out, 1UL << 20));
    return 0;
}
