/* The GPUs of the machine, and which of them the process sees under which number. */
#define _GNU_SOURCE
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct device board[MaxDevices];
int boards, visible[MaxDevices], visible_count;

static __thread int current __attribute__((tls_model("initial-exec")));

static _Noreturn void misunderstood(const char *list)
{
    fprintf(stderr,
            "hip-standin: HIP_STANDIN_DEVICES=%s is not understood: it is a number of devices up to %d, or a list "
            "such as 0000:03:00.0=64GiB,0000:83:00.0*8+GPU-5c0d93a17be24600\n",
            list, MaxDevices);
    abort();
}

/* BDF[/PARTITION] or BDF*PARTITIONS, each with [=SIZE] and [@GPU-UUID] or [+GPU-UUID], separated by commas. With a plus, the
 * UUIDs of the partitions count up from that. */
static void read_list(const char *list, uint64_t vram)
{
    for (const char *text = list; *text;) {
        struct device device = {.vram = vram};
        int length = 0;
        unsigned partitions = 1;
        if (sscanf(text, "%4x:%2x:%2x.%1x%n", &device.domain, &device.bus, &device.device, &device.function, &length) <
            4)
            misunderstood(list);
        text += length;
        if (*text == '/' || *text == '*') {
            unsigned *number = *text == '/' ? &device.partition : &partitions;
            if (sscanf(text + 1, "%u%n", number, &length) < 1)
                misunderstood(list);
            text += 1 + length;
        }
        if (*text == '=') {
            text++;
            if (!parse_size(&text, &device.vram))
                misunderstood(list);
        }
        uint64_t step = *text == '+';
        if (*text == '@' || *text == '+') {
            if (sscanf(text + 1, "GPU-%16" SCNx64 "%n", &device.unique_id, &length) < 1)
                misunderstood(list);
            text += 1 + length;
        }
        for (unsigned i = 0; i < partitions; i++, device.partition++, device.unique_id += step) {
            if (boards == MaxDevices)
                misunderstood(list);
            board[boards++] = device;
        }
        if (*text == ',')
            text++;
        else if (*text)
            misunderstood(list);
    }
}

/* ROCR_VISIBLE_DEVICES first, then HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) numbers what is left. A list ends at the
 * first entry that names no device, or one that was named before; an empty list shows nothing. ROCr allows
 * blanks before a number, HIP does not. Seen on 5.7.1, 6.4.3 and 7.2.4. */
static int choose(const char *list, bool blanks, const int *from, int count, int *to)
{
    int chosen = 0;
    bool taken[MaxDevices] = {false};
    for (const char *text = list; *text;) {
        while (blanks && isspace((unsigned char)*text))
            text++;
        if (!isdigit((unsigned char)*text))
            break;
        char *end;
        long number = strtol(text, &end, 10);
        if (number >= count || taken[number] || (*end && *end != ',' && !(blanks && isspace((unsigned char)*end))))
            break;
        taken[number] = true;
        to[chosen++] = from[number];
        text = end + strspn(end, blanks ? " \t" : "");
        if (*text != ',')
            break;
        text++;
    }
    return chosen;
}

void devices_read(const char *list, uint64_t vram)
{
    boards = 0;
    char *end;
    long number = strtol(list, &end, 10);
    if (*list && !*end) {
        if (number < 0 || number > MaxDevices)
            misunderstood(list);
        for (; boards < number; boards++)
            board[boards] = (struct device){.bus = 3 + 3 * (unsigned)boards, .vram = vram};
    } else {
        read_list(list, vram);
    }

    int all[MaxDevices];
    for (int i = 0; i < boards; i++)
        all[i] = i;
    int shown = boards;
    const char *rocr = getenv("ROCR_VISIBLE_DEVICES");
    int by_rocr[MaxDevices];
    if (rocr)
        shown = choose(rocr, true, all, boards, by_rocr);
    else
        memcpy(by_rocr, all, sizeof all);
    const char *hip = getenv("HIP_VISIBLE_DEVICES");
    if (!hip)
        hip = getenv("CUDA_VISIBLE_DEVICES");
    if (hip) {
        visible_count = choose(hip, false, by_rocr, shown, visible);
    } else {
        memcpy(visible, by_rocr, sizeof visible);
        visible_count = shown;
    }
}

int device_on_board(int ordinal)
{
    return 0 <= ordinal && ordinal < visible_count ? visible[ordinal] : -1;
}

int ordinal_of(int device)
{
    int ordinal = 0;
    while (ordinal < visible_count && visible[ordinal] != device)
        ordinal++;
    return ordinal;
}

int current_ordinal(void)
{
    return current;
}

int current_device(void)
{
    return device_on_board(current);
}

void set_current_ordinal(int ordinal)
{
    current = ordinal;
}
