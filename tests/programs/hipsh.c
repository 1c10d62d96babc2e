// A shell for HIP: one command a line on stdin, one reply a line on stdout. Tests and the demo
// drive it, several side by side where they need to.
//
//   malloc NAME BYTES        `ok` or `error N`; the pointer is kept under NAME
//   free NAME | free-null    `ok` or `error N`
//   info                     `free F total T` or `error N`
//   info-null free|total|both   hipMemGetInfo with these outputs NULL: `ok` or `error N`
//   total DEVICE             `total T` (hipDeviceTotalMem) or `error N`
//   properties WHICH DEVICE  the bytes of the structure in hex; WHICH: plain R0600 R0000
//   init                     hipInit: `ok` or `error N`
//   attribute NUMBER DEVICE  `value V` (hipDeviceGetAttribute) or `error N`; `null` for DEVICE 0 without an output
//   attributes DEVICE        all that are answered: `NUMBER=VALUE ...`
//   device N                 hipSetDevice
//   last-error               what hipGetLastError gives
//   child HOW                a child that ends by exit, _exit, abort, exec, vfork or spawn: `status N`
//   racers THREADS BYTES     all allocate BYTES at once: `granted G refused R`; what was granted stays
//   beside LARGE COUNT BYTES  allocates BYTES COUNT times while another thread allocates and frees LARGE
//                            all the time: `granted G refused R`; all is freed again
//   churn THREADS BYTES      that many threads allocate and free BYTES until `calm`: `ok`
//   calm                     ends that: `granted G refused R wrong W` (W: other errors)
//   pid                      `pid N`
//   setenv NAME VALUE | unsetenv NAME | clearenv   `ok`
//   getenv NAME              `value V`, or `unset`
//   exec                     starts this program anew in the same process: `ready`
//   workers | dismiss        forked workers: see hipsh_workers.h
//   upload, many, below ...  what makes the driver hold more: see hipsh_driver.h
//   hipMallocPitch NAME ...  and other functions by their own names: see hipsh_memory.h
//   quit | _exit | abort     ends
#include "hip.h"
#include "hipsh_driver.h"
#include "hipsh_memory.h"
#include "hipsh_workers.h"
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST = 4096, PROPERTIES = 4096, UNTOUCHED = 0xa5 };
static struct { char name[32]; void *pointer; } kept[MOST];

static void reply(hipError_t error) {
  if (error) printf("error %d\n", error);
  else puts("ok");
}

static void **slot(const char *name) {
  int unused = -1;
  for (int i = 0; i < MOST; i++) {
    if (!strcmp(kept[i].name, name)) return &kept[i].pointer;
    if (unused < 0 && !kept[i].name[0]) unused = i;
  }
  if (unused < 0) exit(4);
  snprintf(kept[unused].name, sizeof kept[unused].name, "%s", name);
  return &kept[unused].pointer;
}

static void info_with_null(const char *which) {
  size_t available = 0, total = 0;
  int no_free = strcmp(which, "total"), no_total = strcmp(which, "free");
  reply(HIP(hipMemGetInfo)(no_free ? NULL : &available, no_total ? NULL : &total));
}

static void properties(const char *which, int device) {
  static unsigned char bytes[PROPERTIES];
  memset(bytes, UNTOUCHED, sizeof bytes);
  hipError_t (*get)(void *, int) = HIP(hipGetDeviceProperties);
  if (!strcmp(which, "R0600")) get = HIP(hipGetDevicePropertiesR0600);
  if (!strcmp(which, "R0000")) get = HIP(hipGetDevicePropertiesR0000);
  if (!get) {
    puts("absent");
    return;
  }
  hipError_t error = get(bytes, device);
  if (error) {
    reply(error);
    return;
  }
  for (size_t i = 0; i < sizeof bytes; i++) printf("%02x", bytes[i]);
  putchar('\n');
}

