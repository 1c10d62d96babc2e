/* Generations 6 and 7: the exports are stubs that fetch a table and jump through one of its slots.
 *
 * `size_t size` and then one pointer per function; slots are frozen, new ones are added at the end. The first call makes
 * the table and, in the registering build, hands it to rocprofiler-register if that is in the process: whoever
 * gets it there may replace pointers. (hip_api_trace.hpp, hip_api_trace.cpp of ROCm's clr.) */
#include "internal.h"

#if GENERATION >= 6

#if GENERATION == 6
enum { Slots = 474 }; /* 6.4.3: size 0xed8 */
#else
enum { Slots = 506 }; /* 7.2.4: size 0xfd8 */
#endif

struct table {
    size_t size;
    void *slots[Slots];
};

static hipError_t not_supported(void)
{
    return hipErrorNotSupported;
}

#define FUNCTION(since, version, slot, name, parameters, arguments, outputs) \
    IF_SINCE(since, table->slots[slot] = (void *)ENTRY(name);)
#define DIRECT(since, version, slot, name, parameters, arguments, outputs)
#define SPECIAL(since, version, slot, type, name, parameters, arguments) \
    IF_SINCE(since, table->slots[slot] = (void *)ENTRY(name);)
static void fill(struct table *table)
{
    table->size = sizeof *table;
    for (int i = 0; i < Slots; i++)
        table->slots[i] = (void *)not_supported;
#include "functions.h"
}
#undef FUNCTION
#undef DIRECT
#undef SPECIAL

#if REGISTERS
/* rocprofiler-register.h */
typedef struct {
    uint64_t handle;
} rocprofiler_register_library_identifier_t;
extern int rocprofiler_register_library_api_table(const char *name, uint32_t (*import)(void), uint32_t version,
                                                  void **tables, uint64_t count,
                                                  rocprofiler_register_library_identifier_t *identifier)
    __attribute__((weak));

/* 10000 * major + 100 * minor + patch of the table's version, which has nothing to do with HIP's. */
enum { TableVersion = 0 * 10000 + 11 * 100 };

/* Its address is what counts: it tells the library that registers. */
static uint32_t import(void)
{
    return TableVersion;
}

static void register_table(const char *name, void *table)
{
    rocprofiler_register_library_identifier_t identifier = {0};
    if (rocprofiler_register_library_api_table)
        rocprofiler_register_library_api_table(name, import, TableVersion, &table, 1, &identifier);
}

/* The compiler's own calls have a table as well, registered under another name before this one. */
static struct {
    size_t size;
    void *slots[9];
} compiler_table;
#endif

static struct table the_table;

static void make(void)
{
    fill(&the_table);
#if REGISTERS
    compiler_table.size = sizeof compiler_table;
    for (int i = 0; i < 9; i++)
        compiler_table.slots[i] = (void *)not_supported;
    register_table("hip_compiler", &compiler_table);
    register_table("hip", &the_table);
#endif
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct table *_Atomic published;

static __attribute__((noinline, cold)) struct table *make_once(void)
{
    pthread_once(&once, make);
    atomic_store_explicit(&published, &the_table, memory_order_release);
    return &the_table;
}

/* What every stub calls first. */
__attribute__((used, noipa)) static struct table *get_table(void)
{
    struct table *table = atomic_load_explicit(&published, memory_order_acquire);
    return __builtin_expect(table != NULL, 1) ? table : make_once();
}

/* The stubs are those that the real libraries have, instruction by instruction, but for the number of registers that are
 * kept: arguments on the stack lie where they lay when the jump is made. */
#define STUB(slot, name)                            \
    __asm__(".pushsection .text\n"                  \
            ".p2align 4\n"                          \
            ".globl " #name "\n"                    \
            ".type " #name ", @function\n"          \
            #name ":\n"                             \
            ".cfi_startproc\n"                      \
            "    endbr64\n"                         \
            "    sub $0x38, %rsp\n"                 \
            ".cfi_adjust_cfa_offset 0x38\n"         \
            "    mov %rdi, 0x28(%rsp)\n"            \
            "    mov %rsi, 0x20(%rsp)\n"            \
            "    mov %rdx, 0x18(%rsp)\n"            \
            "    mov %rcx, 0x10(%rsp)\n"            \
            "    mov %r8, 0x8(%rsp)\n"              \
            "    mov %r9, (%rsp)\n"                 \
            "    call get_table\n"                  \
            "    mov (%rsp), %r9\n"                 \
            "    mov 0x8(%rsp), %r8\n"              \
            "    mov 0x10(%rsp), %rcx\n"            \
            "    mov 0x18(%rsp), %rdx\n"            \
            "    mov 0x20(%rsp), %rsi\n"            \
            "    mov 0x28(%rsp), %rdi\n"            \
            "    mov 8 + 8 * " #slot "(%rax), %rax\n" \
            "    add $0x38, %rsp\n"                 \
            ".cfi_adjust_cfa_offset -0x38\n"        \
            "    jmp *%rax\n"                       \
            ".cfi_endproc\n"                        \
            ".size " #name ", .-" #name "\n"        \
            ".popsection\n");

#define FUNCTION(since, version, slot, name, parameters, arguments, outputs) IF_SINCE(since, STUB(slot, name))
#define DIRECT(since, version, slot, name, parameters, arguments, outputs) \
    IF_SINCE(since, hipError_t name parameters { return ENTRY(name) arguments; })
#define SPECIAL(since, version, slot, type, name, parameters, arguments) IF_SINCE(since, STUB(slot, name))
#include "functions.h"

#endif
