/* What the stand-in's devices have given to whom. One file for all processes of a test, or memory of the
 * process's own.
 *
 * What all hold together is a sum over places, never a stored total, so a killed process cannot falsify it: its
 * part is dropped as soon as somebody sees that it is dead. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account.h"

static struct account *account;
static bool is_shared;
static char *shared_path;
static struct account_process *own;
static int own_place;

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "hip-standin: HIP_STANDIN_ACCOUNT=%s: %s: %m\n", shared_path ? shared_path : "", what);
    abort();
}

/* Two fields of /proc/PID/stat. False: there is no such process. */
static bool process_fields(uint64_t pid, uint64_t *start_time, uint64_t *stack_start)
{
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/%lu/stat", (unsigned long)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = 0;
    /* The name may contain anything; the state follows the last bracket as field 3. */
    char *place = strrchr(text, ')');
    *start_time = *stack_start = 0;
    for (int field = 3; place && field <= 28; field++) {
        place = strchr(place + 1, ' ');
        if (!place)
            return false;
        if (field == 22)
            *start_time = strtoull(place + 1, NULL, 10);
        if (field == 28)
            *stack_start = strtoull(place + 1, NULL, 10);
    }
    return place != NULL;
}

/* A process gives its memory back as a whole when its last thread has left its address space, which is also the first that
 * others can notice of its end. */
