/* Prints what rocm_smi says of each GPU's VRAM (with -DAMDSMI: what amdsmi says), by functions that it is linked
 * with: the PCI address, the total and the use in bytes.
 *
 * Signatures: rocm_smi.h of ROCm 5.2 to 7.2, amdsmi.h of ROCm 6.1 to 10.1. */
#include <stdint.h>
#include <stdio.h>

enum { VRAM = 0, AMDSMI_GPUS = 2, MOST = 64 };

#ifdef AMDSMI

int amdsmi_init(uint64_t flags);
int amdsmi_get_socket_handles(uint32_t *count, void **sockets);
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **processors);
int amdsmi_get_gpu_bdf_id(void *processor, uint64_t *address);
int amdsmi_get_gpu_memory_total(void *processor, int type, uint64_t *total);
int amdsmi_get_gpu_memory_usage(void *processor, int type, uint64_t *used);

int main(void)
{
    uint32_t sockets = MOST;
    void *socket[MOST];
    if (amdsmi_init(AMDSMI_GPUS) || amdsmi_get_socket_handles(&sockets, socket))
        return 1;
    for (uint32_t s = 0; s < sockets; s++) {
        uint32_t processors = MOST;
        void *processor[MOST];
        if (amdsmi_get_processor_handles(socket[s], &processors, processor))
            return 1;
        for (uint32_t p = 0; p < processors; p++) {
            uint64_t address, total, used;
            if (amdsmi_get_gpu_bdf_id(processor[p], &address) ||
                amdsmi_get_gpu_memory_total(processor[p], VRAM, &total) ||
                amdsmi_get_gpu_memory_usage(processor[p], VRAM, &used))
                return 1;
            printf("gpu %lx %lu %lu\n", address, total, used);
        }
    }
    return 0;
}

#else

int rsmi_init(uint64_t flags);
int rsmi_num_monitor_devices(uint32_t *count);
int rsmi_dev_pci_id_get(uint32_t device, uint64_t *address);
int rsmi_dev_memory_total_get(uint32_t device, int type, uint64_t *total);
int rsmi_dev_memory_usage_get(uint32_t device, int type, uint64_t *used);

int main(void)
{
    uint32_t count;
    if (rsmi_init(0) || rsmi_num_monitor_devices(&count))
        return 1;
    for (uint32_t device = 0; device < count; device++) {
        uint64_t address, total, used;
        if (rsmi_dev_pci_id_get(device, &address) || rsmi_dev_memory_total_get(device, VRAM, &total) ||
            rsmi_dev_memory_usage_get(device, VRAM, &used))
            return 1;
        printf("gpu %lx %lu %lu\n", address, total, used);
    }
    return 0;
}

#endif
