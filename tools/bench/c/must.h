/* Ends the program, and says where, when something that must be so is not. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, strerror(errno));                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
