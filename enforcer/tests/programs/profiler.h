/* What a program and its profiler say to each other. */
#pragma once

struct seen { int mallocs, refused, frees; };

void profile(void);
struct seen profiled(void);
