/* How the client finds HIP's functions: linked (built with -DLINKED), or by one of several sorts of look-up in the
 * library that HIP_RUNTIME names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../tests/programs/raw_symbol.h"
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

static void *find(const char *name, const char *version)
{
    if (!strcmp(way, "raw"))
        return raw_symbol(library, name);
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
