/* Runs the client that is built as a library (with -Dmain=client_main): client_host LIBRARY deep|plain ARGUMENT... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    (void)argc;
    int flags = RTLD_NOW | RTLD_LOCAL | (strcmp(argv[2], "deep") ? 0 : RTLD_DEEPBIND);
    void *library = dlopen(argv[1], flags);
    if (!library) {
        puts(dlerror());
        return 2;
    }
    int (*client)(int, char **) = (int (*)(int, char **))dlsym(library, "client_main");
    return client(argc - 2, argv + 2);
}
