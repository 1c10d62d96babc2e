/* Asks the dynamic linker many things and prints the answers, as far as they do not depend on where things
 * are loaded: the name of the object and of the symbol, or the error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
int hipMalloc(void **, size_t);
static void *use = (void *)hipMalloc;
#endif

static void show(const char *question, const char *name, void *answer)
{
    const char *error = dlerror();
    Dl_info info = { 0 };
    if (answer)
        dladdr(answer, &info);
    const char *file = info.dli_fname ? info.dli_fname : "-";
    if (strrchr(file, '/'))
        file = strrchr(file, '/') + 1;
    printf("%s(%s): %s %s; %s\n", question, name, file, info.dli_sname ? info.dli_sname : "-",
           error ? error : "no error");
}

int main(void)
{
    /* Not one of these is a hooked name that a runtime has. */
    static const char *const names[] = {
        "puts", "dlsym", "no_such_function", "hip", "hipNoSuchFunction", "hipGetDevice", "hipSetDevice", "hipMallo", "hipMallocX", "",
        "rsmi_dev_memory_tota", "rsmi_dev_memory_total_getX", "amdsmi_init", "r", "a",
    };
    void *runtime = dlopen(getenv("HIP_RUNTIME"), RTLD_NOW | RTLD_LOCAL);
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    void *program = dlopen(NULL, RTLD_NOW);
    /* A successful look-up leaves no error behind. */
    dlerror();
    void *found = dlsym(runtime, "hipMalloc");
    const char *error = dlerror();
    printf("%d %s\n", found != NULL, error ? error : "no error");
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        const char *name = names[i];
        if (strcmp(name, "dlsym"))
            show("default", name, dlsym(RTLD_DEFAULT, name));
        if (strcmp(name, "dlsym"))
            show("next", name, dlsym(RTLD_NEXT, name));
        show("runtime", name, dlsym(runtime, name));
        show("libc", name, dlsym(libc, name));
        if (strcmp(name, "dlsym"))
            show("program", name, dlsym(program, name));
        show("runtime hip_4.2", name, dlvsym(runtime, name, "hip_4.2"));
        show("libc GLIBC_2.2.5", name, dlvsym(libc, name, "GLIBC_2.2.5"));
    }
    /* Hooked names where they cannot be found. */
    static const char *const smi[] = { "rsmi_dev_memory_total_get", "amdsmi_get_gpu_vram_info" };
    for (unsigned i = 0; i < 2; i++) {
        show("runtime", smi[i], dlsym(runtime, smi[i]));
        show("libc", smi[i], dlsym(libc, smi[i]));
        /* The text of the error names another object. */
        printf("%d %d %d %d", dlsym(RTLD_DEFAULT, smi[i]) == NULL, dlsym(RTLD_NEXT, smi[i]) == NULL,
               dlsym(program, smi[i]) == NULL, dlvsym(RTLD_DEFAULT, smi[i], "AMDSMI_1") == NULL);
        printf(" %d\n", dlerror() != NULL);
    }
    show("libc", "hipMalloc", dlsym(libc, "hipMalloc"));
    show("runtime hip_9.9", "hipMalloc", dlvsym(runtime, "hipMalloc", "hip_9.9"));
    show("runtime hip_4.2", "hipGetDevicePropertiesR0600",
         dlvsym(runtime, "hipGetDevicePropertiesR0600", "hip_4.2"));
#ifndef LINKED
    /* The runtime is local: neither of these sees it. The text of the error names another object. */
    printf("%d %d %d\n", dlsym(RTLD_DEFAULT, "hipMalloc") == NULL, dlsym(RTLD_NEXT, "hipMalloc") == NULL,
           dlsym(program, "hipMalloc") == NULL);
    printf("%d\n", dlerror() != NULL);
    printf("%d\n", dlvsym(RTLD_DEFAULT, "hipMalloc", "hip_4.2") == NULL);
    printf("%d\n", dlerror() != NULL);
#else
    printf("%d\n", use != NULL);
#endif
    printf("%d %d\n", dlsym(runtime, "hipGetDevicePropertiesR0600") != NULL, dlerror() != NULL);
    return 0;
}
