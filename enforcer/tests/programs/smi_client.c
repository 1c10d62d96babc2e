/* Asks SMI libraries what its arguments say and prints the answers, one line each.
 *
 * smi_client WAY COMMAND...
 * WAY: how the functions are found: linked (built with -DLINKED), dlsym, dlvsym, default, next, program; by look-up
 * in the libraries that SMI_ROCM and SMI_AMD name.
 * Commands, with fields separated by colons; DEVICE: an index; TYPE: 0 VRAM, 1 what the CPU can reach, 2 GTT:
 *   total:DEVICE:TYPE   used:DEVICE:TYPE   amd_total:DEVICE:TYPE   amd_used:DEVICE:TYPE
 *   usage:DEVICE   info:DEVICE (prints the words that differ from what the library says to itself)
 *   inner:DEVICE (what the library says to itself)   null (every function without a place for the answer)
 *   again (closes the libraries, loads and looks up anew)   other:PATH (goes on with this one for SMI_ROCM)
 *   malloc:BYTES   free_memory (HIP, of the library that HIP_RUNTIME names)
 *   limit:TEXT (sets FH_MEMORY_LIMIT)   fork (the other commands in a child)   wait (for a line on stdin) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "smi.h"

#define POINTER(name, parameters) int (*name) parameters;
static struct { RSMI_FUNCTIONS(POINTER) AMDSMI_FUNCTIONS(POINTER) } smi;
#undef POINTER

#ifdef LINKED

static void find_functions(void)
{
#define TAKE(name, parameters) smi.name = name;
    RSMI_FUNCTIONS(TAKE)
    AMDSMI_FUNCTIONS(TAKE)
#undef TAKE
}

#else

static const char *way;
static void *rocm, *amd;

static void *find(void *library, const char *name)
{
    if (!strcmp(way, "dlsym"))
        return dlsym(library, name);
    if (!strcmp(way, "dlvsym"))
        return dlvsym(library, name, "AMDSMI_1");
    if (!strcmp(way, "default"))
        return dlsym(RTLD_DEFAULT, name);
    if (!strcmp(way, "next"))
        return dlsym(RTLD_NEXT, name);
    if (!strcmp(way, "program"))
        return dlsym(dlopen(NULL, RTLD_NOW), name);
    exit(2);
}

static void *load(const char *variable)
{
    int by_handle = !strcmp(way, "dlsym") || !strcmp(way, "dlvsym");
    const char *path = getenv(variable);
    void *library = path ? dlopen(path, RTLD_NOW | (by_handle ? RTLD_LOCAL : RTLD_GLOBAL)) : NULL;
    if (path && !library) {
        puts(dlerror());
        exit(2);
    }
    return library;
}

static void find_in_rocm(void)
{
#define FIND(name, parameters) *(void **)&smi.name = rocm ? find(rocm, #name) : NULL;
    RSMI_FUNCTIONS(FIND)
#undef FIND
}

static void find_functions(void)
{
    rocm = load("SMI_ROCM");
    amd = load("SMI_AMD");
    find_in_rocm();
#define FIND(name, parameters) *(void **)&smi.name = amd ? find(amd, #name) : NULL;
    AMDSMI_FUNCTIONS(FIND)
#undef FIND
    /* A look-up that found something leaves no error behind. */
    if (rocm && amd && dlerror())
        puts("an error was left behind");
}

#endif

static void *device(char *index)
{
    void *handle = NULL;
    smi.standin_device(atoi(index), &handle);
    return handle;
}

/* Prints the words in which two answers differ; what lies around them is compared, too. */
static void compare(const char *what, int (*get)(void *, void *), int (*native)(void *, void *), void *handle)
{
    static uint32_t seen[1024], expected[1024];
    memset(seen, 0xa5, sizeof seen);
    memset(expected, 0xa5, sizeof expected);
    printf("%s = %d", what, get(handle, seen + 256));
    native(handle, expected + 256);
    for (int i = 0; i < 1024; i++)
        if (seen[i] != expected[i])
            printf(" %d: %u", (i - 256) * 4, seen[i]);
    puts("");
}

