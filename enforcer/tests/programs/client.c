/* A HIP program that does what its arguments say and prints what came of it, one line each.
 *
 * client WAY COMMAND...
 * WAY: how the functions are found: linked (built with -DLINKED), dlsym, dlvsym, default, next, program, deepbind
 * (dlsym, after RTLD_DEEPBIND), raw (in the library's symbol table).
 * Commands, with fields separated by colons:
 *   malloc:NAME:BYTES   ext:NAME:BYTES[:FLAGS]   managed:NAME:BYTES[:FLAGS]   async:NAME:BYTES[:STREAM]
 *   from_pool:NAME:BYTES:POOL[:STREAM]   create:NAME:BYTES:DEVICE|host|null (hipMemCreate)
 *   pitch:NAME:WIDTH:HEIGHT   mem_pitch:NAME:WIDTH:HEIGHT[:ELEMENT]   malloc3d:NAME:WIDTH:HEIGHT:DEPTH
 *   array:NAME:BITS:WIDTH:HEIGHT   array3d:NAME:BITS:WIDTH:HEIGHT:DEPTH   (BITS: of the channels, 32.32.0.0)
 *   array_create:NAME:FORMAT:WIDTH:HEIGHT   array3d_create:NAME:FORMAT:WIDTH:HEIGHT:DEPTH   (FORMAT: and
 *   channels, 0x20.4)   mipmapped:NAME:BITS:WIDTH:HEIGHT:DEPTH:LEVELS   mipmapped_create:NAME:FORMAT:...
 *   free:NAME   free_async:NAME[:STREAM]   release:NAME   free_array:NAME   array_destroy:NAME
 *   free_mipmapped:NAME   mipmapped_destroy:NAME   stream:NAME   synchronize:STREAM
 *   capture:STREAM   end_capture:STREAM
 *   default_pool:NAME:DEVICE   pool:NAME:DEVICE   keep:POOL:BYTES   trim:POOL:BYTES   destroy_pool:POOL
 *   reserve:NAME:BYTES (addresses)   map:NAME:AT:BYTES:HANDLE   unmap:NAME:AT:BYTES   retain:NAME:ADDRESS
 *   import:NAME:HANDLE (exported before)   host_free:NAME   reset:-   device_synchronize:-
 *   (more of these: allocate.c)
 *   malloc_nowhere:BYTES   free_inside:NAME   free_null   free_bogus
 *   attribute:NUMBER   attribute:NUMBER:nowhere
 *   info   info:free   info:total   info:none   total   total_nowhere   props   props0600   props0000
 *   churn:N:MILLISECONDS:BYTES (threads that allocate up to BYTES and free)
 *   device:N   last   threads:N:TIMES:BYTES   say:TEXT   wait (for a line on stdin)
 *   child:START:END:COMMAND+COMMAND...   START: fork, vfork, spawn; END: exit, _exit, abort, exec, kill
 *   end:HOW              how the program ends: exit (default), _exit, abort, self (exec of itself: info)
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "hip.h"

extern char **environ;
static const char *self;

enum { BLOCKS = 256 };
static struct { char name[32]; void *pointer; } blocks[BLOCKS];

void **block(const char *name)
{
    for (int i = 0; i < BLOCKS; i++) {
        if (!blocks[i].name[0])
            snprintf(blocks[i].name, sizeof blocks[i].name, "%s", name);
        if (!strcmp(blocks[i].name, name))
            return &blocks[i].pointer;
    }
    abort();
}

char *next(char **fields)
{
    return strsep(fields, ":");
}

size_t number_or(char **fields, size_t otherwise)
{
    char *field = next(fields);
    return field ? strtoull(field, NULL, 0) : otherwise;
}

size_t number(char **fields)
{
    if (!*fields) {
        puts("a number is missing");
        exit(2);
    }
    return number_or(fields, 0);
}

/* Prints the total, a sum over all other bytes of the structure, and whether bytes around it were written. */
static void properties(const char *name, int (*get)(void *, int), size_t size, size_t total_at)
{
    static unsigned char buffer[8192];
    memset(buffer, 0xa5, sizeof buffer);
    int error = get(buffer + 2048, 0);
    size_t total, around = 0;
    uint64_t sum = 14695981039346656037u; /* FNV-1a */
    memcpy(&total, buffer + 2048 + total_at, sizeof total);
    for (size_t i = 0; i < sizeof buffer; i++) {
        int inside = i >= 2048 && i < 2048 + size;
        int in_total = i >= 2048 + total_at && i < 2048 + total_at + 8;
        around += !inside && buffer[i] != 0xa5;
        if (inside && !in_total)
            sum = (sum ^ buffer[i]) * 1099511628211u;
    }
    printf("%s = %d total %zu, others %016lx, %zu bytes around\n", name, error, total, sum, around);
}

static pthread_barrier_t barrier;
static long times, bytes;

static void *thread(void *count)
{
    long successes = 0;
    pthread_barrier_wait(&barrier);
    for (long i = 0; i < times; i++) {
        void *pointer;
        successes += HIP(hipMalloc)(&pointer, (size_t)bytes) == 0;
    }
    *(long *)count = successes;
    return NULL;
}

static void *churn(void *seed)
{
    unsigned state = (unsigned)(uintptr_t)seed;
    struct timespec now, begin;
    long failures = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        void *held[4];
        int n = 0;
        for (int i = 0; i < 4; i++) {
            size_t size = 1 + rand_r(&state) % (size_t)bytes;
            n += HIP(hipMalloc)(&held[n], size) == 0;
        }
        while (n)
            failures += HIP(hipFree)(held[--n]) != 0;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < times);
    return (void *)failures;
}

