#include <stdio.h>

int at_load(void);

int main(void)
{
    printf("main: %d\n", at_load());
    return 0;
}
