/* OpenSHMEM between two hosts: PE 0 has the memory, PE 1 reads and writes it. */
#include <shmem.h>

#include "times.h"

enum { HOME, OTHER };

static void get(char *page, char *at, size_t bytes)
{
    shmem_getmem(page, at, bytes, HOME);
}

static void put(char *page, char *at, size_t bytes)
{
    shmem_putmem(at, page, bytes, HOME);
    shmem_quiet();
}

typedef void one(char *page, char *at, size_t bytes);

static void each(const char *what, one *one, char *memory, size_t count, size_t bytes)
{
    uint64_t *times = malloc(count * sizeof *times);
    char *page = malloc(bytes);
    memset(page, 7, bytes);
    for (size_t at = 0; at < count; at++) {
        uint64_t began = now_ns();
        one(page, memory + at * bytes, bytes);
        times[at] = now_ns() - began;
    }
    print_times(what, times, count);
    free(page);
    free(times);
}

/* Both hosts at once, to one word. */
static void adds(long *word)
{
    uint64_t began = now_ns();
    for (int count = 0; count < ADDS; count++)
        shmem_long_atomic_fetch_add(word, 1, HOME);
    uint64_t mean = (now_ns() - began) / ADDS;
    print_times("add", &mean, 1);
}

int main(int count, char **words)
{
    struct told told_us = told(count, words);
    shmem_init();
    int rank = shmem_my_pe();
    char *memory = shmem_malloc(told_us.pages * PAGE);
    long *done = shmem_calloc(1, sizeof *done);
    memset(memory, 0, told_us.pages * PAGE);
    shmem_barrier_all();
    if (rank == OTHER) {
        /* Connected before it counts. */
        char page[PAGE];
        get(page, memory, PAGE);
        put(page, memory, PAGE);
    }
    shmem_barrier_all();
    size_t pages = told_us.computes ? COMPUTED : told_us.pages;
    /* The other host has the word that says that all is done. */
    if (rank == HOME && told_us.computes)
        do
            compute();
        while (shmem_long_atomic_fetch(done, OTHER) == 0);
    if (rank == OTHER) {
        each("read", get, memory, pages, PAGE);
        each("write", put, memory, pages, PAGE);
        if (told_us.computes)
            shmem_long_atomic_set(done, 1, OTHER);
        else
            each("read-64K", get, memory, pages / 16, LARGE);
    }
    shmem_barrier_all();
    if (!told_us.computes)
        adds((long *)memory);
    shmem_barrier_all();
    shmem_finalize();
}