static void attribute(const char *number, const char *device) {
  int value = 0;
  int *place = strcmp(device, "null") ? &value : NULL;
  hipError_t error = HIP(hipDeviceGetAttribute)(place, atoi(number), place ? atoi(device) : 0);
  if (error) reply(error);
  else printf("value %d\n", value);
}

// The numbers end before 120, and from 10000 on before 10040; 5.2 crashes with ones that it does not know.
static void attributes(int device) {
  for (int number = 0; number < 10040; number = number == 119 ? 10000 : number + 1) {
    int value = 0;
    if (!HIP(hipDeviceGetAttribute)(&value, number, device)) printf("%d=%d ", number, value);
  }
  putchar('\n');
}

static void child(const char *how) {
  char *arguments[] = {"true", NULL};
  int status = -1;
  pid_t pid;
  fflush(stdout);
  if (!strcmp(how, "spawn")) {
    if (posix_spawnp(&pid, "true", NULL, NULL, arguments, environ)) pid = -1;
  } else if (!strcmp(how, "vfork")) {
    pid = vfork();
    if (!pid) _exit(0);
  } else {
    pid = fork();
    if (!pid) {
      if (!strcmp(how, "exec")) execvp("true", arguments);
      if (!strcmp(how, "abort")) abort();
      if (!strcmp(how, "_exit")) _exit(0);
      exit(0);
    }
  }
  if (pid > 0) waitpid(pid, &status, 0);
  printf("status %d\n", status);
}

static pthread_barrier_t together;
static size_t bytes_each;
static int granted, refused;

static void *racer(void *unused) {
  void *pointer = NULL;
  pthread_barrier_wait(&together);
  hipError_t error = HIP(hipMalloc)(&pointer, bytes_each);
  __atomic_add_fetch(error ? &refused : &granted, 1, __ATOMIC_SEQ_CST);
  return unused;
}

static void race(int threads, size_t bytes) {
  pthread_t ids[256];
  if (threads > 256) threads = 256;
  bytes_each = bytes;
  granted = refused = 0;
  pthread_barrier_init(&together, NULL, (unsigned)threads);
  for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, racer, NULL);
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  printf("granted %d refused %d\n", granted, refused);
}

static size_t large_bytes;
static int is_over;

static void *comes_and_goes(void *unused) {
  while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
    void *pointer = NULL;
    if (!HIP(hipMalloc)(&pointer, large_bytes)) HIP(hipFree)(pointer);
  }
  return unused;
}

static void beside(size_t large, int count, size_t bytes) {
  pthread_t other;
  void **pointers = calloc((size_t)count, sizeof *pointers);
  if (!pointers) exit(4);
  large_bytes = large;
  granted = is_over = 0;
  pthread_create(&other, NULL, comes_and_goes, NULL);
  for (int i = 0; i < count; i++) granted += !HIP(hipMalloc)(&pointers[i], bytes);
  __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
  pthread_join(other, NULL);
  for (int i = 0; i < count; i++) HIP(hipFree)(pointers[i]);
  free(pointers);
  printf("granted %d refused %d\n", granted, count - granted);
}

enum { MOST_CHURNERS = 16 };
static pthread_t churners[MOST_CHURNERS];
static int churning, wrong;

static void *churner(void *unused) {
  int gotten = 0, denied = 0, others = 0;
  while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
    void *pointer = NULL;
    hipError_t error = HIP(hipMalloc)(&pointer, large_bytes);
    if (!error && pointer) {
      gotten++;
      others += HIP(hipFree)(pointer) != hipSuccess;
    } else if (error == hipErrorOutOfMemory && !pointer) denied++;
    else others++;
  }
  __atomic_add_fetch(&granted, gotten, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&refused, denied, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&wrong, others, __ATOMIC_SEQ_CST);
  return unused;
}

static void churn(int threads, size_t bytes) {
  large_bytes = bytes;
  granted = refused = wrong = is_over = 0;
  churning = threads > MOST_CHURNERS ? MOST_CHURNERS : threads;
  for (int i = 0; i < churning; i++) pthread_create(&churners[i], NULL, churner, NULL);
  puts("ok");
}

