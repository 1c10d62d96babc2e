/* Addresses that no look-up by name tells. Needs _GNU_SOURCE. */
#pragma once
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

/* The address of a function that nobody was asked for by its name: from the symbol table of a loaded library. */
static inline void *raw_symbol(void *handle, const char *name)
{
    struct link_map *map;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map))
        return NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            names = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH)
            hash = (const void *)entry->d_un.d_ptr;
    }
    /* All symbols that are defined, by the chains of all buckets. */
    const uint32_t *buckets = hash + 4 + 2 * hash[2], *chains = buckets + hash[0];
    for (uint32_t bucket = 0; bucket < hash[0]; bucket++)
        for (uint32_t n = buckets[bucket]; n >= hash[1]; n++) {
            if (!strcmp(names + symbols[n].st_name, name) && symbols[n].st_shndx)
                return (char *)map->l_addr + symbols[n].st_value;
            if (chains[n - hash[1]] & 1)
                break;
        }
    return NULL;
}
