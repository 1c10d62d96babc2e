// The commands of hipsh that make the driver hold more for the process than what it asks HIP for.
//
//   upload NAME BYTES         hipMemcpy from the host: `ok` or `error N`
//   many COUNT BYTES          hipMalloc: `granted G refused R`; what was granted stays
//   begin-malloc NAME BYTES   hipMalloc in a thread of its own: `begun`
//   end-malloc                waits for that thread: `ok` or `error N`
//   busy THREADS MILLISECONDS hipMalloc and hipFree of 2 to 32 MiB at random: `done`; nothing stays
//   below NAME BYTES          VRAM of the first GPU, from the driver itself: `ok` or `errno N`
//   free-below NAME           `ok` or `errno N`
#pragma once
#include "hip.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void reply(hipError_t error);
static void **slot(const char *name);

static void upload(const char *name, size_t bytes) {
  void *from = calloc(1, bytes);
  reply(HIP(hipMemcpy)(*slot(name), from, bytes, hipMemcpyHostToDevice));
  free(from);
}

static void many(int count, size_t bytes) {
  int got = 0;
  for (int i = 0; i < count; i++) {
    void *pointer = NULL;
    got += HIP(hipMalloc)(&pointer, bytes) == hipSuccess;
  }
  printf("granted %d refused %d\n", got, count - got);
}

static struct { pthread_t thread; void **place; size_t bytes; hipError_t error; } aside;

static void *malloc_aside(void *unused) {
  aside.error = HIP(hipMalloc)(aside.place, aside.bytes);
  return unused;
}

static void begin_malloc(const char *name, size_t bytes) {
  aside.place = slot(name);
  aside.bytes = bytes;
  pthread_create(&aside.thread, NULL, malloc_aside, NULL);
  puts("begun");
}

static void end_malloc(void) {
  pthread_join(aside.thread, NULL);
  reply(aside.error);
}

static double busy_until;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *be_busy(void *argument) {
  enum { BLOCKS = 8 };
  void *blocks[BLOCKS] = {0};
  unsigned random = (unsigned)(uintptr_t)argument;
  while (seconds() < busy_until) {
    void **block = &blocks[rand_r(&random) % BLOCKS];
    size_t bytes = (size_t)(1 + rand_r(&random) % 16) << 21;
    if (*block) {
      HIP(hipFree)(*block);
      *block = NULL;
    } else if (HIP(hipMalloc)(block, bytes)) {
      *block = NULL;
    }
  }
  for (int i = 0; i < BLOCKS; i++) HIP(hipFree)(blocks[i]);
  return NULL;
}

static void busy(int threads, size_t milliseconds) {
  pthread_t ids[64];
  if (threads > 64) threads = 64;
  busy_until = seconds() + (double)milliseconds / 1e3;
  for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, be_busy, (void *)(uintptr_t)(i + 1));
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  puts("done");
}

// The driver's interface: kfd_ioctl_*_args of linux/kfd_ioctl.h, version 1.1 and later.
struct acquire_vm { uint32_t drm_fd, gpu_id; };
struct alloc_memory { uint64_t va, size, handle, mmap_offset; uint32_t gpu_id, flags; };
struct free_memory { uint64_t handle; };
#define ACQUIRE_VM _IOW('K', 0x15, struct acquire_vm)
#define ALLOC_MEMORY _IOWR('K', 0x16, struct alloc_memory)
#define FREE_MEMORY _IOW('K', 0x17, struct free_memory)
enum { ALLOC_VRAM = 1 << 0, ALLOC_NO_SUBSTITUTE = 1 << 28 };

static uint32_t first_gpu(void) {
  for (int node = 0; node < 64; node++) {
    char path[96];
    unsigned id = 0;
    snprintf(path, sizeof path, "/sys/class/kfd/kfd/topology/nodes/%d/gpu_id", node);
    FILE *file = fopen(path, "r");
    if (!file) continue;
    if (fscanf(file, "%u", &id) != 1) id = 0;
    fclose(file);
    if (id) return id;
  }
  return 0;
}

// The runtime's descriptor if it has one, else one of our own: to the driver both are the same process.
static int driver(void) {
  static int opened = -1;
  if (opened >= 0) return opened;
  DIR *all = opendir("/proc/self/fd");
  for (struct dirent *entry; all && (entry = readdir(all));) {
    char path[300], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    if (readlink(path, target, sizeof target - 1) > 0 && !strcmp(target, "/dev/kfd")) opened = atoi(entry->d_name);
  }
  if (all) closedir(all);
  if (opened < 0) {
    opened = open("/dev/kfd", O_RDWR | O_CLOEXEC);
    struct acquire_vm vm = {(uint32_t)open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC), first_gpu()};
    if (ioctl(opened, ACQUIRE_VM, &vm)) fprintf(stderr, "ACQUIRE_VM: %s\n", strerror(errno));
  }
  return opened;
}

static void tell_errno(int failed) {
  if (failed) printf("errno %d\n", errno);
  else puts("ok");
}

static void below(const char *name, size_t bytes) {
  // Addresses of the GPU are those of the process: nothing else can be at these.
  void *reserved = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct alloc_memory memory = {
      .va = (uintptr_t)reserved, .size = bytes, .gpu_id = first_gpu(), .flags = ALLOC_VRAM | ALLOC_NO_SUBSTITUTE};
  int failed = ioctl(driver(), ALLOC_MEMORY, &memory);
  if (!failed) *slot(name) = (void *)(uintptr_t)memory.handle;
  tell_errno(failed);
}

static void free_below(const char *name) {
  struct free_memory memory = {(uintptr_t)*slot(name)};
  tell_errno(ioctl(driver(), FREE_MEMORY, &memory));
}

// Whether the line is one of these commands.
static int driver_command(const char *line) {
  char verb[32] = "", first[64] = "", second[64] = "";
  sscanf(line, "%31s %63s %63s", verb, first, second);
  size_t bytes = strtoull(second, NULL, 0);
  if (!strcmp(verb, "upload")) upload(first, bytes);
  else if (!strcmp(verb, "many")) many(atoi(first), bytes);
  else if (!strcmp(verb, "begin-malloc")) begin_malloc(first, bytes);
  else if (!strcmp(verb, "end-malloc")) end_malloc();
  else if (!strcmp(verb, "busy")) busy(atoi(first), bytes);
  else if (!strcmp(verb, "below")) below(first, bytes);
  else if (!strcmp(verb, "free-below")) free_below(first);
  else return 0;
  return 1;
}