static bool has_memory(uint64_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lu/task", (unsigned long)pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        return false;
    bool found = false;
    for (struct dirent *task; !found && (task = readdir(tasks));) {
        char name[512], text[32] = {0};
        if (task->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s/statm", path, task->d_name);
        int file = open(name, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue;
        found = read(file, text, sizeof text - 1) > 0 && strtoull(text, NULL, 10) != 0;
        close(file);
    }
    closedir(tasks);
    return found;
}

static bool is_alive(struct account_process *process)
{
    uint64_t start_time, stack_start, pid = process->pid;
    if (!process_fields(pid, &start_time, &stack_start) || start_time != process->start_time)
        return false;
    /* 0: not allowed to know. Then an exec goes unnoticed. */
    if (stack_start && process->stack_start && stack_start != process->stack_start)
        return false;
    return has_memory(pid);
}

/* What a dead process held goes back to the device. Its record stays, to be read. */
static void reap(int device)
{
    int cancellation = no_cancellation();
    for (uint64_t i = 0; i < account->high_water; i++)
        if (account->taken[device][i] && &account->process[i] != own && !is_alive(&account->process[i]))
            account->taken[device][i] = 0;
    allow_cancellation(cancellation);
}

static void retire(struct account_process *process)
{
    int place = (int)(process - account->process);
    for (int i = 0; i < MaxFunctions; i++) {
        account->former_calls[i] += process->calls[i];
        account->former_errors[i] += process->errors[i];
    }
    account->former_bad_frees += process->bad_frees;
    for (int device = 0; device < MaxDevices; device++)
        account->taken[device][place] = 0;
    memset(process, 0, sizeof *process);
}

/* A place for this process: a new one while there are any, so that the records of the dead can be read. */
static void claim(void)
{
    uint64_t place = account->high_water;
    if (place == MaxProcesses) {
        for (place = 0; place < MaxProcesses && is_alive(&account->process[place]);)
            place++;
        if (place == MaxProcesses) {
            fprintf(stderr, "hip-standin: more than %d processes\n", MaxProcesses);
            abort();
        }
        retire(&account->process[place]);
    } else {
        account->high_water++;
    }
    uint64_t start_time = 0, stack_start = 0;
    process_fields((uint64_t)getpid(), &start_time, &stack_start);
    own = &account->process[place];
    own_place = (int)place;
    own->start_time = start_time;
    own->stack_start = stack_start;
    own->pid = (uint64_t)getpid();
}

static void fill_header(void)
{
    account->version = AccountVersion;
    account->size = sizeof *account;
    account->devices = (uint64_t)boards;
    account->functions = Functions;
    account->kinds = Kinds;
    for (int i = 0; i < boards; i++)
        account->vram[i] = board[i].vram;
    for (int i = 0; i < Functions; i++)
        snprintf(account->names[i], NameBytes, "%s", function_name(i));
    account->magic = ACCOUNT_MAGIC;
}

static void open_private(void)
{
    void *memory = mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        give_up("mmap");
    account = memory;
    fill_header();
    claim();
}

static void open_shared(void)
{
    int file = open(shared_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct stat status;
    if (file < 0 || flock(file, LOCK_EX) != 0 || fstat(file, &status) != 0)
        give_up("open");
    if (status.st_size == 0 && ftruncate(file, sizeof *account) != 0)
        give_up("ftruncate");
    if (status.st_size != 0 && status.st_size != sizeof *account) {
        fprintf(stderr, "hip-standin: %s is no account of this build\n", shared_path);
        abort();
    }
    void *memory = mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        give_up("mmap");
    account = memory;
    if (account->magic != ACCOUNT_MAGIC)
        fill_header();
    claim();
    /* By hand: the mapping keeps the open file, and a lock on it, beyond the close. */
    if (flock(file, LOCK_UN) != 0)
        give_up("flock");
    close(file);
}

void account_open(const char *path)
{
    is_shared = path && *path;
    if (is_shared) {
        shared_path = strdup(path);
        open_shared();
    } else {
        open_private();
    }
}

void account_close(void)
{
    munmap(account, sizeof *account);
}

/* The child has nothing; what the parent holds stays the parent's. */
void account_after_fork(void)
{
    account_close();
    if (is_shared)
        open_shared();
    else
        open_private();
}

static uint64_t sum(int device)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0, end = account->high_water; i < end; i++)
        bytes += account->taken[device][i];
    return bytes;
}

uint64_t account_used(int device)
{
    reap(device);
    return sum(device);
}

static bool takes_vram(enum kind kind)
{
    return kind != KindManaged && kind != KindHost && kind != KindImported;
}

static bool room_for(int device, uint64_t bytes)
{
    if (bytes > board[device].vram)
        return false;
    if (sum(device) + bytes <= board[device].vram)
        return true;
    return is_shared && account_used(device) + bytes <= board[device].vram;
}

static void note_peak(int device, uint64_t now)
{
    uint64_t peak = account->peak[device];
    if (now <= peak)
        return;
    if (is_shared) /* with the dead left out */
        now = account_used(device);
    while (now > peak && !atomic_compare_exchange_weak(&account->peak[device], &peak, now))
        ;
}

bool account_take(int device, enum kind kind, uint64_t bytes)
{
    if (takes_vram(kind)) {
        /* Add, then look: of two who race for the last bytes never both get them. */
        number *taken = &account->taken[device][own_place];
        bool got = false;
        for (int attempt = 0; attempt < 3 && !got && room_for(device, bytes); attempt++) {
            atomic_fetch_add(taken, bytes);
            uint64_t now = sum(device);
            got = now <= board[device].vram;
            if (got) {
                note_peak(device, now);
            } else {
                atomic_fetch_sub(taken, bytes);
                sched_yield();
            }
        }
        if (!got) {
            atomic_fetch_add(&account->refused, 1);
            return false;
        }
    }
    atomic_fetch_add_explicit(&own->held[device][kind], bytes, memory_order_relaxed);
    return true;
}

void account_give_back(int device, enum kind kind, uint64_t bytes)
{
    if (takes_vram(kind))
        atomic_fetch_sub(&account->taken[device][own_place], bytes);
    atomic_fetch_sub_explicit(&own->held[device][kind], bytes, memory_order_relaxed);
}

void account_call(int function)
{
    atomic_fetch_add_explicit(&own->calls[function], 1, memory_order_relaxed);
}

void account_error(int function)
{
    atomic_fetch_add_explicit(&own->errors[function], 1, memory_order_relaxed);
}

void account_bad_free(void)
{
    atomic_fetch_add_explicit(&own->bad_frees, 1, memory_order_relaxed);
}

uint64_t account_own(int device)
{
    return account->taken[device][own_place];
}

uint64_t account_kind(int device, enum kind kind)
{
    return own->held[device][kind];
}

uint64_t account_calls(int function)
{
    return own->calls[function];
}

uint64_t account_errors(int function)
{
    return own->errors[function];
}

uint64_t account_bad_frees(void)
{
    return own->bad_frees;
}
