/* What the parts of the client share. */
#pragma once
#include <stddef.h>

/* The place of what an allocation, a stream or a pool gave, by the name that the arguments use. */
void **block(const char *name);

/* Takes the next field, separated by colons; NULL: there is none. */
char *next(char **fields);
/* The same as a number. */
size_t number(char **fields);
size_t number_or(char **fields, size_t otherwise);

/* Does what a command of allocate.c says. 0: it is none. */
int allocate(const char *name, char *fields);
