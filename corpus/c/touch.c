/* Threads that touch pages of one array, at random or in order; every second touch writes.
 * usage: touch MIB random|order THREADS */
#include "job.h"
#include <pthread.h>

enum { THREADS_MAX = 64, TOUCHES_PER_PAGE = 3 };

static char *array;
static size_t pages, threads;
static int at_random;
static uint64_t sums[THREADS_MAX];

/* The first word of a page says which it is; each thread has another one, which it counts in. */
static void *touch(void *number)
{
    size_t own = (size_t)number, part = pages / threads;
    uint64_t state = own;
    for (size_t i = 0; i < part * TOUCHES_PER_PAGE; i++) {
        size_t page = at_random ? rng(&state) % pages : (own * part + i) % pages;
        uint64_t *words = (uint64_t *)(array + page * PAGE);
        if (words[0] != page)
            DIE("page %zu says that it is %lu", page, words[0]);
        if (i & 1)
            words[1 + own]++;
        sums[own] = sums[own] * 31 + words[1 + own] + page;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pages = job_pages(argc, argv);
    at_random = argc < 3 || !strcmp(argv[2], "random");
    threads = argc < 4 ? 1 : strtoul(argv[3], NULL, 10);
    MUST(threads > 0 && threads <= THREADS_MAX);
    MUST(array = malloc(pages * PAGE));
    for (size_t page = 0; page < pages; page++) {
        uint64_t *words = (uint64_t *)(array + page * PAGE);
        page_fill(words, page);
        words[0] = page;
        memset(words + 1, 0, threads * 8);
    }
    pthread_t started[THREADS_MAX];
    for (size_t i = 0; i < threads; i++)
        MUST(!pthread_create(&started[i], NULL, touch, (void *)i));
    for (size_t i = 0; i < threads; i++) {
        MUST(!pthread_join(started[i], NULL));
        printf("thread %zu %lx\n", i, sums[i]);
    }
    return 0;
}
