/* A library that has nothing to do with GPUs and happens to export this name. */
#include <stddef.h>

int hipMalloc(void **out, size_t bytes)
{
    *out = (void *)bytes;
    return 42;
}
