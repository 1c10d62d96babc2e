/* Calls the hipMalloc of the library that it is linked to, or of the one that its argument names. */
#include <dlfcn.h>
#include <stdio.h>

#ifdef LINKED
int hipMalloc(void **, size_t);
#endif

int main(int argc, char **argv)
{
#ifdef LINKED
    (void)argc, (void)argv;
    int (*function)(void **, size_t) = hipMalloc;
#else
    void *library = dlopen(argv[argc - 1], RTLD_NOW);
    int (*function)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "hipMalloc");
#endif
    void *out;
    size_t bytes = 2UL << 30;
    printf("unrelated hipMalloc of %zu = %d\n", bytes, function(&out, bytes));
    return 0;
}
