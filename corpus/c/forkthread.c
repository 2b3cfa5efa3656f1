/* A thread that is not the first forks again and again while other threads write and map: every
 * child finds the quiet half of memory whole and can write all of it. */
#include "job.h"
#include <pthread.h>
#include <stdatomic.h>

enum { WRITERS = 3, FORKS = 6 };

static char *quiet, *busy;
static size_t quiet_pages, busy_pages;
static atomic_int stop;

static void *writer(void *arg)
{
    size_t me = (size_t)arg;
    uint64_t gen = 0;
    while (!atomic_load(&stop)) {
        for (size_t i = me; i < busy_pages && !atomic_load(&stop); i += WRITERS) {
            page_fill(busy + i * PAGE, i + gen);
            page_check(busy + i * PAGE, i + gen, "writer");
        }
        char *extra = map_pages(64 + me);
        page_fill(extra, me);
        page_check(extra, me, "writer's own mapping");
        MUST(munmap(extra, (64 + me) * PAGE) == 0);
        gen++;
    }
    return NULL;
}

static void *forker(void *arg)
{
    (void)arg;
    for (int f = 0; f < FORKS; f++) {
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            for (size_t i = 0; i < quiet_pages; i++)
                page_check(quiet + i * PAGE, i, "child of a thread");
            for (size_t i = 0; i < quiet_pages; i += 7)
                page_fill(quiet + i * PAGE, i + 5);
            for (size_t i = 0; i < busy_pages; i++)
                page_fill(busy + i * PAGE, i);
            _exit(0);
        }
        for (size_t i = 0; i < quiet_pages; i += 3)
            page_check(quiet + i * PAGE, i, "forking thread");
        wait_ok(pid);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv);
    quiet_pages = busy_pages = pages / 2;
    quiet = map_pages(quiet_pages);
    busy = map_pages(busy_pages);
    for (size_t i = 0; i < quiet_pages; i++)
        page_fill(quiet + i * PAGE, i);
    pthread_t writers[WRITERS], fork_thread;
    for (size_t w = 0; w < WRITERS; w++)
        MUST(pthread_create(&writers[w], NULL, writer, (void *)w) == 0);
    MUST(pthread_create(&fork_thread, NULL, forker, NULL) == 0);
    MUST(pthread_join(fork_thread, NULL) == 0);
    atomic_store(&stop, 1);
    for (size_t w = 0; w < WRITERS; w++)
        MUST(pthread_join(writers[w], NULL) == 0);
    printf("forks %d quiet %016llx\n", FORKS,
           (unsigned long long)digest(quiet, quiet_pages * PAGE, 0));
    return 0;
}
