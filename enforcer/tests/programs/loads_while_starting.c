/* Two threads meet at their first HIP call: one calls directly, the other from the constructor of a library that it is
 * just loading, and so under the dynamic linker's lock. Neither may wait for the other for ever. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

int hipMalloc(void **, size_t);

static pthread_barrier_t barrier;
static const char *library;

static void *load(void *unused)
{
    pthread_barrier_wait(&barrier);
    if (!dlopen(library, RTLD_NOW))
        puts(dlerror());
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    void *out;
    library = argv[argc - 1];
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, load, NULL);
    pthread_barrier_wait(&barrier);
    int error = hipMalloc(&out, 1 << 20);
    pthread_join(thread, NULL);
    printf("main: %d\n", error);
    return 0;
}
