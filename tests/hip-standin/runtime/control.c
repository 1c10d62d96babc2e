/* The start, fork, and the functions by which a test in the same process steers and reads the stand-in. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool ready;

int no_cancellation(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

void allow_cancellation(int before)
{
    pthread_setcancelstate(before, &before);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* A child has the devices and none of its parent's memory. (The real ones do not survive a fork at all.) */
static void after_fork_in_child(void)
{
    blocks_after_fork();
    arrays_after_fork();
    pools_after_fork();
    virtual_after_fork();
    account_after_fork();
    pthread_mutex_unlock(&lock);
}

static void start(void)
{
    int cancellation = no_cancellation();
    config_read();
    uint64_t vram = (uint64_t)64 << 30;
    const char *text = getenv("HIP_STANDIN_VRAM");
    if (text && (!parse_size(&text, &vram) || *text)) {
        fprintf(stderr, "hip-standin: HIP_STANDIN_VRAM=%s is no size\n", getenv("HIP_STANDIN_VRAM"));
        abort();
    }
    const char *list = getenv("HIP_STANDIN_DEVICES");
    devices_read(list ? list : "1", vram);
    blocks_open();
    account_open(getenv("HIP_STANDIN_ACCOUNT"));
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    atomic_store_explicit(&ready, true, memory_order_release);
    allow_cancellation(cancellation);
}

void standin_initialise(void)
{
    if (__builtin_expect(!atomic_load_explicit(&ready, memory_order_acquire), 0))
        pthread_once(&once, start);
}

#pragma GCC visibility push(default)

/* Sets what HIP_STANDIN_<name> would, from now on. 0: done; 1: not understood, or cannot be changed any more. */
int hip_standin_set(const char *name, const char *value)
{
    standin_initialise();
    return config_set(name, value) ? 0 : 1;
}

/* The function that the rules `call` and `call-after` call, with the name of the HIP function; NULL: none. */
void hip_standin_on_call(void (*function)(const char *name))
{
    set_told(function);
}

/* VRAM that this process holds on a HIP ordinal. */
uint64_t hip_standin_live(int device)
{
    standin_initialise();
    return device_on_board(device) < 0 ? 0 : account_own(device_on_board(device));
}

/* VRAM that all processes of the account hold on it. */
uint64_t hip_standin_used(int device)
{
    standin_initialise();
    return device_on_board(device) < 0 ? 0 : account_used(device_on_board(device));
}

/* What this process holds of one kind: 0 linear, 1 managed, 2 host, 3 arrays, 4 pools, 5 virtual memory, 6 imported. */
uint64_t hip_standin_held(int device, int kind)
{
    standin_initialise();
    if (device_on_board(device) < 0 || kind < 0 || kind >= Kinds)
        return 0;
    return account_kind(device_on_board(device), (enum kind)kind);
}

/* Calls of a function by this process; UINT64_MAX: there is no such function. */
uint64_t hip_standin_calls(const char *name)
{
    standin_initialise();
    int function = function_by_name(name, strlen(name));
    return function < 0 ? UINT64_MAX : account_calls(function);
}

/* Those of them that failed. */
uint64_t hip_standin_errors(const char *name)
{
    standin_initialise();
    int function = function_by_name(name, strlen(name));
    return function < 0 ? UINT64_MAX : account_errors(function);
}

/* Frees of what was not there, or not of that sort. */
uint64_t hip_standin_bad_frees(void)
{
    standin_initialise();
    return account_bad_frees();
}

/* Which device (on the board, whatever is visible) and how many bytes a pointer's block has. 0: found. */
int hip_standin_block(const void *pointer, int *device, uint64_t *bytes)
{
    standin_initialise();
    pthread_mutex_lock(&lock);
    struct block *block = block_around((uintptr_t)pointer);
    if (block) {
        *device = block->device;
        *bytes = block->bytes;
    }
    pthread_mutex_unlock(&lock);
    return block ? 0 : 1;
}

/* Gives address space back before a dlclose. No call may follow. What the process held counts as held until it ends. */
void hip_standin_close(void)
{
    standin_initialise();
    blocks_close();
    account_close();
}

#pragma GCC visibility pop
