/* What the programs of this folder have in common: parts that share memory, and the time each takes.
 *
 *     PROGRAM --part I --of N [--name /NAME] [--SIZE NUMBER]...
 *
 * A part is a process with one thread. Part 0 makes the memory, sets the problem, and checks the result;
 * all compute. The parts may be started in any order, and say one line each:
 *
 *     PROGRAM part=0 of=2 result=NUMBER check=right wall_s=1.2 cpu_s=0.9 user_s=0.8 [MORE=NUMBER]...
 *
 * of the time between two barriers: the problem is set before, and checked after. */
#ifndef PARALLEL_H
#define PARALLEL_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PARTS_MAX = 64, WAIT_S = 60 };

/* At the beginning of the memory, on a page of its own. */
struct start {
    pthread_barrier_t barrier;
    uint64_t result;
    int is_right;
    atomic_int is_ready, awake;
};

/* This part. */
struct part {
    const char *program, *name;
    int number, of;
    struct start *start;
    size_t bytes;
    double wall_s, cpu_s, user_s;
};

static _Noreturn void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(2);
}

/* The words that belong to nothing yet. */
static int words_left;

static const char *word(int argc, char **argv, const char *option)
{
    for (int at = 1; at + 1 < argc; at += 2)
        if (!strcmp(argv[at], option)) {
            words_left -= 2;
            return argv[at + 1];
        }
    return NULL;
}

/* The number of an option, between two. */
static long number(int argc, char **argv, const char *option, long usual, long least, long most)
{
    const char *text = word(argc, argv, option);
    if (!text)
        return usual;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        fail("%s: %s is %s: give a number from %ld to %ld", argv[0], option, text, least, most);
    return value;
}

/* This part, by the options that all programs have. */
static struct part part_of(int argc, char **argv, const char *program)
{
    struct part part = {.program = program};
    words_left = argc - 1;
    part.of = (int)number(argc, argv, "--of", 1, 1, PARTS_MAX);
    part.number = (int)number(argc, argv, "--part", 0, 0, part.of - 1);
    part.name = word(argc, argv, "--name");
    if (!part.name)
        part.name = "/parallel";
    return part;
}

/* Nothing is left of the command line. */
static void no_more(const struct part *part)
{
    if (words_left)
        fail("%s: an option is unknown, twice there, or without a number: see the program's first lines",
             part->program);
}

static void wait_a_little(const struct part *part, int *waited_ms)
{
    if (++*waited_ms > WAIT_S * 1000)
        fail("%s: nobody has made %s within %d s: start part 0", part->program, part->name, WAIT_S);
    usleep(1000);
}

static int made(const struct part *part, size_t bytes)
{
    int file = shm_open(part->name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (file < 0)
        fail("%s: cannot make shared memory %s: %s%s", part->program, part->name, strerror(errno),
             errno == EEXIST ? "; an earlier run that was killed left it: remove it from /dev/shm"
                             : "");
    if (ftruncate(file, (off_t)bytes))
        fail("%s: cannot make %s %zu bytes long: %s", part->program, part->name, bytes,
             strerror(errno));
    return file;
}

static int found(const struct part *part, size_t bytes)
{
    int file, waited_ms = 0;
    while ((file = shm_open(part->name, O_RDWR, 0)) < 0) {
        if (errno != ENOENT)
            fail("%s: cannot open shared memory %s: %s", part->program, part->name,
                 strerror(errno));
        wait_a_little(part, &waited_ms);
    }
    struct stat about = {0};
    while (!fstat(file, &about) && about.st_size == 0)
        wait_a_little(part, &waited_ms);
    if ((size_t)about.st_size != bytes)
        fail("%s: %s has %lld bytes, and not %zu: give all parts the same sizes", part->program,
             part->name, (long long)about.st_size, bytes);
    return file;
}

/* So many bytes that all parts share, zeros at first, behind a page for `struct start`. */
static void *share(struct part *part, size_t bytes)
{
    part->bytes = PAGE + bytes;
    int file = part->number ? found(part, part->bytes) : made(part, part->bytes);
    char *memory = mmap(NULL, part->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        fail("%s: cannot map %s: %s", part->program, part->name, strerror(errno));
    close(file);
    part->start = (struct start *)memory;
    if (part->number == 0) {
        pthread_barrierattr_t kind;
        pthread_barrierattr_init(&kind);
        pthread_barrierattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&part->start->barrier, &kind, (unsigned)part->of);
        atomic_store(&part->start->is_ready, 1);
    }
    int waited_ms = 0;
    while (!atomic_load(&part->start->is_ready))
        wait_a_little(part, &waited_ms);
    return memory + PAGE;
}

static void meet(struct part *part)
{
    pthread_barrier_wait(&part->start->barrier);
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double user_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6;
}

/* All begin, once all are awake: who goes on first has no more time than the others. */
static void begin(struct part *part)
{
    meet(part);
    atomic_fetch_add(&part->start->awake, 1);
    while (atomic_load(&part->start->awake) < part->of)
        usleep(100);
    part->wall_s = -seconds(CLOCK_MONOTONIC);
    part->cpu_s = -seconds(CLOCK_PROCESS_CPUTIME_ID);
    part->user_s = -user_seconds();
}

/* All have ended. */
static void end(struct part *part)
{
    meet(part);
    part->wall_s += seconds(CLOCK_MONOTONIC);
    part->cpu_s += seconds(CLOCK_PROCESS_CPUTIME_ID);
    part->user_s += user_seconds();
}

/* Part 0 says what came out. */
static void judge(struct part *part, uint64_t result, int is_right)
{
    part->start->result = result;
    part->start->is_right = is_right;
}

/* Says the line of this part, with ` MORE=NUMBER`s, after part 0 has judged; what `main` returns. */
static int report(struct part *part, const char *more)
{
    meet(part);
    int is_right = part->start->is_right;
    printf("%s part=%d of=%d result=%llu check=%s wall_s=%.4f cpu_s=%.4f user_s=%.4f%s\n",
           part->program, part->number, part->of, (unsigned long long)part->start->result,
           is_right ? "right" : "WRONG", part->wall_s, part->cpu_s, part->user_s, more);
    meet(part);
    if (part->number == 0)
        shm_unlink(part->name);
    return is_right ? 0 : 1;
}

/* A number that looks like chance, and is the same everywhere. */
static inline uint64_t chance(uint64_t of)
{
    of += 0x9e3779b97f4a7c15u;
    of = (of ^ (of >> 30)) * 0xbf58476d1ce4e5b9u;
    of = (of ^ (of >> 27)) * 0x94d049bb133111ebu;
    return of ^ (of >> 31);
}

/* The first of a part's items, of so many; the next part's first ends them. */
static inline long first_of(long items, int part, int of)
{
    return items * part / of;
}

/* Bytes up to the next page: arrays that begin there share none. */
static inline size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

#endif
