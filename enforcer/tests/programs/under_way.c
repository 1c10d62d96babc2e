/* Threads that call HIP by addresses which nobody was asked for, while the first call by a name is made: under_way RUNTIME
 *
 * Prints what was wrong (0), then waits for a line; lets the threads make COUNT calls more each, and waits again. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../tests/programs/raw_symbol.h"

int hipMalloc(void **pointer, size_t bytes);

enum { THREADS = 3, WARM = 100, COUNT = 200, BYTES = 4096 };
static int (*get)(void **, size_t), (*give)(void *), (*ask)(size_t *, size_t *), (*pitch)(void **, size_t *, size_t, size_t);
static int is_over, warm, wrong;

static void call(void)
{
    void *pointer = NULL;
    size_t available = 0, total = 0, row = 0;
    int errors = get(&pointer, BYTES) || !pointer;
    errors += ask(&available, &total) || !total || available > total;
    errors += give(pointer) != 0;
    pointer = NULL;
    errors += pitch(&pointer, &row, 100, 3) || !pointer || row < 100;
    errors += give(pointer) != 0;
    if (errors)
        __atomic_add_fetch(&wrong, errors, __ATOMIC_SEQ_CST);
}

static void *until_over(void *unused)
{
    for (int i = 0; !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST); i++) {
        if (i == WARM)
            __atomic_add_fetch(&warm, 1, __ATOMIC_SEQ_CST);
        call();
    }
    return unused;
}

static void *a_number_of_times(void *unused)
{
    for (int i = 0; i < COUNT; i++)
        call();
    return unused;
}

static void start(pthread_t *threads, void *(*run)(void *))
{
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run, NULL))
            exit(3);
}

static void join(pthread_t *threads)
{
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void tell(int first)
{
    printf("first call = %d, wrong %d\n", first, wrong);
    fflush(stdout);
    if (getchar() == EOF)
        exit(4);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    void *runtime = dlopen(argv[argc - 1], RTLD_NOW | RTLD_NOLOAD), *pointer;
    if (!runtime)
        return 2;
    get = (int (*)(void **, size_t))raw_symbol(runtime, "hipMalloc");
    give = (int (*)(void *))raw_symbol(runtime, "hipFree");
    ask = (int (*)(size_t *, size_t *))raw_symbol(runtime, "hipMemGetInfo");
    pitch = (int (*)(void **, size_t *, size_t, size_t))raw_symbol(runtime, "hipMallocPitch");
    start(threads, until_over);
    while (__atomic_load_n(&warm, __ATOMIC_SEQ_CST) < THREADS)
        sched_yield();
    int first = hipMalloc(&pointer, 1 << 30);
    for (int i = 0; i < WARM; i++)
        call();
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    join(threads);
    tell(first);
    start(threads, a_number_of_times);
    join(threads);
    tell(first);
    printf("a block beyond the limit = %d\n", get(&pointer, 4UL << 30));
    return 0;
}
