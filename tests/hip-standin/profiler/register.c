/* What rocprofiler-register does when no tool is there: it takes the tables, and answers. Tests ask it what it was given. */
#include <stdint.h>
#include <string.h>

enum { Most = 16 };
static struct {
    const char *name;
    void *table;
    uint32_t version;
} registered[Most];
static int count;

int rocprofiler_register_library_api_table(const char *name, uint32_t (*import)(void), uint32_t version, void **tables,
                                           uint64_t tables_given, uint64_t *identifier)
{
    if (!import || import() != version || tables_given != 1 || !identifier || count == Most)
        return 2;
    registered[count].name = name;
    registered[count].table = tables[0];
    registered[count].version = version;
    *identifier = (uint64_t)++count;
    return 0;
}

int standin_registrations(void)
{
    return count;
}

/* The table that was last registered under a name, or NULL. */
void *standin_registered(const char *name)
{
    for (int i = count - 1; i >= 0; i--)
        if (strcmp(registered[i].name, name) == 0)
            return registered[i].table;
    return 0;
}
