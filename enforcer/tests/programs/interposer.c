/* Stands before libc with every function of NAMES, a list X(name) X(name) ..., as sanitizers and profilers
 * do: it looks the real ones up in its constructor, can forward nothing until then, and counts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

#define X(name)                                                                                            \
    __attribute__((used)) static void *real_##name;                                                        \
    __attribute__((used)) static long calls_##name;                                                        \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"                            \
            "lock incq calls_" #name "(%rip)\n"                                                            \
            "jmp *real_" #name "(%rip)\n"                                                                  \
            ".size " #name ", . - " #name "\n");
NAMES
#undef X

static struct { const char *name; void **real; long *calls; } functions[] = {
#define X(name) { #name, &real_##name, &calls_##name },
    NAMES
#undef X
};
enum { COUNT = sizeof functions / sizeof *functions };

__attribute__((constructor)) static void find(void)
{
    for (int i = 0; i < COUNT; i++)
        *functions[i].real = dlsym(RTLD_NEXT, functions[i].name);
}

/* Forgets the calls so far. */
void forget_calls(void)
{
    for (int i = 0; i < COUNT; i++)
        *functions[i].calls = 0;
}

/* Freezes the calls so far, then prints them. */
void print_calls(void)
{
    long calls[COUNT];
    for (int i = 0; i < COUNT; i++)
        calls[i] = *functions[i].calls;
    for (int i = 0; i < COUNT; i++)
        if (calls[i])
            printf("%s was called %ld times\n", functions[i].name, calls[i]);
    printf("%d functions\n", COUNT);
}
