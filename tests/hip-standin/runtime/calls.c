/* Around every call: counting, rules, the thread's last error. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* `last` is what the thread's last call returned, `sticky` its last failure. Up to generation 6 hipGetLastError tells the
 * former: a later success hides an error. Since 7 it tells the latter. */
static __thread struct {
    hipError_t last, sticky;
} errors __attribute__((tls_model("initial-exec")));

#define FUNCTION(since, version, slot, name, parameters, arguments, outputs) IF_SINCE(since, #name, )
#define DIRECT FUNCTION
#define SPECIAL(since, version, slot, type, name, parameters, arguments) IF_SINCE(since, #name, )
static const char *const names[Functions] = {
#include "functions.h"
};
#undef FUNCTION
#undef SPECIAL
#undef DIRECT

const char *function_name(int function)
{
    return names[function];
}

int function_by_name(const char *name, size_t length)
{
    for (int i = 0; i < Functions; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return i;
    return -1;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Short waits are spun, since sleeping takes longer. Long ones are a cancellation point. */
static void wait_for(uint64_t nanoseconds)
{
    uint64_t end = now() + nanoseconds;
    if (nanoseconds >= 100000) {
        struct timespec time = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
            ;
        return;
    }
    while (now() < end)
        __builtin_ia32_pause();
}

static bool applies(struct rule *rule, int function)
{
    if (rule->function >= 0 && rule->function != function)
        return false;
    uint64_t call = atomic_fetch_add_explicit(&rule->calls, 1, memory_order_relaxed) + 1;
    switch (rule->which) {
    case WhichRange:
        return rule->from <= call && call <= rule->to;
    case WhichEvery:
        return call % rule->from == 0;
    default:
        return true;
    }
}

static void kill_process(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void (*_Atomic told)(const char *name);

void set_told(void (*function)(const char *name))
{
    atomic_store(&told, function);
}

/* It may do what it likes: make calls, jump away, throw. */
static void tell(int function)
{
    void (*program)(const char *) = atomic_load(&told);
    if (program)
        program(names[function]);
}

static bool works_without_device(int function)
{
    return function == FUNCTION_hipGetDeviceCount || function == FUNCTION_hipRuntimeGetVersion ||
           function == FUNCTION_hipDriverGetVersion;
}

bool call_begin(struct call *call, int function, void *first_output, hipError_t *error)
{
    standin_initialise();
    call->function = function;
    call->kill_after = call->tell_after = false;
    call->error_after = hipSuccess;
    account_call(function);
    *error = hipSuccess;
    bool go_on = true;
    int rules = atomic_load_explicit(&config.rule_count, memory_order_acquire);
    for (int i = 0; i < rules; i++) {
        struct rule *rule = &config.rules[i];
        /* Every rule counts every call; the first that decides the result is obeyed. */
        if (!applies(rule, function) || !go_on)
            continue;
        switch (rule->action) {
        case ActionWait:
            wait_for(rule->value);
            break;
        case ActionKill:
            kill_process();
            break;
        case ActionKillAfter:
            call->kill_after = true;
            break;
        case ActionCall:
            tell(function);
            break;
        case ActionCallAfter:
            call->tell_after = true;
            break;
        case ActionErrorAfter:
            if (call->error_after == hipSuccess)
                call->error_after = (hipError_t)rule->value;
            break;
        case ActionNull:
            if (first_output)
                *(void **)first_output = NULL;
            go_on = false;
            break;
        case ActionError:
            *error = (hipError_t)rule->value;
            go_on = false;
            break;
        }
    }
    if (go_on && visible_count == 0 && !works_without_device(function)) {
        *error = hipErrorNoDevice;
        go_on = false;
    }
    return go_on;
}

hipError_t call_end(struct call *call, hipError_t error)
{
    if (call->tell_after)
        tell(call->function);
    if (error == hipSuccess)
        error = call->error_after;
    if (error != hipSuccess) {
        account_error(call->function);
        if (error != hipErrorNotReady)
            errors.sticky = error;
    }
    errors.last = error;
    if (call->kill_after)
        kill_process();
    return error;
}

void poison(void *output, size_t bytes)
{
    if (output)
        memset(output, 0xa5, bytes);
}

/* Every function as the export or the dispatch table has it. */
#define NONE first = NULL
#define OUT(a) first = (a)
#define OUT2(a, b) first = (a)
#define POISON_NONE
#define POISON_OUT(a) poison(a, sizeof *(a))
#define POISON_OUT2(a, b) poison(a, sizeof *(a)), poison(b, sizeof *(b))
#define FUNCTION(since, version, slot, name, parameters, arguments, outputs)   \
    IF_SINCE(since, hipError_t ENTRY(name) parameters {                        \
        struct call call;                                                      \
        hipError_t error;                                                      \
        void *first;                                                           \
        outputs;                                                               \
        if (call_begin(&call, FUNCTION_##name, first, &error))                 \
            error = do_##name arguments;                                       \
        if (error != hipSuccess && __builtin_expect(config.poison, false)) {   \
            POISON_##outputs;                                                  \
        }                                                                      \
        return call_end(&call, error);                                         \
    })
#define DIRECT FUNCTION
#define SPECIAL(since, version, slot, type, name, parameters, arguments) \
    IF_SINCE(since, type ENTRY(name) parameters {                        \
        standin_initialise();                                            \
        account_call(FUNCTION_##name);                                   \
        return do_##name arguments;                                      \
    })
#include "functions.h"

hipError_t do_hipGetLastError(void)
{
    hipError_t error = config.sticky_errors ? errors.sticky : errors.last;
    errors.last = config.sticky_errors ? error : hipSuccess;
    errors.sticky = hipSuccess;
    return error;
}

hipError_t do_hipPeekAtLastError(void)
{
    return config.sticky_errors ? errors.sticky : errors.last;
}

#if GENERATION >= 6
hipError_t do_hipExtGetLastError(void)
{
    return errors.last;
}
#endif

const char *do_hipGetErrorName(hipError_t error)
{
    switch (error) {
    case hipSuccess:
        return "hipSuccess";
    case hipErrorInvalidValue:
        return "hipErrorInvalidValue";
    case hipErrorOutOfMemory:
        return "hipErrorOutOfMemory";
    case hipErrorNotInitialized:
        return "hipErrorNotInitialized";
    case hipErrorNoDevice:
        return "hipErrorNoDevice";
    case hipErrorInvalidDevice:
        return "hipErrorInvalidDevice";
    case hipErrorNotSupported:
        return "hipErrorNotSupported";
    default:
        return "hipErrorUnknown";
    }
}

const char *do_hipGetErrorString(hipError_t error)
{
    switch (error) {
    case hipSuccess:
        return "no error";
    case hipErrorInvalidValue:
        return "invalid argument";
    case hipErrorOutOfMemory:
        return "out of memory";
    case hipErrorNotInitialized:
        return "initialization error";
    case hipErrorNoDevice:
        return "no ROCm-capable device is detected";
    case hipErrorInvalidDevice:
        return "invalid device ordinal";
    case hipErrorNotSupported:
        return "operation not supported";
    default:
        return "unknown error";
    }
}
