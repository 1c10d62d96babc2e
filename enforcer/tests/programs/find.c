/* How the client finds HIP's functions: linked (built with -DLINKED), or by one of several sorts of look-up in the
 * library that HIP_RUNTIME names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hip.h"

struct hip hip;

void missing(const char *name)
{
    printf("no %s\n", name);
    exit(3);
}

#ifdef LINKED

/* Weak: not every runtime has all of them. */
#define F(name, version, parameters) __attribute__((weak)) int name parameters;
HIP_FUNCTIONS(F)
#undef F

void find_functions(const char *way)
{
    if (strcmp(way, "linked"))
        exit(2);
#define F(name, version, parameters) hip.name = name;
    HIP_FUNCTIONS(F)
#undef F
}

#else

static const char *way;
static void *library;

/* The address of a function that nobody was asked for by its name: from the symbol table of a loaded library. */
static void *raw(void *handle, const char *name)
{
    struct link_map *map;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map))
        return NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            names = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH)
            hash = (const void *)entry->d_un.d_ptr;
    }
    /* All symbols that are defined, by the chains of all buckets. */
    const uint32_t *buckets = hash + 4 + 2 * hash[2], *chains = buckets + hash[0];
    for (uint32_t bucket = 0; bucket < hash[0]; bucket++)
        for (uint32_t n = buckets[bucket]; n >= hash[1]; n++) {
            if (!strcmp(names + symbols[n].st_name, name) && symbols[n].st_shndx)
                return (char *)map->l_addr + symbols[n].st_value;
            if (chains[n - hash[1]] & 1)
                break;
        }
    return NULL;
}

static void *find(const char *name, const char *version)
{
    if (!strcmp(way, "raw"))
        return raw(library, name);
    if (!strcmp(way, "dlsym") || !strcmp(way, "deepbind"))
        return dlsym(library, name);
    if (!strcmp(way, "dlvsym"))
        return dlvsym(library, name, version);
    if (!strcmp(way, "default"))
        return dlsym(RTLD_DEFAULT, name);
    if (!strcmp(way, "next"))
        return dlsym(RTLD_NEXT, name);
    if (!strcmp(way, "program"))
        return dlsym(dlopen(NULL, RTLD_NOW), name);
    exit(2);
}

void find_functions(const char *the_way)
{
    way = the_way;
    const char *runtime = getenv("HIP_RUNTIME");
    int by_handle = !strcmp(way, "dlsym") || !strcmp(way, "dlvsym") || !strcmp(way, "raw");
    int flags = by_handle ? RTLD_LOCAL : RTLD_GLOBAL;
    if (!strcmp(way, "deepbind"))
        flags = RTLD_LOCAL | RTLD_DEEPBIND;
    library = runtime ? dlopen(runtime, RTLD_NOW | flags) : NULL;
    if (!library) {
        printf("HIP_RUNTIME: %s\n", runtime ? dlerror() : "not set");
        exit(3);
    }
    /* What a program does that computes addresses: it has asked for another one. */
    if (!strcmp(way, "raw") && !dlsym(library, "hipGetDeviceCount"))
        missing("hipGetDeviceCount");
#define F(name, version, parameters) hip.name = find(#name, version);
    HIP_FUNCTIONS(F)
#undef F
}

#endif
