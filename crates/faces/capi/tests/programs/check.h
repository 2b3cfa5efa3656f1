/* What the programs have in common. */
#ifndef CHECK_H
#define CHECK_H

#include <farpage.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fails the program, and says where. */
#define CHECK(what)                                                        \
    do {                                                                   \
        if (!(what)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

/* The error has this code, and words that contain these. */
static inline void check_error(fp_error *error, int32_t code, const char *words)
{
    if (error->code != code || (error->message == NULL) != (code == FP_OK) ||
        (words != NULL && strstr(error->message, words) == NULL)) {
        fprintf(stderr, "error %d: %s; wanted %d: %s\n", (int)error->code,
                error->message == NULL ? "" : error->message, (int)code, words);
        exit(1);
    }
    fp_error_free(error);
    CHECK(error->code == FP_OK && error->message == NULL);
}

static inline fp_options no_options(void)
{
    fp_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    return options;
}

#endif
