/* Looks names up that have nothing to do with HIP, and prints which functions of the interposer that it is
 * linked to were called for that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

void forget_calls(void);
void print_calls(void);

/* Starts like a HIP function. */
int hipIsNoSuchFunction(void)
{
    return 7;
}

int main(void)
{
    enum { COUNT = 8 };
    void *found[COUNT];
    int n = 0;
    void *self = dlopen(NULL, RTLD_NOW);
    forget_calls();
    found[n++] = dlsym(RTLD_DEFAULT, "malloc");
    found[n++] = dlsym(RTLD_NEXT, "strlen");
    found[n++] = dlsym(self, "memcpy");
    found[n++] = dlsym(RTLD_DEFAULT, "hipIsNoSuchFunction");
    found[n++] = dlsym(RTLD_NEXT, "dlvsym");
    found[n++] = dlvsym(RTLD_DEFAULT, "pthread_cond_wait", "GLIBC_2.3.2");
    found[n++] = dlvsym(RTLD_NEXT, "fopen", "GLIBC_2.2.5");
    found[n++] = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    print_calls();
    for (int i = 0; i < COUNT; i++)
        if (!found[i])
            printf("look-up %d failed\n", i);
    return 0;
}
