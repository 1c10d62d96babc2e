/* A HIP runtime without a GPU: just enough of libamdhip64.so.6 for the functions that are hooked.
 * It keeps its own account, and knows nothing of anybody who stands before it.
 *
 * Built with -DOLD it lacks the functions that came with ROCm 6.
 *
 * FAKE_VRAM        bytes of each device (default 64 GiB)
 * FAKE_DEVICES     PCI addresses, separated by commas (default 0000:03:00.0)
 * FAKE_NO_GPU      every call fails with hipErrorNoDevice
 * FAKE_FAIL_MALLOC the nth hipMalloc fails with hipErrorOutOfMemory
 * FAKE_NULL_MALLOC hipMalloc succeeds with a null pointer
 * FAKE_FAIL_FREE   the nth hipFree fails with hipErrorInvalidValue
 * FAKE_NESTED      hipMalloc and hipFree do their work by calling themselves, as through the PLT
 * FAKE_KILL_MALLOC the nth hipMalloc kills the process with SIGKILL before it returns
 * FAKE_SHARED      a file with two numbers: bytes held by all processes of the device, and their peak
 * FAKE_SLEEP_MALLOC the nth hipMalloc takes ten seconds, at a cancellation point
 * FAKE_CANCEL_POINT hipGetDevice is a cancellation point
 * FAKE_SAME_ADDRESS every block has the same address
 *
 * hipMalloc and hipFree call `inside`, with their name, if the program has such a function.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { Success = 0, InvalidValue = 1, OutOfMemory = 2, NoDevice = 100, InvalidDevice = 101 };
enum { MaxBlocks = 1 << 16, MaxDevices = 8 };

static struct { uintptr_t at; size_t bytes; int device; } blocks[MaxBlocks];
static uintptr_t next_address = 0x700000000000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int last_error, current;
static int mallocs, frees;

static long number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int address_of(int device, char *out, size_t size)
{
    const char *list = getenv("FAKE_DEVICES") ? getenv("FAKE_DEVICES") : "0000:03:00.0";
    for (int i = 0; device >= 0; i++) {
        size_t length = strcspn(list, ",");
        if (i == device) {
            if (out)
                snprintf(out, size, "%.*s", (int)length, list);
            return 1;
        }
        if (!list[length])
            return 0;
        list += length + 1;
    }
    return 0;
}

/* What all processes hold, if anybody wants to know. */
static _Atomic size_t *shared(void)
{
    static _Atomic(_Atomic size_t *) account;
    const char *path = getenv("FAKE_SHARED");
    if (path && !account) {
        int file = open(path, O_RDWR);
        account = mmap(NULL, 2 * sizeof(size_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    return account;
}

static void hold(size_t bytes)
{
    _Atomic size_t *account = shared();
    if (!account)
        return;
    size_t now = atomic_fetch_add(&account[0], bytes) + bytes, peak = atomic_load(&account[1]);
    while (now > peak && !atomic_compare_exchange_weak(&account[1], &peak, now))
        ;
}

static void let_go(size_t bytes)
{
    _Atomic size_t *account = shared();
    if (account)
        atomic_fetch_sub(&account[0], bytes);
}

__attribute__((weak)) void inside(const char *function);

static int returns(int error)
{
    if (error)
        last_error = error;
    return error;
}

static size_t vram(void)
{
    return (size_t)number("FAKE_VRAM", 64L << 30);
}

static size_t used(int device)
{
    size_t sum = 0;
    for (int i = 0; i < MaxBlocks; i++)
        if (blocks[i].at && blocks[i].device == device)
            sum += blocks[i].bytes;
    return sum;
}

int hipMalloc(void **out, size_t bytes);
int hipFree(void *pointer);

/* The linker decides where these lead, as it does for a call through the PLT. (A compiler may take a function's call of
 * itself for one that stays inside.) */
static int (*volatile through_plt_malloc)(void **, size_t) = hipMalloc;
static int (*volatile through_plt_free)(void *) = hipFree;

int hipMalloc(void **out, size_t bytes)
{
    static __thread int nested;
    if (getenv("FAKE_NO_GPU"))
        return returns(NoDevice);
    if (!out)
        return returns(InvalidValue);
    if (getenv("FAKE_NESTED") && !nested) {
        nested = 1;
        int error = through_plt_malloc(out, bytes);
        nested = 0;
        return error;
    }
    if (bytes == 0) {
        *out = NULL;
        return returns(Success);
    }
    if (bytes > vram())
        return returns(OutOfMemory);
    if (inside)
        inside("hipMalloc");
    if (mallocs + 1 == number("FAKE_SLEEP_MALLOC", 0)) {
        mallocs++;
        sleep(10);
    }
    pthread_mutex_lock(&lock);
    int call = ++mallocs, error = OutOfMemory;
    if (call == number("FAKE_KILL_MALLOC", 0))
        kill(getpid(), SIGKILL);
    if (call != number("FAKE_FAIL_MALLOC", 0) && used(current) + bytes <= vram()) {
        for (int i = 0; i < MaxBlocks && error; i++) {
            if (blocks[i].at)
                continue;
            hold(bytes);
            blocks[i].at = next_address;
            blocks[i].bytes = bytes;
            blocks[i].device = current;
            if (!getenv("FAKE_SAME_ADDRESS"))
                next_address += (bytes + 0xfff) & ~(size_t)0xfff;
            *out = getenv("FAKE_NULL_MALLOC") ? NULL : (void *)blocks[i].at;
            error = Success;
        }
    }
    pthread_mutex_unlock(&lock);
    return returns(error);
}

int hipFree(void *pointer)
{
    static __thread int nested;
    if (getenv("FAKE_NO_GPU"))
        return returns(NoDevice);
    if (!pointer)
        return returns(Success);
    if (getenv("FAKE_NESTED") && !nested) {
        nested = 1;
        int error = through_plt_free(pointer);
        nested = 0;
        return error;
    }
    if (inside)
        inside("hipFree");
    pthread_mutex_lock(&lock);
    int error = InvalidValue;
    if (++frees != number("FAKE_FAIL_FREE", 0)) {
        for (int i = 0; i < MaxBlocks; i++) {
            /* As the real ones do, also by an address inside of a block. */
            if (blocks[i].at && (uintptr_t)pointer - blocks[i].at < blocks[i].bytes) {
                let_go(blocks[i].bytes);
                blocks[i].at = 0;
                error = Success;
                break;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return returns(error);
}

int hipMemGetInfo(size_t *free_bytes, size_t *total)
{
    if (getenv("FAKE_NO_GPU"))
        return returns(NoDevice);
    pthread_mutex_lock(&lock);
    if (free_bytes)
        *free_bytes = vram() - used(current);
    if (total)
        *total = vram();
    pthread_mutex_unlock(&lock);
    return returns(Success);
}

int hipDeviceTotalMem(size_t *bytes, int device)
{
    if (!bytes)
        return returns(InvalidValue);
    if (!address_of(device, NULL, 0))
        return returns(InvalidDevice);
    *bytes = vram();
    return returns(Success);
}

static int properties(char *out, int device, size_t size, size_t total_at)
{
    if (!out)
        return returns(InvalidValue);
    if (!address_of(device, NULL, 0))
        return returns(InvalidDevice);
    memset(out, 0x77, size);
    strcpy(out, "Fake GPU");
    size_t total = vram();
    memcpy(out + total_at, &total, sizeof total);
    return returns(Success);
}

#ifndef OLD
int hipGetDevicePropertiesR0600(void *out, int device) { return properties(out, device, 1472, 288); }
int hipGetDevicePropertiesR0000(void *out, int device) { return properties(out, device, 792, 256); }
#endif
int hipGetDeviceProperties(void *out, int device) { return properties(out, device, 792, 256); }

int hipGetDevice(int *device)
{
    if (getenv("FAKE_NO_GPU"))
        return returns(NoDevice);
    if (getenv("FAKE_CANCEL_POINT"))
        pthread_testcancel();
    *device = current;
    return returns(Success);
}

int hipSetDevice(int device)
{
    if (!address_of(device, NULL, 0))
        return returns(InvalidDevice);
    current = device;
    return returns(Success);
}

int hipDeviceGetPCIBusId(char *out, int size, int device)
{
    return returns(address_of(device, out, (size_t)size) ? Success : InvalidDevice);
}

int hipGetLastError(void)
{
    int error = last_error;
    last_error = 0;
    return error;
}

int hipPeekAtLastError(void) { return last_error; }
