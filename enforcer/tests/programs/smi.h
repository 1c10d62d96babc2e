/* The part of rocm_smi.h and amdsmi.h that the stand-ins and their client use, and what the stand-ins add. */
#pragma once
#include <stdint.h>

enum { SUCCESS = 0, INVALID_ARGUMENTS = 1, VRAM = 0, VIS_VRAM = 1, GTT = 2 };

#define RSMI_FUNCTIONS(F)                                                       \
    F(rsmi_dev_memory_total_get, (uint32_t device, int type, uint64_t *total))  \
    F(rsmi_dev_memory_usage_get, (uint32_t device, int type, uint64_t *used))

#define AMDSMI_FUNCTIONS(F)                                                     \
    F(amdsmi_get_gpu_memory_total, (void *device, int type, uint64_t *total))   \
    F(amdsmi_get_gpu_memory_usage, (void *device, int type, uint64_t *used))    \
    F(amdsmi_get_gpu_vram_usage, (void *device, void *usage))                   \
    F(amdsmi_get_gpu_vram_info, (void *device, void *info))                     \
    /* A handle for the device with this index. */                              \
    F(standin_device, (int index, void **device))                               \
    /* What the library gets from its own exports, and the answers under names that nobody knows. */ \
    F(standin_inner_total, (void *device, uint64_t *total))                     \
    F(standin_vram_usage, (void *device, void *usage))                          \
    F(standin_vram_info, (void *device, void *info))

#define DECLARE(name, parameters) int name parameters;
RSMI_FUNCTIONS(DECLARE)
AMDSMI_FUNCTIONS(DECLARE)
int rsmi_dev_pci_id_get(uint32_t device, uint64_t *id);
int rsmi_dev_guid_get(uint32_t device, uint64_t *id);
#undef DECLARE
