// A preloaded library that does nothing: the dynamic linker's part of what any costs.
int hipflex_bench_empty = 1;
