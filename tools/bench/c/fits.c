/* A program whose memory fits: what farpage must not slow down. Three kinds of memory one after the
 * other: one large mapping with huge pages asked for, one without, and a heap that comes and goes.
 * usage: fits MIB */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static uint64_t sum;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    return x ^ (x >> 27);
}

static void mapping(size_t bytes, int huge)
{
    uint64_t *a = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a == MAP_FAILED)
        exit(1);
    madvise(a, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++)
        a[i] = i;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < words; i++)
            a[i] = a[i] * 3 + 1;
    for (uint64_t i = 0; i < words / 64; i++)
        sum += a[mix(i + 1) % words];
    munmap(a, bytes);
}

static void heap(size_t bytes)
{
    enum { SLOTS = 64 };
    char *slots[SLOTS] = {0};
    for (uint64_t i = 0; i < 4000; i++) {
        char **s = &slots[mix(i + 7) % SLOTS];
        free(*s);
        size_t len = mix(i) % (bytes / SLOTS) + 1;
        *s = malloc(len);
        if (!*s)
            exit(1);
        for (size_t at = 0; at < len; at += 4096 * 4)
            (*s)[at] = (char)i;
        sum += (unsigned char)(*s)[0];
    }
    for (int i = 0; i < SLOTS; i++)
        free(slots[i]);
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1024) << 20;
    double t0 = now();
    mapping(bytes, 1);
    double t1 = now();
    mapping(bytes, 0);
    double t2 = now();
    heap(bytes / 4);
    double t3 = now();
    printf("huge %.6f\nsmall %.6f\nheap %.6f\n", t1 - t0, t2 - t1, t3 - t2);
    fprintf(stderr, "%llu\n", (unsigned long long)sum);
    return 0;
}