static void churn_all(int n)
{
    pthread_t ids[64];
    long failures = 0;
    for (int i = 0; i < n; i++)
        pthread_create(&ids[i], NULL, churn, (void *)(uintptr_t)(getpid() + i));
    for (int i = 0; i < n; i++) {
        void *failed;
        pthread_join(ids[i], &failed);
        failures += (long)failed;
    }
    printf("churn: %ld frees failed\n", failures);
}

static void threads(int n)
{
    pthread_t ids[64];
    long counts[64], sum = 0;
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    for (int i = 0; i < n; i++)
        pthread_create(&ids[i], NULL, thread, &counts[i]);
    for (int i = 0; i < n; i++) {
        pthread_join(ids[i], NULL);
        sum += counts[i];
    }
    printf("threads: %ld succeeded\n", sum);
}

static void command(char *text);

static void end(const char *how)
{
    fflush(stdout);
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(how, "exec"))
        execl("/bin/true", "true", (char *)NULL);
    if (!strcmp(how, "self"))
        execl(self, self, "linked", "info", (char *)NULL);
    _exit(9);
}

static void child(char *fields)
{
    char *start = strsep(&fields, ":"), *how = strsep(&fields, ":");
    pid_t pid;
    int status;
    fflush(stdout);
    if (!strcmp(start, "spawn")) {
        char *arguments[] = { (char *)self, (char *)"linked", (char *)"say:spawned", NULL };
        posix_spawn(&pid, self, NULL, NULL, arguments, environ);
    } else if (!strcmp(start, "vfork")) {
        pid = vfork();
        if (pid == 0) {
            if (!strcmp(how, "exec"))
                execl("/bin/true", "true", (char *)NULL);
            _exit(0);
        }
    } else {
        pid = fork();
        if (pid == 0) {
            for (char *one; fields && *fields && (one = strsep(&fields, "+"));)
                command(one);
            end(how);
        }
    }
    waitpid(pid, &status, 0);
    printf("child ended\n");
}

static void command(char *text)
{
    char *fields = text, *name = strsep(&fields, ":");
    size_t f = 7, t = 7;
    int error;
    if (!strcmp(name, "malloc_nowhere")) {
        printf("malloc nowhere = %d\n", HIP(hipMalloc)(NULL, strtoull(fields, NULL, 0)));
    } else if (!strcmp(name, "free_inside")) {
        printf("free inside %s = ", fields);
        printf("%d\n", HIP(hipFree)((char *)*block(fields) + 64));
    } else if (!strcmp(name, "free_null")) {
        printf("free null = %d\n", HIP(hipFree)(NULL));
    } else if (!strcmp(name, "free_bogus")) {
        printf("free bogus = %d\n", HIP(hipFree)((void *)0x1234000));
    } else if (!strcmp(name, "info")) {
        int want_free = !fields || !strcmp(fields, "free");
        int want_total = !fields || !strcmp(fields, "total");
        error = HIP(hipMemGetInfo)(want_free ? &f : NULL, want_total ? &t : NULL);
        printf("info = %d free %zu total %zu\n", error, f, t);
    } else if (!strcmp(name, "total")) {
        error = HIP(hipDeviceTotalMem)(&t, 0);
        printf("total = %d %zu\n", error, t);
    } else if (!strcmp(name, "total_nowhere")) {
        printf("total nowhere = %d\n", HIP(hipDeviceTotalMem)(NULL, 0));
    } else if (!strcmp(name, "attribute")) {
        int value = 7, number = atoi(strsep(&fields, ":"));
        error = HIP(hipDeviceGetAttribute)(fields ? NULL : &value, number, 0);
        printf("attribute = %d %d\n", error, value);
    } else if (!strcmp(name, "props")) {
        properties(name, HIP(hipGetDeviceProperties), 792, 256);
    } else if (!strcmp(name, "props0600")) {
        properties(name, HIP(hipGetDevicePropertiesR0600), 1472, 288);
    } else if (!strcmp(name, "props0000")) {
        properties(name, HIP(hipGetDevicePropertiesR0000), 792, 256);
    } else if (!strcmp(name, "device")) {
        printf("device = %d\n", HIP(hipSetDevice)(atoi(fields)));
    } else if (!strcmp(name, "last")) {
        printf("last = %d\n", HIP(hipGetLastError)());
    } else if (!strcmp(name, "threads")) {
        int n = atoi(strsep(&fields, ":"));
        times = atol(strsep(&fields, ":"));
        bytes = atol(fields);
        threads(n);
    } else if (!strcmp(name, "churn")) {
        int n = atoi(strsep(&fields, ":"));
        times = atol(strsep(&fields, ":"));
        bytes = atol(fields);
        churn_all(n);
    } else if (!strcmp(name, "say")) {
        printf("%s\n", fields);
    } else if (!strcmp(name, "wait")) {
        fflush(stdout);
        if (getchar() == EOF)
            exit(4);
    } else if (!strcmp(name, "child")) {
        child(fields);
    } else if (!strcmp(name, "end")) {
        end(fields);
    } else if (!allocate(name, fields)) {
        printf("no such command: %s\n", name);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc < 2)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    find_functions(argv[1]);
    for (int i = 2; i < argc; i++)
        command(argv[i]);
    return 0;
}
