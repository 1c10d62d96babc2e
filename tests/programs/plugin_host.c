// Runs a program that was built as a library: plugin_host LIBRARY deep|plain
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  int deep = !strcmp(argv[2], "deep");
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | (deep ? RTLD_DEEPBIND : 0));
  int (*run)(void) = library ? (int (*)(void))dlsym(library, "plugin_main") : NULL;
  if (!run) {
    fprintf(stderr, "plugin_host: %s\n", dlerror());
    return 3;
  }
  return run();
}
