/* What the programs of tests share. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <poll.h>
#include <setjmp.h>
#include <spawn.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                  \
    do {                                                                             \
        if (!(what)) {                                                               \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            _exit(99);                                                               \
        }                                                                            \
    } while (0)

/* How many elements an array has. */
#define LENGTH(of) (sizeof(of) / sizeof *(of))

/* More than one grant of memory. */
#ifndef BIG
#define BIG (3 << 20)
#endif

/* Only what hangs takes so many seconds, on the busiest machine. */
#define HANGS 120

/* Lets time pass, in which others may do something: a program is right however long it takes. */
static inline void pass_us(long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left))
        CHECK(errno == EINTR);
}

static inline time_t seconds(void)
{
    struct timespec now;
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &now));
    return now.tv_sec;
}

/* Waits until it is so, by looking again and again: for what cannot be waited for otherwise. */
#define wait_until(is_so, what)                                  \
    do {                                                         \
        time_t began_ = seconds();                               \
        while (!(is_so)) {                                       \
            if (seconds() - began_ > HANGS) {                    \
                fprintf(stderr, "waited in vain: %s\n", (what)); \
                _exit(97);                                       \
            }                                                    \
            pass_us(1000);                                       \
        }                                                        \
    } while (0)

/* A name that another run of the program has not, and that children have as well: their parent has to have
 * asked for it before. */
static inline const char *own_name(const char *name)
{
    static char text[64];
    if (!text[0])
        snprintf(text, sizeof text, "%s-%d", name, getpid());
    return text;
}

/* Mappings of the process whose lines have the word in them. Works with no descriptor left. */
static inline int mappings_with(const char *word)
{
    char line[512];
    int found = 0, begins = 1;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        found += begins && strstr(line, word);
        begins = strchr(line, '\n') != 0;
    }
    fclose(maps);
    return found;
}

/* The agent is here: its gate is mapped. */
static inline int agent_active(void)
{
    return mappings_with("550000000000-") > 0;
}

/* Maps, writes, checks and unmaps memory that is large enough to be trapped. */
static inline void use_memory(void)
{
    unsigned char *at = mmap(0, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (size_t i = 0; i < BIG; i += 4096)
    {
        CHECK(at[i] == 0);
        at[i] = i >> 12;
    }
    for (size_t i = 0; i < BIG; i += 4096)
        CHECK(at[i] == (unsigned char)(i >> 12));
    CHECK(!munmap(at, BIG));
}

static inline void wait_for(pid_t child, int code)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code) {
        fprintf(stderr, "child %d ended with %#x\n", child, status);
        _exit(98);
    }
}
