/* Two plugins, one after the other in the same place: in_the_place_of_another RUNTIME RUNTIME PLUGIN PLUGIN */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

static void *load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        puts(dlerror());
        exit(2);
    }
    return library;
}

static size_t base(void *library)
{
    struct link_map *map;
    return dlinfo(library, RTLD_DI_LINKMAP, &map) ? 0 : map->l_addr;
}

int main(int argc, char **argv)
{
    (void)argc;
    /* The runtimes stay. */
    load(argv[1]);
    load(argv[2]);
    void *first = load(argv[3]);
    size_t place = base(first);
    printf("first: 3 GiB = %d\n", ((int (*)(unsigned long))dlsym(first, "allocate"))(3UL << 30));
    dlclose(first);
    void *second = load(argv[4]);
    ((int (*)(int))dlsym(second, "set_device"))(1);
    printf("second: 3 GiB = %d\n", ((int (*)(unsigned long))dlsym(second, "allocate"))(3UL << 30));
    printf("%s\n", base(second) == place ? "in its place" : "elsewhere");
    return 0;
}