static void *hip(const char *name)
{
    static void *runtime;
    if (!runtime)
        runtime = dlopen(getenv("HIP_RUNTIME"), RTLD_NOW | RTLD_LOCAL);
    return dlsym(runtime, name);
}

static void run(const char *command)
{
    char text[256], *rest = text;
    snprintf(text, sizeof text, "%s", command);
    char *name = strsep(&rest, ":"), *first = strsep(&rest, ":"), *second = strsep(&rest, ":");
    uint64_t answer = 0xa5a5a5a5a5a5a5a5;
    int status;
    if (!strcmp(name, "total") && !smi.rsmi_dev_memory_total_get) {
        puts("no rsmi_dev_memory_total_get");
        return;
    }
    if (!strcmp(name, "total"))
        status = smi.rsmi_dev_memory_total_get((uint32_t)atoi(first), atoi(second), &answer);
    else if (!strcmp(name, "used"))
        status = smi.rsmi_dev_memory_usage_get((uint32_t)atoi(first), atoi(second), &answer);
    else if (!strcmp(name, "amd_total"))
        status = smi.amdsmi_get_gpu_memory_total(device(first), atoi(second), &answer);
    else if (!strcmp(name, "amd_used"))
        status = smi.amdsmi_get_gpu_memory_usage(device(first), atoi(second), &answer);
    else if (!strcmp(name, "inner"))
        status = smi.standin_inner_total(device(first), &answer);
    else if (!strcmp(name, "usage"))
        return compare(command, smi.amdsmi_get_gpu_vram_usage, smi.standin_vram_usage, device(first));
    else if (!strcmp(name, "info"))
        return compare(command, smi.amdsmi_get_gpu_vram_info, smi.standin_vram_info, device(first));
    else if (!strcmp(name, "null")) {
        void *handle = device("0");
        printf("null = %d %d %d %d %d %d\n", smi.rsmi_dev_memory_total_get(0, VRAM, NULL),
               smi.rsmi_dev_memory_usage_get(0, VRAM, NULL), smi.amdsmi_get_gpu_memory_total(handle, VRAM, NULL),
               smi.amdsmi_get_gpu_memory_usage(handle, VRAM, NULL), smi.amdsmi_get_gpu_vram_usage(handle, NULL),
               smi.amdsmi_get_gpu_vram_info(handle, NULL));
        return;
    } else if (!strcmp(name, "malloc")) {
        void *pointer;
        int (*allocate)(void **, size_t);
        *(void **)&allocate = hip("hipMalloc");
        printf("%s = %d\n", command, allocate(&pointer, strtoull(first, NULL, 0)));
        return;
    } else if (!strcmp(name, "free_memory")) {
        size_t left, all;
        int (*ask)(size_t *, size_t *);
        *(void **)&ask = hip("hipMemGetInfo");
        status = ask(&left, &all);
        printf("%s = %d used %zu of %zu\n", command, status, all - left, all);
        return;
    } else if (!strcmp(name, "limit")) {
        setenv("FH_MEMORY_LIMIT", first, 1);
        return;
    } else if (!strcmp(name, "wait")) {
        fflush(stdout);
        if (getchar() == EOF)
            exit(4);
        return;
#ifndef LINKED
    } else if (!strcmp(name, "again")) {
        int closed = dlclose(rocm) + (amd ? dlclose(amd) : 0);
        printf("again = %d\n", closed);
        find_functions();
        return;
    } else if (!strcmp(name, "other")) {
        setenv("SMI_ROCM", first, 1);
        rocm = load("SMI_ROCM");
        find_in_rocm();
        return;
#endif
    } else
        exit(2);
    printf("%s = %d %lu\n", command, status, answer);
}

int main(int count, char **arguments)
{
#ifndef LINKED
    way = arguments[1];
#endif
    find_functions();
    for (int i = 2; i < count; i++) {
        if (!strcmp(arguments[i], "fork")) {
            int status = 1;
            fflush(stdout);
            pid_t child = fork();
            if (child) {
                waitpid(child, &status, 0);
                return status != 0;
            }
            continue;
        }
        run(arguments[i]);
    }
    return 0;
}
