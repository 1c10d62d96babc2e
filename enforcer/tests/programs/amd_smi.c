/* A stand-in for libamd_smi over the stand-in for rocm_smi, which is a part of it and exported as well, as in
 * the library of ROCm 6.1. It calls its own exports.
 *
 * -DVERSION=N: the first number of its version, by which the layout of amdsmi_vram_info_t goes (24: 6.1, 27: 10.1).
 * -DZERO_BDF: it says 0 for the address in the one way, and the address in the other. -DNO_BDF: it says none. */
#include <string.h>

#include "rocm_smi64.c"

#ifndef VERSION
#define VERSION 27
#endif

static char handles[2];

int standin_device(int index, void **device)
{
    *device = &handles[index];
    return SUCCESS;
}

static uint32_t number(void *device)
{
    return device == &handles[0] ? 0 : device == &handles[1] ? 1 : 2;
}

#ifndef NO_BDF
/* function 2:0, device 7:3, bus 15:8, domain 63:16 */
int amdsmi_get_gpu_device_bdf(void *device, uint64_t *bdf)
{
    int result = rsmi_dev_pci_id_get(number(device), bdf);
#ifdef ZERO_BDF
    *bdf = 0;
#endif
    return result;
}

int amdsmi_get_gpu_bdf_id(void *device, uint64_t *bdf)
{
    return rsmi_dev_pci_id_get(number(device), bdf);
}
#endif

/* { year, major, minor, release, build } up to 24, then without the year. */
int amdsmi_get_lib_version(uint32_t *version)
{
    version[0] = VERSION;
    return SUCCESS;
}

int amdsmi_get_gpu_memory_total(void *device, int type, uint64_t *total)
{
    return rsmi_dev_memory_total_get(number(device), type, total);
}

int amdsmi_get_gpu_memory_usage(void *device, int type, uint64_t *used)
{
    return rsmi_dev_memory_usage_get(number(device), type, used);
}

int standin_inner_total(void *device, uint64_t *total)
{
    return amdsmi_get_gpu_memory_total(device, VRAM, total);
}

/* { uint32_t vram_total, vram_used, reserved[2] }, in MiB */
int amdsmi_get_gpu_vram_usage(void *device, void *usage)
{
    uint64_t total = 0, used = 0;
    if (!usage)
        return INVALID_ARGUMENTS;
    if (amdsmi_get_gpu_memory_total(device, VRAM, &total) > SUCCESS)
        return INVALID_ARGUMENTS;
    amdsmi_get_gpu_memory_usage(device, VRAM, &used);
    uint32_t fields[] = { (uint32_t)(total >> 20), (uint32_t)(used >> 20), 0, 0 };
    memcpy(usage, fields, sizeof fields);
    return status();
}

int amdsmi_get_gpu_vram_info(void *device, void *info)
{
    uint64_t total = 0;
    if (!info || amdsmi_get_gpu_memory_total(device, VRAM, &total) > SUCCESS)
        return INVALID_ARGUMENTS;
    total >>= 20;
#if VERSION < 26
    struct { uint32_t type, vendor; uint64_t size; } fields = { 4, 1, total };
#else
    struct {
        uint32_t type;
        char vendor[256];
        uint64_t size;
        uint32_t bit_width;
        uint64_t max_bandwidth, reserved[37];
    } fields = { 4, "samsung", total, 8192, 5300, { 0 } };
#endif
    memcpy(info, &fields, sizeof fields);
    return status();
}

int standin_vram_usage(void *device, void *usage)
{
    return amdsmi_get_gpu_vram_usage(device, usage);
}

int standin_vram_info(void *device, void *info)
{
    return amdsmi_get_gpu_vram_info(device, info);
}
