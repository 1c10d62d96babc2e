/* Loads the library that its argument names while it runs, asks that for hipMalloc, and unloads it before the first
 * call, and once more after that. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *out;
    for (int round = 0; round < 2; round++) {
        void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_GLOBAL);
        puts(library ? "loaded" : dlerror());
        int (*function)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "hipMalloc");
        dlclose(library);
        puts("unloaded");
        fflush(stdout);
        printf("hipMalloc = %d\n", function(&out, 5UL << 30));
        printf("hipMalloc = %d\n", function(&out, 1UL << 30));
    }
    return 0;
}
