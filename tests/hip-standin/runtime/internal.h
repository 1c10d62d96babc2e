/* What the parts of the stand-in share.
 *
 * GENERATION (5, 6 or 7), MINOR (of the release that it is modelled on) and REGISTERS (0 or 1) come from the
 * build. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "abi.h"

enum { MaxDevices = 64, NO_SLOT = -1 };

/* ---- The exported functions ------------------------------------------------------------------- */

#if GENERATION >= 6
#define IF_SINCE_6(...) __VA_ARGS__
#else
#define IF_SINCE_6(...)
#endif
#if GENERATION > 5 || MINOR >= 7
#define IF_SINCE_5_7(...) __VA_ARGS__
#else
#define IF_SINCE_5_7(...)
#endif
#define IF_SINCE_5(...) __VA_ARGS__
#define IF_SINCE(since, ...) IF_SINCE_##since(__VA_ARGS__)

/* The numbers of the functions. */
#define FUNCTION(since, version, slot, name, parameters, arguments, outputs) \
    IF_SINCE(since, FUNCTION_##name, )
#define DIRECT FUNCTION
#define SPECIAL(since, version, slot, type, name, parameters, arguments) \
    IF_SINCE(since, FUNCTION_##name, )
enum {
#include "functions.h"
    Functions
};
#undef FUNCTION
#undef SPECIAL

/* The exports. Calls from inside to an exported name go through the PLT, as they do in the real ones: whoever
 * stands before the library in the search order sees them. */
#define FUNCTION(since, version, slot, name, parameters, arguments, outputs) \
    IF_SINCE(since, hipError_t name parameters;)
#define SPECIAL(since, version, slot, type, name, parameters, arguments) \
    IF_SINCE(since, type name parameters;)
#pragma GCC visibility push(default)
#include "functions.h"
#pragma GCC visibility pop
#undef FUNCTION
#undef SPECIAL

/* The functions' own work, and the functions as they stand in the dispatch table: entered and left by the
 * rules of calls.c. In generation 5 the latter are the exports. */
#if GENERATION >= 6
#define ENTRY(name) entry_##name
#else
#define ENTRY(name) name
#endif
#define FUNCTION(since, version, slot, name, parameters, arguments, outputs) \
    IF_SINCE(since, hipError_t do_##name parameters; hipError_t ENTRY(name) parameters;)
#define SPECIAL(since, version, slot, type, name, parameters, arguments) \
    IF_SINCE(since, type do_##name parameters; type ENTRY(name) parameters;)
#include "functions.h"
#undef FUNCTION
#undef SPECIAL
#undef DIRECT

/* A call of one function by another. Through the export where the real ones do so, and everywhere when
 * HIP_STANDIN_NESTED says so. */
#define NESTED(name) (config.nested ? name : ENTRY(name))

/* ---- calls.c: what happens around every call --------------------------------------------------- */

struct call {
    int function;
    bool kill_after, tell_after;
    hipError_t error_after; /* what a success becomes */
};
/* Counts the call and applies the rules. True: go on; false: the call's result is *error already. */
bool call_begin(struct call *call, int function, void *first_output, hipError_t *error);
/* Records the result. */
hipError_t call_end(struct call *call, hipError_t error);
void poison(void *output, size_t bytes);
/* The program's function for the rules `call` and `call-after`; NULL: none. */
void set_told(void (*told)(const char *name));
/* The number of a function of this name, or -1. */
int function_by_name(const char *name, size_t length);
const char *function_name(int function);

/* ---- config.c: what the environment says, and hip_standin_set ---------------------------------- */

enum which { WhichAll, WhichRange, WhichEvery };
enum action { ActionError, ActionErrorAfter, ActionNull, ActionKill, ActionKillAfter, ActionCall, ActionCallAfter, ActionWait };

struct rule {
    int function; /* -1: all */
    enum which which;
    uint64_t from, to; /* of a range; the period of WhichEvery in `from` */
    enum action action;
    uint64_t value; /* the error, or nanoseconds */
    _Atomic uint64_t calls;
};

enum { MaxRules = 64 };
struct config {
    struct rule rules[MaxRules];
    _Atomic int rule_count;
    size_t pitch, round, granularity, info_step, image_limit;
    bool poison, nested, mipmaps, sticky_errors, create_on_current;
};
extern struct config config;
/* Reads every variable. A value that is not understood is told on stderr and ends the process. */
void config_read(void);
/* Sets one by its name without the prefix. False: no such setting, or not understood. */
bool config_set(const char *name, const char *value);
bool parse_size(const char **text, uint64_t *bytes);

/* ---- devices.c ---------------------------------------------------------------------------------- */

struct device {
    unsigned domain, bus, device, function, partition;
    uint64_t vram, unique_id;
};
/* All that the machine has. What the process sees of them, and in which order, is `visible`. */
extern struct device board[MaxDevices];
extern int boards, visible[MaxDevices], visible_count;
void devices_read(const char *list, uint64_t vram);
/* The place on the board of a HIP ordinal, or -1; and the ordinal of a place that is visible. */
int device_on_board(int ordinal);
int ordinal_of(int device);
/* The calling thread's. */
int current_ordinal(void);
int current_device(void);
void set_current_ordinal(int ordinal);

/* ---- account.c: what is held, told to the outside ----------------------------------------------- */

enum kind { KindDevice, KindManaged, KindHost, KindArray, KindPool, KindVirtual, KindImported, Kinds };

void account_open(const char *path);
void account_close(void);
void account_after_fork(void);
/* Takes `bytes` of a device's VRAM (managed and host memory takes none, but is counted). False: there is not so much. */
bool account_take(int device, enum kind kind, uint64_t bytes);
void account_give_back(int device, enum kind kind, uint64_t bytes);
void account_call(int function);
void account_error(int function);
void account_bad_free(void);
/* VRAM of a device that is taken by all processes. */
uint64_t account_used(int device);
uint64_t account_own(int device);
uint64_t account_kind(int device, enum kind kind);
uint64_t account_calls(int function);
uint64_t account_errors(int function);
uint64_t account_bad_frees(void);

/* ---- blocks.c: live memory by address ----------------------------------------------------------- */

struct block {
    uintptr_t base;
    uint64_t bytes;   /* asked for */
    uint64_t charged; /* taken from the device */
    int device;
    enum kind kind;
    unsigned flags;
    bool touched; /* written to, so that its pages go back when it is freed */
    struct pool *pool;
};

extern pthread_mutex_t lock; /* guards blocks, pools, handles and mappings */
/* True if what lies at device addresses can be read and written. */
extern bool memory_is_backed;
void blocks_open(void);
void blocks_close(void);
void blocks_after_fork(void);
/* An address range, not accounted. 0: none left. The lock must be held for these. */
uintptr_t space_take(uint64_t bytes);
void space_give_back(uintptr_t base, uint64_t bytes, bool touched);
/* The returned pointer is good until the next change. */
struct block *block_add(const struct block *block);
struct block *block_at(uintptr_t address);
/* Also by an address inside of it, as the real ones find them. */
struct block *block_around(uintptr_t address);
void block_remove(struct block *block);
/* Calls `visit` for every block; it may say that the block is to go. */
void blocks_sweep(bool (*visit)(struct block *block, void *argument), void *argument);
/* The same, and what the block has taken stays taken. */
void blocks_forget(bool (*visit)(struct block *block, void *argument), void *argument);

/* ---- memory.c ----------------------------------------------------------------------------------- */

/* Takes memory of the current device. */
hipError_t take_memory(void **pointer, uint64_t bytes, enum kind kind, unsigned flags);
/* Frees whatever block an address lies in. */
hipError_t free_memory(void *pointer);
void forget_block(struct block *block);
/* What an allocation of so many bytes takes from the device. */
uint64_t rounded(uint64_t bytes);
/* True: too much for 64 bits. */
bool times(uint64_t a, uint64_t b, uint64_t *product);

/* ---- arrays.c, pools.c, virtual.c --------------------------------------------------------------- */

void arrays_after_fork(void);

struct stream {
    int device;
    bool capturing; /* calls are recorded in a graph, not done */
};
/* Work of a stream (NULL: all) of a device is done: freed memory goes back to its pool. */
void pools_synchronize(int device, hipStream_t stream, bool all_streams);
hipError_t pool_free_locked(struct block *block, hipStream_t stream, bool now);
void pools_reset(int device);
void pools_after_fork(void);

/* The lock is held. */
void virtual_reset(int device);
void virtual_after_fork(void);

void standin_initialise(void);
/* Files are read only between these two: the only cancellation points are those that rules ask for. */
int no_cancellation(void);
void allow_cancellation(int before);