static void calm(void) {
  __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < churning; i++) pthread_join(churners[i], NULL);
  churning = 0;
  printf("granted %d refused %d wrong %d\n", granted, refused, wrong);
}

static void command(char *line) {
  if (driver_command(line) || memory_command(line)) return;
  char verb[32] = "", first[64] = "", second[64] = "", third[64] = "";
  sscanf(line, "%31s %63s %63s %63s", verb, first, second, third);
  size_t available = 0, total = 0;
  hipError_t error;
  if (!strcmp(verb, "malloc")) {
    void *pointer = NULL;
    error = HIP(hipMalloc)(&pointer, strtoull(second, NULL, 0));
    if (!error) *slot(first) = pointer;
    reply(error);
  } else if (!strcmp(verb, "free")) {
    reply(HIP(hipFree)(*slot(first)));
  } else if (!strcmp(verb, "free-null")) {
    reply(HIP(hipFree)(NULL));
  } else if (!strcmp(verb, "info")) {
    error = HIP(hipMemGetInfo)(&available, &total);
    if (error) reply(error);
    else printf("free %zu total %zu\n", available, total);
  } else if (!strcmp(verb, "info-null")) {
    info_with_null(first);
  } else if (!strcmp(verb, "total")) {
    error = HIP(hipDeviceTotalMem)(&total, atoi(first));
    if (error) reply(error);
    else printf("total %zu\n", total);
  } else if (!strcmp(verb, "properties")) {
    properties(first, atoi(second));
  } else if (!strcmp(verb, "init")) {
    reply(HIP(hipInit)(0));
  } else if (!strcmp(verb, "attribute")) {
    attribute(first, second);
  } else if (!strcmp(verb, "attributes")) {
    attributes(atoi(first));
  } else if (!strcmp(verb, "setenv")) {
    reply(setenv(first, second, 1));
  } else if (!strcmp(verb, "unsetenv")) {
    reply(unsetenv(first));
  } else if (!strcmp(verb, "clearenv")) {
    reply(clearenv());
  } else if (!strcmp(verb, "getenv")) {
    if (getenv(first)) printf("value %s\n", getenv(first));
    else puts("unset");
  } else if (!strcmp(verb, "device")) {
    reply(HIP(hipSetDevice)(atoi(first)));
  } else if (!strcmp(verb, "last-error")) {
    printf("last-error %d\n", HIP(hipGetLastError)());
  } else if (!strcmp(verb, "child")) {
    child(first);
  } else if (!strcmp(verb, "racers")) {
    race(atoi(first), strtoull(second, NULL, 0));
  } else if (!strcmp(verb, "beside")) {
    beside(strtoull(first, NULL, 0), atoi(second), strtoull(third, NULL, 0));
  } else if (!strcmp(verb, "churn")) {
    churn(atoi(first), strtoull(second, NULL, 0));
  } else if (!strcmp(verb, "calm")) {
    calm();
  } else if (!strcmp(verb, "workers")) {
    start_workers(atoi(first), strtoull(second, NULL, 0));
  } else if (!strcmp(verb, "dismiss")) {
    dismiss_workers();
  } else if (!strcmp(verb, "pid")) {
    printf("pid %d\n", getpid());
  } else if (!strcmp(verb, "exec")) {
    execl("/proc/self/exe", "hipsh", (char *)NULL);
    printf("error %d\n", errno);
  } else if (!strcmp(verb, "quit")) {
    exit(0);
  } else if (!strcmp(verb, "_exit")) {
    _exit(0);
  } else if (!strcmp(verb, "abort")) {
    abort();
  } else {
    printf("unknown command %s\n", verb);
  }
}

int main(void) {
  char line[256];
  hip_open();
  // Unbuffered input: what is not read yet must survive an exec.
  setvbuf(stdin, NULL, _IONBF, 0);
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("ready");
  while (fgets(line, sizeof line, stdin)) command(line);
  return 0;
}
