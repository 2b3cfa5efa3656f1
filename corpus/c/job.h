/* What the corpus programs share: patterns that name their place, a digest, and a loud way to fail.
 * A program prints digests and counts only: nothing that depends on time, addresses or
 * process ids. */
#ifndef JOB_H
#define JOB_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define WORDS_PER_PAGE (PAGE / 8)

#define DIE(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno));                              \
        _exit(3);                                                                                  \
    } while (0)
#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x))                                                                                  \
            DIE("failed: %s", #x);                                                                 \
    } while (0)

/* The size of the job: pages in argv[1] MiB. */
static inline size_t job_pages(int argc, char **argv)
{
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    MUST(mib > 0 && mib < 1UL << 20);
    return mib << 20 >> 12;
}

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static inline uint64_t rng(uint64_t *state)
{
    return mix((*state)++);
}

/* Every fourth page does not compress, the others do. */
static inline void page_fill(void *page, uint64_t tag)
{
    uint64_t *w = page;
    for (size_t i = 0; i < WORDS_PER_PAGE; i++)
        w[i] = tag % 4 == 0 ? mix(tag * WORDS_PER_PAGE + i) : tag + (i & 15);
}

static inline void page_check(const void *page, uint64_t tag, const char *who)
{
    const uint64_t *w = page;
    for (size_t i = 0; i < WORDS_PER_PAGE; i++) {
        uint64_t want = tag % 4 == 0 ? mix(tag * WORDS_PER_PAGE + i) : tag + (i & 15);
        if (w[i] != want)
            DIE("%s: page of tag %llu, word %zu: %llx instead of %llx", who,
                (unsigned long long)tag, i, (unsigned long long)w[i], (unsigned long long)want);
    }
}

static inline void page_check_zero(const void *page, const char *who)
{
    const uint64_t *w = page;
    for (size_t i = 0; i < WORDS_PER_PAGE; i++)
        if (w[i] != 0)
            DIE("%s: word %zu of a page that must be zero: %llx", who, i, (unsigned long long)w[i]);
}

static inline uint64_t digest(const void *bytes, size_t n, uint64_t h)
{
    const uint64_t *w = bytes;
    for (size_t i = 0; i < n / 8; i++)
        h = (h ^ w[i]) * 0x100000001b3ULL;
    return h;
}

static inline void *map_pages(size_t pages)
{
    void *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(p != MAP_FAILED);
    return p;
}

/* Waits for one child and dies unless it exited with 0. */
static inline void wait_ok(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        MUST(errno == EINTR);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        DIE("a child ended with status %x", status);
}
#endif
