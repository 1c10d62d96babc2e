/* Loads a plugin with RTLD_LOCAL and runs it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        puts(dlerror());
        return 1;
    }
    printf("host sees hipMalloc: %s\n", dlsym(RTLD_DEFAULT, "hipMalloc") ? "yes" : "no");
    int (*plugin)(void) = (int (*)(void))dlsym(library, "plugin");
    return plugin();
}
