/* Uses HIP if it is there: a weak reference, and no runtime among its libraries. */
#include <stdio.h>

int hipMalloc(void **, size_t) __attribute__((weak));

int main(void)
{
    void *out;
    if (!hipMalloc) {
        puts("no HIP");
        return 0;
    }
    for (int i = 0; i < 2; i++)
        printf("hipMalloc = %d\n", hipMalloc(&out, 1 << 20));
    return 0;
}
