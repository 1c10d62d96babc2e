/* Two libraries, each with a copy of the runtime of its own: two_runtimes PLUGIN PLUGIN RUNTIME RUNTIME */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {"first", "second"};
static void *plugins[2], *runtimes[2];

static void *function(void *library, const char *name)
{
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        puts(dlerror());
        exit(2);
    }
    return address;
}

static void allocate(int which, int device)
{
    int (*set)(int) = (int (*)(int))function(plugins[which], "set_device");
    int (*get)(unsigned long) = (int (*)(unsigned long))function(plugins[which], "allocate");
    if (set(device))
        exit(3);
    printf("%s: device %d, 3 GiB = %d\n", names[which], device, get(3UL << 30));
}

static void allocate_by_handle(int which, unsigned long gib)
{
    void *pointer;
    int (*get)(void **, unsigned long) = (int (*)(void **, unsigned long))function(runtimes[which], "hipMalloc");
    printf("%s by handle: %lu GiB = %d\n", names[which], gib, get(&pointer, gib << 30));
}

int main(int argc, char **argv)
{
    (void)argc;
    for (int i = 0; i < 2; i++) {
        plugins[i] = dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL);
        runtimes[i] = dlopen(argv[3 + i], RTLD_NOW | RTLD_LOCAL);
    }
    allocate(0, 0);
    allocate(1, 0);
    allocate(1, 1);
    allocate(0, 0);
    allocate_by_handle(0, 3);
    allocate_by_handle(1, 3);
    allocate_by_handle(1, 1);
    /* On device 0 the first has 3 GiB; the second has none there. What it resets are its own. */
    int (*reset)(void) = (int (*)(void))function(plugins[1], "reset");
    int (*set)(int) = (int (*)(int))function(plugins[1], "set_device");
    printf("second: device 0, reset = %d\n", set(0) || reset());
    allocate(1, 0);
    return 0;
}
