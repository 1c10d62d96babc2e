/* The account's layout in memory, and in the file that HIP_STANDIN_ACCOUNT names. All numbers are in
 * the machine's byte order; src/account.rs reads it from outside. */
#pragma once

#include "internal.h"

enum {
    AccountVersion = 1,
    MaxProcesses = 1024,
    MaxFunctions = 128,
    NameBytes = 48,
};
#define ACCOUNT_MAGIC 0x314e4941544e4453u /* "SDNTAIN1" */

_Static_assert((int)Functions <= (int)MaxFunctions, "MaxFunctions");

typedef _Atomic uint64_t number;

struct account_process {
    number pid;         /* 0: the place is free */
    number start_time;  /* field 22 of /proc/PID/stat */
    number stack_start; /* field 28: tells one program image of a process from the next */
    number bad_frees;
    number calls[MaxFunctions], errors[MaxFunctions];
    number held[MaxDevices][8]; /* by enum kind */
};

struct account {
    number magic, version, size;
    number devices, functions, kinds;
    number high_water; /* places that were ever used */
    number refused;    /* requests that the boards had no room for */
    number peak[MaxDevices]; /* the most VRAM that living processes held together */
    number vram[MaxDevices];
    char names[MaxFunctions][NameBytes];
    /* What those did whose places were given to others. */
    number former_calls[MaxFunctions], former_errors[MaxFunctions], former_bad_frees;
    number taken[MaxDevices][MaxProcesses]; /* VRAM, by device and process */
    struct account_process process[MaxProcesses];
};

_Static_assert(Kinds <= 8, "kinds of memory");
