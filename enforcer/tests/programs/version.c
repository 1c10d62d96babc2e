/* Prints the version of the library that is preloaded, as a tool may. */
#include <stdio.h>

__attribute__((weak)) extern const char hipflex_version[];

int main(void)
{
    puts(hipflex_version ? hipflex_version : "not loaded");
    return 0;
}
