/* What the peers of `cargo xtask bench share` have in common: how often each does what, and what
   it prints. */
#ifndef TIMES_H
#define TIMES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096, LARGE = 65536, ADDS = 2000, COMPUTED = 1 };

static inline uint64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static inline int later(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Prints: what, the median and the 99th percentile of one, in nanoseconds. */
static inline void print_times(const char *what, uint64_t *times, size_t count)
{
    qsort(times, count, sizeof *times, later);
    printf("%s %llu %llu\n", what, (unsigned long long)times[(count - 1) / 2],
           (unsigned long long)times[(count - 1) * 99 / 100]);
    fflush(stdout);
}

/* Half a second of work that calls nothing. */
static inline void compute(void)
{
    uint64_t end = now_ns() + 500000000;
    while (now_ns() < end)
        ;
}

/* What both hosts are told. */
struct told {
    size_t pages;
    int computes; /* the home computes, and asks its library every half a second */
};

static inline struct told told(int count, char **words)
{
    if (count != 3 || (strcmp(words[2], "waits") != 0 && strcmp(words[2], "computes") != 0)) {
        fprintf(stderr, "%s PAGES waits|computes\n", words[0]);
        exit(2);
    }
    struct told told = {strtoul(words[1], NULL, 10), strcmp(words[2], "computes") == 0};
    return told;
}

#endif
