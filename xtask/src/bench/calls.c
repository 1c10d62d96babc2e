// Times HIP calls for `cargo xtask bench`. It knows nothing of hipflex.
//
// Each line of stdin is a measurement, `WHAT THREADS COUNT`; the answer is `NS OVERLAP`: nanoseconds for each of COUNT
// in one thread, and which part of the time, in percent, all threads were at work.
//
//   pair   a hipMalloc and a hipFree
//   info   a hipMemGetInfo
//   floor  two plain atomic operations on one word of shared memory: what an account that several processes share
//          cannot do without
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

int hipMalloc(void **ptr, size_t size);
int hipFree(void *ptr);
int hipMemGetInfo(size_t *free, size_t *total);

enum { MaxThreads = 8, Size = 1 << 20 };

struct job {
  void (*work)(long count);
  long count;
  int cpu;
  int64_t start, end;
};

static _Atomic(uint64_t) *word;
static atomic_int waiting;

static void fail(const char *what) {
  fprintf(stderr, "%s failed\n", what);
  exit(1);
}

static void pair(long count) {
  for (long i = 0; i < count; i++) {
    void *block;
    if (hipMalloc(&block, Size)) fail("hipMalloc");
    if (hipFree(block)) fail("hipFree");
  }
}

static void info(long count) {
  for (long i = 0; i < count; i++) {
    size_t free, total;
    if (hipMemGetInfo(&free, &total)) fail("hipMemGetInfo");
  }
}

static void atomics(long count) {
  for (long i = 0; i < count; i++) {
    // An account needs the answer of each.
    if (atomic_fetch_add(word, Size) > UINT64_MAX / 2) fail("the floor");
    if (atomic_fetch_sub(word, Size) < Size) fail("the floor");
  }
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void *run(void *argument) {
  struct job *job = argument;
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(job->cpu, &cpu);
  sched_setaffinity(0, sizeof cpu, &cpu);
  job->work(1); // whatever the first call of a thread sets up
  atomic_fetch_sub(&waiting, 1);
  while (atomic_load(&waiting) > 0) {
  }
  job->start = now();
  job->work(job->count);
  job->end = now();
  return NULL;
}

// The nth processor that this process may use.
static int processor(const cpu_set_t *allowed, int n) {
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, allowed) && n-- == 0) return cpu;
  return processor(allowed, 0);
}

int main(void) {
  char what[16];
  int threads;
  long count;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) fail("sched_getaffinity");
  word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (word == MAP_FAILED) fail("mmap");
  while (scanf("%15s %d %ld", what, &threads, &count) == 3 && threads >= 1 && threads <= MaxThreads) {
    pthread_t thread[MaxThreads];
    struct job job[MaxThreads];
    waiting = threads;
    for (int i = 0; i < threads; i++) {
      job[i].work = !strcmp(what, "pair") ? pair : !strcmp(what, "info") ? info : atomics;
      job[i].count = count;
      job[i].cpu = processor(&allowed, i);
      if (pthread_create(&thread[i], NULL, run, &job[i])) fail("pthread_create");
    }
    int64_t spent = 0, first = INT64_MAX, last = 0, begun = 0, ended = INT64_MAX;
    for (int i = 0; i < threads; i++) {
      pthread_join(thread[i], NULL);
      spent += job[i].end - job[i].start;
      if (job[i].start < first) first = job[i].start;
      if (job[i].start > begun) begun = job[i].start;
      if (job[i].end > last) last = job[i].end;
      if (job[i].end < ended) ended = job[i].end;
    }
    int64_t together = ended > begun ? ended - begun : 0;
    printf("%.3f %.1f\n", (double)spent / threads / count, 100.0 * together / (last - first + 1));
    fflush(stdout);
  }
  return 0;
}
