/* Changes its environment as its arguments say, and allocates.
 *
 * unset:NAME   set:NAME:VALUE   clear   overwrite (the memory of the variables, as programs do that set their
 * title)   malloc:BYTES   fork (the child goes on, the parent waits)   exec (itself, with what follows)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int hipMalloc(void **, size_t);
extern char **environ;

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        char *rest = argv[i], *what = strsep(&rest, ":");
        if (!strcmp(what, "unset")) {
            unsetenv(rest);
        } else if (!strcmp(what, "set")) {
            char *name = strsep(&rest, ":");
            setenv(name, rest, 1);
        } else if (!strcmp(what, "clear")) {
            clearenv();
        } else if (!strcmp(what, "overwrite")) {
            for (char **entry = environ; *entry; entry++)
                memset(*entry, 'x', strlen(*entry));
        } else if (!strcmp(what, "malloc")) {
            void *pointer;
            printf("malloc %s = %d\n", rest, hipMalloc(&pointer, strtoull(rest, NULL, 0)));
        } else if (!strcmp(what, "fork")) {
            if (fork() != 0) {
                wait(NULL);
                return 0;
            }
        } else if (!strcmp(what, "exec")) {
            argv[i] = argv[0];
            execv("/proc/self/exe", argv + i);
            return 1;
        }
    }
    return 0;
}
