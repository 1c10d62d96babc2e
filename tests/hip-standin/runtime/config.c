/* HIP_STANDIN_*: what the stand-in is to be like. The crate's README has the list. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct config config;

static bool digit(char c)
{
    return '0' <= c && c <= '9';
}

static bool parse_number(const char **text, uint64_t *number)
{
    if (!digit(**text))
        return false;
    uint64_t value = 0;
    for (; digit(**text); ++*text) {
        if (times(value, 10, &value) || __builtin_add_overflow(value, (uint64_t)(**text - '0'), &value))
            return false;
    }
    *number = value;
    return true;
}

/* A number, with KiB, MiB, GiB or TiB behind it or not. */
bool parse_size(const char **text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    if (!parse_number(text, bytes))
        return false;
    const char *unit = **text ? strchr(units, **text) : NULL;
    if (!unit)
        return true;
    if (strncmp(*text + 1, "iB", 2) != 0)
        return false;
    *text += 3;
    return !times(*bytes, (uint64_t)1 << (10 * (unit - units + 1)), bytes);
}

/* A number and one of ns, us, ms, s. */
static bool parse_duration(const char **text, uint64_t *nanoseconds)
{
    static const struct {
        const char *name;
        uint64_t nanoseconds;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
    if (!parse_number(text, nanoseconds))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t length = strlen(units[i].name);
        if (strncmp(*text, units[i].name, length) == 0) {
            *text += length;
            return !times(*nanoseconds, units[i].nanoseconds, nanoseconds);
        }
    }
    return false;
}

/* NAME[@WHICH]=ACTION. WHICH: 3, 3+, 3-5 or %10; ACTION: an error's number, with -after or without;
 * null, kill, kill-after, call, call-after, wait:DURATION. */
static bool parse_rule(const char **text, struct rule *rule)
{
    size_t length = strcspn(*text, "@=");
    rule->function = -1;
    if (!(length == 1 && **text == '*')) {
        rule->function = function_by_name(*text, length);
        if (rule->function < 0)
            return false;
    }
    *text += length;
    rule->which = WhichAll;
    atomic_store(&rule->calls, 0);
    if (**text == '@') {
        ++*text;
        rule->which = WhichRange;
        if (**text == '%') {
            ++*text;
            rule->which = WhichEvery;
        }
        if (!parse_number(text, &rule->from) || rule->from == 0)
            return false;
        rule->to = rule->from;
        if (rule->which == WhichRange && **text == '+') {
            ++*text;
            rule->to = UINT64_MAX;
        } else if (rule->which == WhichRange && **text == '-') {
            ++*text;
            if (!parse_number(text, &rule->to))
                return false;
        }
    }
    if (*(*text)++ != '=')
        return false;
    static const struct {
        const char *name;
        enum action action;
    } actions[] = {{"null", ActionNull},
                   {"kill-after", ActionKillAfter},
                   {"kill", ActionKill},
                   {"call-after", ActionCallAfter},
                   {"call", ActionCall}};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        size_t size = strlen(actions[i].name);
        if (strncmp(*text, actions[i].name, size) == 0) {
            *text += size;
            rule->action = actions[i].action;
            return true;
        }
    }
    if (strncmp(*text, "wait:", 5) == 0) {
        *text += 5;
        rule->action = ActionWait;
        return parse_duration(text, &rule->value);
    }
    if (!parse_number(text, &rule->value) || rule->value == 0 || rule->value >= 10000)
        return false;
    rule->action = ActionError;
    if (strncmp(*text, "-after", 6) == 0) {
        *text += 6;
        rule->action = ActionErrorAfter;
    }
    return true;
}

static bool set_rules(const char *text)
{
    atomic_store_explicit(&config.rule_count, 0, memory_order_release);
    int count = 0;
    while (*text) {
        if (count == MaxRules || !parse_rule(&text, &config.rules[count]))
            return false;
        count++;
        if (*text == ',' || *text == ';')
            text++;
        else if (*text)
            return false;
    }
    atomic_store_explicit(&config.rule_count, count, memory_order_release);
    return true;
}

static bool set_size(const char *text, size_t *place)
{
    uint64_t bytes;
    if (!parse_size(&text, &bytes) || *text || bytes == 0)
        return false;
    *place = bytes;
    return true;
}

static bool set_switch(const char *text, bool *place)
{
    if ((text[0] != '0' && text[0] != '1') || text[1])
        return false;
    *place = text[0] == '1';
    return true;
}

/* One of two words. */
static bool set_choice(const char *text, const char *no, const char *yes, bool *place)
{
    if (strcmp(text, yes) == 0)
        *place = true;
    else if (strcmp(text, no) == 0)
        *place = false;
    else
        return false;
    return true;
}

bool config_set(const char *name, const char *value)
{
    if (strcmp(name, "RULES") == 0)
        return set_rules(value);
    if (strcmp(name, "PITCH") == 0)
        return set_size(value, &config.pitch);
    if (strcmp(name, "ROUND") == 0)
        return set_size(value, &config.round);
    if (strcmp(name, "GRANULARITY") == 0)
        return set_size(value, &config.granularity);
    if (strcmp(name, "INFO_STEP") == 0)
        return set_size(value, &config.info_step);
    if (strcmp(name, "IMAGE_LIMIT") == 0)
        return set_size(value, &config.image_limit);
    if (strcmp(name, "POISON") == 0)
        return set_switch(value, &config.poison);
    if (strcmp(name, "NESTED") == 0)
        return set_switch(value, &config.nested);
    if (strcmp(name, "MIPMAPS") == 0)
        return set_switch(value, &config.mipmaps);
    if (strcmp(name, "LAST_ERROR") == 0)
        return set_choice(value, "last-call", "sticky", &config.sticky_errors);
    if (strcmp(name, "MEM_CREATE") == 0)
        return set_choice(value, "location", "current", &config.create_on_current);
    return false;
}

void config_read(void)
{
    static const char *const names[] = {"RULES",       "PITCH",  "ROUND",  "GRANULARITY", "INFO_STEP", "IMAGE_LIMIT",
                                        "POISON",      "NESTED", "MIPMAPS", "LAST_ERROR", "MEM_CREATE"};
    config.pitch = 256;
    config.round = 1;
    config.granularity = 4096;
    config.info_step = 1;
    config.image_limit = 16384;
    config.mipmaps = true;
    config.sticky_errors = config.create_on_current = GENERATION >= 7;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char variable[64];
        snprintf(variable, sizeof variable, "HIP_STANDIN_%s", names[i]);
        const char *value = getenv(variable);
        if (value && !config_set(names[i], value)) {
            fprintf(stderr, "hip-standin: %s=%s is not understood; see the README of tests/hip-standin\n", variable,
                    value);
            abort();
        }
    }
}
