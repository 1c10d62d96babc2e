/* Its constructor looks at the stack, down to the program. */
#include <execinfo.h>
#include <stdio.h>
#include <string.h>

int hipMalloc(void **out, size_t bytes) { return out && bytes ? 2 : 1; }

__attribute__((constructor)) static void walk(void)
{
    void *frames[100];
    int count = backtrace(frames, 100), seen = 0;
    char **names = backtrace_symbols(frames, count);
    for (int i = 0; i < count; i++)
        seen += strstr(names[i], "asks_for_hip") != NULL;
    printf("constructor: %s\n", seen ? "sees the program" : "does not see the program");
}
