/* What may happen while a call is inside of the runtime. The stand-in calls `inside` (rules `call` and `call-after`),
 * and that, as told by the argument:
 *   jumps   leaves the call for good, as a signal handler does with siglongjmp
 *   calls   makes a call of its own, as a tool does that the runtime calls back
 *   again   lets another thread allocate when the block has been freed and the call has not returned: it gets the
 *           same address
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

int hipMalloc(void **, size_t);
int hipFree(void *);
int hipMemGetInfo(size_t *, size_t *);
void hip_standin_on_call(void (*)(const char *));

#define GIB (1UL << 30)

static const char *how, *leaves = "";
static sigjmp_buf place;

static void *allocate(void *out)
{
    printf("another thread: %d\n", hipMalloc(out, GIB));
    return NULL;
}

static void inside(const char *function)
{
    void *out;
    pthread_t thread;
    if (strcmp(function, leaves))
        return;
    leaves = "";
    if (!strcmp(how, "jumps"))
        siglongjmp(place, 1);
    if (!strcmp(how, "calls"))
        printf("inside: %d\n", hipMalloc(&out, GIB));
    if (!strcmp(how, "again")) {
        pthread_create(&thread, NULL, allocate, &out);
        pthread_join(thread, NULL);
    }
}

/* From other depths of the stack than the call that was left. */
static int deeper(int depth, int (*step)(void))
{
    volatile char room[1000];
    room[0] = 0;
    return depth ? deeper(depth - 1, step) + room[0] : step();
}

static void *out;
static int too_much(void) { return hipMalloc(&out, 8 * GIB); }

static void info(void)
{
    size_t available, total;
    hipMemGetInfo(&available, &total);
    printf("free %zu of %zu GiB\n", available / GIB, total / GIB);
}

int main(int argc, char **argv)
{
    void *pointer = NULL;
    how = argv[argc - 1];
    setvbuf(stdout, NULL, _IONBF, 0);
    hip_standin_on_call(inside);
    info();
    leaves = "hipMalloc";
    if (!strcmp(how, "again"))
        leaves = "";
    if (!sigsetjmp(place, 1))
        printf("hipMalloc %d\n", hipMalloc(&pointer, GIB));
    else
        puts("left");
    printf("8 GiB: %d", deeper(0, too_much));
    printf(" %d\n", deeper(20, too_much));
    info();
    if (!strcmp(how, "jumps"))
        printf("hipMalloc %d\n", hipMalloc(&pointer, GIB));
    leaves = "hipFree";
    if (!sigsetjmp(place, 1))
        printf("hipFree %d\n", hipFree(pointer));
    else
        puts("left");
    info();
    printf("hipFree %d\n", hipFree(pointer));
    info();
    return 0;
}
