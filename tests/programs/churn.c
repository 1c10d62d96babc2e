// Threads that allocate and free at random, for a while, and count in a file shared with others
// of their kind what they all hold.
//
//   churn SHARED-FILE THREADS SECONDS LARGEST-BYTES SEED
//
// The shared file holds two 64-bit numbers: the bytes held now and the most ever held. A block is
// added after hipMalloc has returned and taken away before hipFree is called, so the number is
// never more than what is truly held: if it exceeds a limit, the limit was exceeded.
//
// When the time is over the threads stop where they are and keep what they hold. The program
// prints `held BYTES granted N refused N failed N` and waits for its stdin to be closed.
#include "hip.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 24, THREADS = 64 };
struct shared { uint64_t held, most; };
static struct shared *shared;
static uint64_t largest, held_here, granted, refused, failed;
static double until;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void count(uint64_t *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

static void add(uint64_t bytes) {
  uint64_t sum = __atomic_add_fetch(&shared->held, bytes, __ATOMIC_SEQ_CST);
  uint64_t most = __atomic_load_n(&shared->most, __ATOMIC_SEQ_CST);
  while (sum > most && !__atomic_compare_exchange_n(&shared->most, &most, sum, 0, __ATOMIC_SEQ_CST,
                                                    __ATOMIC_SEQ_CST)) {
  }
  __atomic_add_fetch(&held_here, bytes, __ATOMIC_SEQ_CST);
}

static void take_away(uint64_t bytes) {
  __atomic_sub_fetch(&shared->held, bytes, __ATOMIC_SEQ_CST);
  __atomic_sub_fetch(&held_here, bytes, __ATOMIC_SEQ_CST);
}

// xorshift64*: reproducible from the seed.
static uint64_t next(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dull;
}

static void *churn(void *argument) {
  uint64_t random = (uint64_t)(uintptr_t)argument;
  struct { void *pointer; uint64_t bytes; } blocks[BLOCKS] = {0};
  while (now() < until) {
    unsigned i = (unsigned)(next(&random) % BLOCKS);
    if (blocks[i].pointer) {
      take_away(blocks[i].bytes);
      if (HIP(hipFree)(blocks[i].pointer)) count(&failed);
      blocks[i].pointer = NULL;
      continue;
    }
    // Mostly small, sometimes as large as allowed, never a round number.
    uint64_t bytes = next(&random) % (next(&random) % 4 ? 1 << 20 : largest) + 1;
    hipError_t error = HIP(hipMalloc)(&blocks[i].pointer, bytes);
    if (error == hipSuccess) {
      blocks[i].bytes = bytes;
      add(bytes);
      count(&granted);
    } else {
      blocks[i].pointer = NULL;
      count(error == hipErrorOutOfMemory ? &refused : &failed);
    }
  }
  return NULL;
}

int main(int n, char **arguments) {
  pthread_t threads[THREADS];
  if (n != 6) return 2;
  int file = open(arguments[1], O_RDWR);
  if (file < 0) return 2;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared == MAP_FAILED) return 2;
  int count_of_threads = atoi(arguments[2]);
  if (count_of_threads < 1 || count_of_threads > THREADS) return 2;
  until = now() + atof(arguments[3]);
  largest = strtoull(arguments[4], NULL, 0);
  uint64_t seed = strtoull(arguments[5], NULL, 0) * 1000 + 1;
  hip_open();
  for (int i = 0; i < count_of_threads; i++)
    pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)(seed + (uint64_t)i));
  for (int i = 0; i < count_of_threads; i++) pthread_join(threads[i], NULL);
  printf("held %llu granted %llu refused %llu failed %llu\n", (unsigned long long)held_here,
         (unsigned long long)granted, (unsigned long long)refused, (unsigned long long)failed);
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return 0;
}
