/* A stand-in for librocm_smi64 with two GPUs, in another order than the driver's.
 *
 * -DUSED=BYTES: what is in use on each. With SMI_STATUS every question is answered with that status, after
 * its output was written. -DPARTITIONS: both devices are partitions of one board. */
#include <stdlib.h>

#include "smi.h"

#define GIB (1ull << 30)
#ifndef USED
#define USED GIB
#endif

#ifdef PARTITIONS
static const uint64_t addresses[] = { 0x300, 0x300 };
#else
static const uint64_t addresses[] = { 0x8300, 0x300 };
#endif

static int status(void)
{
    const char *wanted = getenv("SMI_STATUS");
    return wanted ? atoi(wanted) : SUCCESS;
}

int rsmi_dev_pci_id_get(uint32_t device, uint64_t *id)
{
    if (device > 1 || !id)
        return INVALID_ARGUMENTS;
    *id = addresses[device];
    return SUCCESS;
}

static int answer(uint32_t device, int type, uint64_t *place, uint64_t vram, uint64_t visible, uint64_t host)
{
    if (device > 1 || type > GTT || !place)
        return INVALID_ARGUMENTS;
    *place = type == VRAM ? vram : type == VIS_VRAM ? visible : host;
    return status();
}

#ifndef WITHOUT_TOTAL
int rsmi_dev_memory_total_get(uint32_t device, int type, uint64_t *total)
{
    return answer(device, type, total, 64 * GIB, GIB / 4, 32 * GIB);
}
#endif

int rsmi_dev_memory_usage_get(uint32_t device, int type, uint64_t *used)
{
    return answer(device, type, used, USED, GIB / 8, GIB);
}
