/* Page faults, as fast as a minimal user-space handler answers them, and the bare kernel primitive.
 *
 * usage: fault MODE THREADS PIN PAGES RUNS
 *   copy      UFFDIO_COPY of one page at a time, nobody faults
 *   copy-file UFFDIO_COPY of a page that pread(2) brings from a file in the page cache
 *   follow    one handler thread; after each fault it moves to the CPU of the thread that faulted,
 *             which it reads from that thread's rseq area, and sleeps there
 *   follow-file  as follow, with such a pread(2) before each copy
 *   percpu    one handler thread pinned to each CPU
 *   read      no handler of its own: fills PAGES, then reads RUNS of them at random and times each
 * THREADS threads fault on PAGES pages in random order; PIN 1 pins thread t to CPU t modulo CPUs.
 *
 * Prints: mode threads pin faults p50_ns p99_ns thousand_faults_per_s */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

enum { PAGE = 4096, THREADS_MAX = 64, CPUS_MAX = 256 };

static int uffd, pin, threads, cpus, follow, file = -1;
static size_t pages;
static char *mem, source[PAGE] __attribute__((aligned(PAGE)));
static uint64_t *latency_ns;
static uint32_t *order;
static pthread_barrier_t begin;
/* The handler may look at a thread's rseq area, which lies on its stack, after the thread ended. */
static char stacks[THREADS_MAX][1 << 18] __attribute__((aligned(PAGE)));
static struct {
    _Atomic pid_t tid;
    const volatile uint32_t *cpu;
} faulters[THREADS_MAX];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void pin_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    MUST(sched_setaffinity(0, sizeof set, &set) == 0);
}

/* The CPU number that the kernel keeps up to date for this thread. */
static const volatile uint32_t *own_cpu(void)
{
    struct rseq *r = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    return &r->cpu_id;
}

static int open_uffd(void)
{
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    int fd = device >= 0 ? ioctl(device, _IO(0xAA, 0), O_CLOEXEC) : -1;
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    MUST(fd >= 0);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_THREAD_ID};
    MUST(ioctl(fd, UFFDIO_API, &api) == 0);
    return fd;
}

static void map_and_register(void)
{
    mem = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mem != MAP_FAILED && madvise(mem, pages * PAGE, MADV_NOHUGEPAGE) == 0);
    struct uffdio_register r = {.range = {(uintptr_t)mem, pages * PAGE},
                                .mode = UFFDIO_REGISTER_MODE_MISSING};
    MUST(ioctl(uffd, UFFDIO_REGISTER, &r) == 0);
}

/* A file that has as many pages as the memory. */
static void make_file(void)
{
    FILE *made = tmpfile();
    MUST(made != NULL);
    for (size_t i = 0; i < pages; i++)
        MUST(fwrite(source, PAGE, 1, made) == 1);
    MUST(fflush(made) == 0);
    file = fileno(made);
}

static void copy_page(uint64_t at)
{
    if (file >= 0) {
        off_t from = (off_t)((at & ~(uint64_t)(PAGE - 1)) - (uintptr_t)mem);
        MUST(pread(file, source, PAGE, from) == PAGE);
    }
    struct uffdio_copy c = {.dst = at & ~(uint64_t)(PAGE - 1), .src = (uintptr_t)source,
                            .len = PAGE};
    if (ioctl(uffd, UFFDIO_COPY, &c) != 0) {
        MUST(errno == EEXIST); /* another handler was first; the fault still waits for a wake */
        struct uffdio_range w = {.start = c.dst, .len = PAGE};
        MUST(ioctl(uffd, UFFDIO_WAKE, &w) == 0);
    }
}

static void *handler(void *arg)
{
    int at = (int)(intptr_t)arg;
    if (at >= 0)
        pin_to(at);
    struct uffd_msg msg;
    while (read(uffd, &msg, sizeof msg) == sizeof msg) {
        copy_page(msg.arg.pagefault.address);
        if (!follow)
            continue;
        for (int t = 0; t < threads; t++) {
            if (faulters[t].tid != (pid_t)msg.arg.pagefault.feat.ptid)
                continue;
            int cpu = (int)*faulters[t].cpu;
            if (cpu != at && cpu >= 0 && cpu < cpus)
                pin_to(at = cpu);
        }
    }
    return NULL;
}

