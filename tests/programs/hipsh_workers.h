// Forked workers: one for each device, as a data loader or a launcher makes them.
//
//   workers COUNT BYTES   forks COUNT children; each takes the device of its number and allocates BYTES
//                         there: `granted G refused R`. They hold it until they are dismissed
//   dismiss               ends them: `ok`
#pragma once
#include "hip.h"
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_WORKERS = 64 };
static pid_t workers[MOST_WORKERS];
static int worker_count, lifeline[2] = {-1, -1};

static void work(int device, size_t bytes, int answers) {
  void *pointer = NULL;
  char last;
  hipError_t error = HIP(hipSetDevice)(device);
  if (!error) error = HIP(hipMalloc)(&pointer, bytes);
  close(lifeline[1]);
  if (write(answers, &error, sizeof error) != sizeof error) _exit(2);
  // Ends when the parent closes its end, or is gone.
  while (read(lifeline[0], &last, 1) > 0) continue;
  _exit(0);
}

static void start_workers(int count, size_t bytes) {
  int answers[2], granted = 0;
  hipError_t error;
  if (count > MOST_WORKERS) count = MOST_WORKERS;
  if (pipe(answers) || pipe(lifeline)) exit(4);
  fflush(stdout);
  for (worker_count = 0; worker_count < count; worker_count++) {
    workers[worker_count] = fork();
    if (!workers[worker_count]) work(worker_count, bytes, answers[1]);
  }
  close(answers[1]);
  for (int i = 0; i < count && read(answers[0], &error, sizeof error) == sizeof error; i++) granted += !error;
  close(answers[0]);
  printf("granted %d refused %d\n", granted, count - granted);
}

static void dismiss_workers(void) {
  close(lifeline[0]);
  close(lifeline[1]);
  for (int i = 0; i < worker_count; i++) waitpid(workers[i], NULL, 0);
  worker_count = 0;
  puts("ok");
}
