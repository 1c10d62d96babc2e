// A HIP runtime for `cargo xtask bench` whose calls do next to nothing and share nothing between threads, so that what is
// timed is what stands before it. Each thread has a stack of addresses: what it frees last it gets next.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { hipSuccess, hipErrorInvalidValue, hipErrorOutOfMemory };
#define BLOCK (2ul << 20)
#define THREAD (1ul << 40)
#define VRAM (64ul << 30)

static _Atomic(uintptr_t) threads = THREAD;
static __thread uintptr_t bottom, top;
static __thread int last_error;

static int done(int error) {
  if (error) last_error = error;
  return error;
}

int hipInit(unsigned flags) { return flags ? hipErrorInvalidValue : hipSuccess; }

int hipMalloc(void **ptr, size_t size) {
  if (!ptr) return done(hipErrorInvalidValue);
  if (size > VRAM) return done(hipErrorOutOfMemory);
  if (!bottom) top = bottom = threads += THREAD;
  *ptr = (void *)top;
  top += BLOCK;
  return hipSuccess;
}

int hipFree(void *ptr) {
  if (ptr && (uintptr_t)ptr != top - BLOCK) return done(hipErrorInvalidValue);
  if (ptr) top -= BLOCK;
  return hipSuccess;
}

int hipMemGetInfo(size_t *free, size_t *total) {
  if (free) *free = VRAM - (top - bottom);
  if (total) *total = VRAM;
  return hipSuccess;
}

int hipGetDevice(int *device) {
  *device = 0;
  return hipSuccess;
}

int hipGetDeviceCount(int *count) {
  *count = 1;
  return hipSuccess;
}

int hipRuntimeGetVersion(int *version) {
  *version = 60443484;
  return hipSuccess;
}

int hipDeviceGetPCIBusId(char *text, int length, int device) {
  static const char address[] = "0000:03:00.0";
  if (device || length < (int)sizeof address) return done(hipErrorInvalidValue);
  memcpy(text, address, sizeof address);
  return hipSuccess;
}

int hipGetLastError(void) {
  int error = last_error;
  last_error = hipSuccess;
  return error;
}
