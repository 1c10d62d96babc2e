/* Loads the runtime, uses it and closes it, three times: reopens RUNTIME */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    for (int i = 0; i < 3; i++) {
        void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            puts(dlerror());
            return 2;
        }
        int (*get)(void **, unsigned long) = (int (*)(void **, unsigned long))dlsym(library, "hipMalloc");
        int (*give)(void *) = (int (*)(void *))dlsym(library, "hipFree");
        void *pointer;
        printf("5 GiB = %d\n", get(&pointer, 5UL << 30));
        printf("1 GiB = %d\n", get(&pointer, 1UL << 30));
        printf("free = %d\n", give(pointer));
        dlclose(library);
    }
    return 0;
}
