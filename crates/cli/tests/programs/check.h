/* What the programs of tests/programs.rs share. */
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
#include <unistd.h>

#define CHECK(what)                                                                  \
    do {                                                                             \
        if (!(what)) {                                                               \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            _exit(99);                                                               \
        }                                                                            \
    } while (0)

#define BIG (8 << 20)

/* The agent is here: its gate is mapped. Works with no descriptor left. */
static inline int agent_active(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        found |= !strncmp(line, "6ffff0000000-", 13);
    fclose(maps);
    return found;
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
