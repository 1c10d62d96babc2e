// A runtime that throws: the exception passes through whoever stands between it and the program.
#include <cstddef>
#include <cstdio>

extern "C" int hipMalloc(void **, size_t);
extern "C" int hipMemGetInfo(size_t *, size_t *);
extern "C" void hip_standin_on_call(void (*)(const char *));

static bool throws = true;

static void inside(const char *)
{
    if (throws) {
        throws = false;
        throw 1;
    }
}

int main()
{
    void *out;
    size_t available, total;
    hip_standin_on_call(inside);
    try {
        hipMalloc(&out, 1UL << 30);
    } catch (int) {
        std::puts("caught");
    }
    for (int i = 0; i < 2; i++)
        std::printf("8 GiB: %d\n", hipMalloc(&out, 8UL << 30));
    hipMemGetInfo(&available, &total);
    std::printf("free %zu of %zu GiB\n", available >> 30, total >> 30);
}
