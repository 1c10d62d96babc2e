// A library that stands before libc with every function of NAMES, a list X(name) X(name) ..., and can stand in for none: a call
// is the end. When its constructor runs, after those of what it depends on and of what was preloaded behind it, it prints
// the environment and ends the process, by system calls alone.
#include <stddef.h>

#define X(name) __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ": ud2\n.size " #name ", 2\n");
NAMES
#undef X

extern char **environ;

static long system_call(long number, long first, const char *second, size_t third) {
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(first), "S"(second), "d"(third)
                   : "rcx", "r11", "memory");
  return result;
}

enum { WRITE = 1, EXIT_GROUP = 231 };

__attribute__((constructor)) static void print_and_end(void) {
  for (char **entry = environ; *entry; entry++) {
    size_t length = 0;
    while (((volatile char *)*entry)[length]) length++;
    system_call(WRITE, 1, *entry, length);
    system_call(WRITE, 1, "\n", 1);
  }
  system_call(EXIT_GROUP, 0, NULL, 0);
}
