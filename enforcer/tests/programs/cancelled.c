/* A thread is cancelled: while it is inside of the runtime ("inside"), or with a cancellation that is pending
 * when it calls: the first call of the process ("first"), or one that is refused ("refused"). */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int hipMalloc(void **, size_t);

static pthread_barrier_t barrier;
static size_t bytes = 1UL << 30;

static void *allocate(void *out)
{
    hipMalloc(out, bytes);
    return NULL;
}

static void *allocate_while_pending(void *out)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    int error = hipMalloc(out, bytes);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    printf("returned: %d, was enabled: %d\n", error, before == PTHREAD_CANCEL_ENABLE);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *how = argv[argc - 1];
    pthread_t thread;
    void *out, *result;
    if (!strcmp(how, "inside")) {
        pthread_create(&thread, NULL, allocate, &out);
        usleep(100 * 1000);
        pthread_cancel(thread);
    } else {
        if (!strcmp(how, "refused")) {
            hipMalloc(&out, 1UL << 20);
            bytes = 8UL << 30;
        }
        pthread_barrier_init(&barrier, NULL, 2);
        pthread_create(&thread, NULL, allocate_while_pending, &out);
        pthread_barrier_wait(&barrier);
        pthread_cancel(thread);
        pthread_barrier_wait(&barrier);
    }
    pthread_join(thread, &result);
    printf("cancelled: %d\n", result == PTHREAD_CANCELED);
    printf("hipMalloc: %d\n", hipMalloc(&out, 1UL << 20));
    return 0;
}