static void *faulter(void *arg)
{
    int me = (int)(intptr_t)arg;
    if (pin)
        pin_to(me % cpus);
    faulters[me].cpu = own_cpu();
    faulters[me].tid = (pid_t)syscall(SYS_gettid);
    pthread_barrier_wait(&begin);
    for (size_t i = (size_t)me; i < pages; i += (size_t)threads) {
        volatile char *p = mem + (size_t)order[i] * PAGE;
        uint64_t t0 = now_ns();
        (void)*p;
        latency_ns[i] = now_ns() - t0;
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *mode, uint64_t *ns, size_t n, uint64_t wall_ns)
{
    qsort(ns, n, sizeof *ns, by_value);
    printf("%s %d %d %zu %llu %llu %.1f\n", mode, threads, pin, n, (unsigned long long)ns[n / 2],
           (unsigned long long)ns[n * 99 / 100], (double)n * 1e6 / (double)wall_ns);
}

static uint64_t copies(void)
{
    map_and_register();
    uint64_t began = now_ns();
    for (size_t i = 0; i < pages; i++) {
        uint64_t t0 = now_ns();
        copy_page((uintptr_t)mem + (size_t)order[i] * PAGE);
        latency_ns[i] = now_ns() - t0;
    }
    uint64_t wall = now_ns() - began;
    munmap(mem, pages * PAGE);
    return wall;
}

static uint64_t faults(void)
{
    pthread_t ids[THREADS_MAX];
    map_and_register();
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    for (intptr_t t = 0; t < threads; t++) {
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        MUST(pthread_attr_setstack(&attr, stacks[t], sizeof stacks[t]) == 0);
        MUST(pthread_create(&ids[t], &attr, faulter, (void *)t) == 0);
    }
    pthread_barrier_wait(&begin);
    uint64_t began = now_ns();
    for (int t = 0; t < threads; t++)
        pthread_join(ids[t], NULL);
    uint64_t wall = now_ns() - began;
    munmap(mem, pages * PAGE);
    return wall;
}

/* What a program under `farpage run` feels: random reads of memory that is mostly out. */
static void reads(size_t count)
{
    uint64_t *ns = calloc(count, sizeof *ns), state = 1, sum = 0;
    mem = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(ns != NULL && mem != MAP_FAILED);
    for (size_t i = 0; i < pages; i++)
        for (size_t w = 0; w < PAGE / 8; w++)
            ((uint64_t *)mem)[i * PAGE / 8 + w] = i * 31 + (w & 7);
    uint64_t began = now_ns();
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        uint64_t t0 = now_ns();
        sum += *(volatile uint64_t *)(mem + (state >> 20) % pages * PAGE);
        ns[i] = now_ns() - t0;
    }
    uint64_t wall = now_ns() - began;
    fprintf(stderr, "%llu\n", (unsigned long long)sum);
    report("read", ns, count, wall);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: fault copy[-file]|follow[-file]|percpu|read THREADS PIN PAGES RUNS\n");
        return 2;
    }
    const char *mode = argv[1];
    threads = atoi(argv[2]), pin = atoi(argv[3]), pages = strtoul(argv[4], NULL, 10);
    size_t runs = strtoul(argv[5], NULL, 10);
    cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    MUST(threads > 0 && threads <= THREADS_MAX && pages > 0 && runs > 0 && cpus <= CPUS_MAX);
    if (strcmp(mode, "read") == 0) {
        reads(runs);
        return 0;
    }
    MUST(__rseq_size > 0);
    latency_ns = calloc(pages, sizeof *latency_ns);
    uint64_t *all = calloc(pages * runs, sizeof *all), wall = 0;
    order = calloc(pages, sizeof *order);
    MUST(latency_ns && all && order);
    for (size_t i = 0; i < pages; i++)
        order[i] = (uint32_t)i;
    srandom(1);
    for (size_t i = pages - 1; i > 0; i--) {
        size_t j = (size_t)random() % (i + 1);
        uint32_t swap = order[i];
        order[i] = order[j], order[j] = swap;
    }
    memset(source, 0x5a, PAGE);
    uffd = open_uffd();
    follow = strncmp(mode, "follow", 6) == 0;
    if (strstr(mode, "-file"))
        make_file();
    pthread_t id;
    if (follow)
        MUST(pthread_create(&id, NULL, handler, (void *)(intptr_t)-1) == 0);
    for (intptr_t c = 0; strcmp(mode, "percpu") == 0 && c < cpus; c++)
        MUST(pthread_create(&id, NULL, handler, (void *)c) == 0);
    if (pin)
        pin_to(0);
    for (size_t r = 0; r <= runs; r++) {
        uint64_t took = strncmp(mode, "copy", 4) == 0 ? copies() : faults();
        if (r == 0)
            continue; /* the first warms up */
        memcpy(all + (r - 1) * pages, latency_ns, pages * sizeof *all);
        wall += took;
    }
    report(mode, all, pages * runs, wall);
    return 0;
}
