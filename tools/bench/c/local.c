/* A local file larger than the memory given for it: through Farpage, mmap, and O_DIRECT.
 *
 * usage: local HOW PATTERN THREADS FILE RAM_BYTES COUNT
 *   HOW      farpage | mmap | direct (reads and writes past the page cache) | disk (as direct, the
 *            contents are not looked at) | bare (userfaultfd and as many handlers as THREADS, which
 *            read past the page cache and do nothing else; only for rand)
 *   PATTERN  seq, rand: reads      seqw, randw: reads, writes a word in each page, flushes
 * THREADS threads share the work: all of the file in blocks of 2 MiB, or COUNT different pages of
 * 4 KiB in random order. RAM_BYTES is Farpage's budget; others are limited from outside.
 *
 * Prints: seconds operations sum */
#define _GNU_SOURCE
#include <errno.h>
#include <farpage.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

enum { PAGE = 4096, BLOCK = 2 << 20, WORDS = PAGE / 8, THREADS_MAX = 64 };

static int fd = -1, look = 1, writes, random_order;
/* Where the file is mapped, or NULL: read(2). */
static uint64_t *mapped;
static uint64_t pages, operations;
static atomic_uint_fast64_t next, total;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The number of the page that comes at the i-th place: each once. */
static uint64_t shuffled(uint64_t i)
{
    int bits = 64 - __builtin_clzll(pages - 1);
    uint64_t mask = (1ULL << bits) - 1, x = i;
    do {
        for (int round = 0; round < 3; round++) {
            x = (x * 0x9E3779B97F4A7C15ULL + 0x1234567) & mask;
            x ^= x >> (bits / 2 + 1);
        }
    } while (x >= pages);
    return x;
}

/* Looks at a block or a page, in memory; writes a word of each page of it. */
static uint64_t work(uint64_t *at, uint64_t first_page, uint64_t count)
{
    uint64_t sum = 0;
    if (!random_order)
        for (uint64_t i = 0; i < count * WORDS; i++)
            sum += i % WORDS == 0 ? 0 : at[i];
    else
        sum = at[1];
    for (uint64_t page = 0; writes && page < count; page++)
        at[page * WORDS] = first_page + page;
    return sum;
}

static void *thread(void *unused)
{
    (void)unused;
    uint64_t most = random_order ? PAGE : BLOCK, sum = 0, i;
    void *buffer = NULL;
    MUST(mapped || posix_memalign(&buffer, PAGE, most) == 0);
    while ((i = atomic_fetch_add(&next, 1)) < operations) {
        uint64_t page = random_order ? shuffled(i) : i * (BLOCK / PAGE);
        uint64_t count = random_order ? 1 : BLOCK / PAGE;
        if (page + count > pages)
            count = pages - page;
        if (mapped) {
            sum += work(mapped + page * WORDS, page, count);
            continue;
        }
        MUST(pread(fd, buffer, count * PAGE, (off_t)(page * PAGE)) == (ssize_t)(count * PAGE));
        if (look)
            sum += work(buffer, page, count);
        if (writes)
            MUST(pwrite(fd, buffer, count * PAGE, (off_t)(page * PAGE)) == (ssize_t)(count * PAGE));
    }
    atomic_fetch_add(&total, sum);
    free(buffer);
    return NULL;
}

static fp_memory *open_farpage(const char *file, uint64_t ram)
{
    fp_options options = {.size = sizeof options};
    options.mode = writes ? FP_WRITE : FP_READ;
    options.ram_bytes = ram;
    fp_error error = {0};
    fp_memory *memory = fp_open(file, &options, &error);
    if (!memory) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    return memory;
}

static void *bare_handler(void *argument)
{
    int uffd = *(int *)argument;
    struct uffd_msg message;
    void *buffer = NULL;
    MUST(posix_memalign(&buffer, PAGE, PAGE) == 0);
    while (read(uffd, &message, sizeof message) == sizeof message) {
        uint64_t to = message.arg.pagefault.address / PAGE * PAGE;
        MUST(pread(fd, buffer, PAGE, (off_t)(to - (uintptr_t)mapped)) == PAGE);
        struct uffdio_copy copy = {.dst = to, .src = (uintptr_t)buffer, .len = PAGE};
        MUST(ioctl(uffd, UFFDIO_COPY, &copy) == 0);
    }
    return NULL;
}

/* The least that answering faults takes. It lasts as long as the process. */
static void map_bare(uint64_t bytes, int handlers)
{
    static int uffd;
    struct uffdio_api api = {.api = UFFD_API};
    MUST((uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC)) >= 0);
    MUST(ioctl(uffd, UFFDIO_API, &api) == 0);
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how, -1, 0);
    MUST(mapped != MAP_FAILED && madvise(mapped, bytes, MADV_NOHUGEPAGE) == 0);
    struct uffdio_register all = {.range = {(uintptr_t)mapped, bytes},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
    MUST(ioctl(uffd, UFFDIO_REGISTER, &all) == 0);
    for (int i = 0; i < handlers; i++) {
        pthread_t handler;
        MUST(pthread_create(&handler, NULL, bare_handler, &uffd) == 0);
    }
}

int main(int argc, char **argv)
{
    MUST(argc == 7);
    const char *how = argv[1], *pattern = argv[2], *file = argv[4];
    int threads = atoi(argv[3]);
    MUST(0 < threads && threads <= THREADS_MAX);
    random_order = pattern[0] == 'r';
    writes = pattern[strlen(pattern) - 1] == 'w';
    look = strcmp(how, "disk") != 0;
    int bare = strcmp(how, "bare") == 0;
    int past_cache = strcmp(how, "direct") == 0 || bare || !look;
    MUST(!bare || (random_order && !writes));
    MUST((fd = open(file, (writes ? O_RDWR : O_RDONLY) | (past_cache ? O_DIRECT : 0))) >= 0);
    uint64_t bytes = (uint64_t)lseek(fd, 0, SEEK_END);
    pages = bytes / PAGE;
    operations = random_order ? strtoull(argv[6], NULL, 10) : (pages * PAGE + BLOCK - 1) / BLOCK;
    MUST(pages > 1 && (!random_order || operations <= pages));
    MUST(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);

    double began = now();
    fp_memory *memory = NULL;
    if (strcmp(how, "farpage") == 0) {
        memory = open_farpage(file, strtoull(argv[5], NULL, 10));
        mapped = fp_data(memory);
    } else if (bare) {
        map_bare(bytes, threads);
    } else if (!past_cache) {
        mapped = mmap(NULL, bytes, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
        MUST(mapped != MAP_FAILED);
    }
    pthread_t all[THREADS_MAX];
    for (int i = 0; i < threads; i++)
        MUST(pthread_create(&all[i], NULL, thread, NULL) == 0);
    for (int i = 0; i < threads; i++)
        MUST(pthread_join(all[i], NULL) == 0);
    if (writes && memory) {
        fp_error error = {0};
        MUST(fp_flush(memory, &error) == FP_OK);
    } else if (writes) {
        MUST(!mapped || msync(mapped, bytes, MS_SYNC) == 0);
        MUST(fdatasync(fd) == 0);
    }
    double took = now() - began;
    if (memory)
        fp_close(memory);
    printf("%.6f %lu %lu\n", took, (unsigned long)operations, (unsigned long)total);
    return 0;
}
