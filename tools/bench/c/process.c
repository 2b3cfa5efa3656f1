/* What a process of which most is paged out costs those who fork it, look at it or end it.
 * usage: process fork MIB | core RESERVED_MIB MIB | wait FILE */
#define _GNU_SOURCE
#include "must.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static size_t mib(const char *text)
{
    return strtoul(text, NULL, 10) << 20;
}

/* The first `bytes` of `reserved` are used: random, so that they cannot be compressed. */
static uint64_t *filled(size_t reserved, size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint64_t *at = mmap(NULL, reserved, PROT_READ | PROT_WRITE, flags, -1, 0);
    uint64_t x = 88172645463325252;
    MUST(at != MAP_FAILED);
    for (size_t i = 0; i < bytes / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        at[i] = x;
    }
    return at;
}

static void forks(size_t bytes)
{
    uint64_t *memory = filled(bytes, bytes);
    uint64_t first = memory[0];
    double begun, returned, ran;
    int ends[2], status;
    MUST(!pipe(ends));
    begun = now_ms();
    pid_t child = fork();
    returned = now_ms();
    MUST(child >= 0);
    if (!child) {
        MUST(write(ends[1], &returned, sizeof returned) == sizeof returned);
        _exit(memory[0] != first);
    }
    MUST(read(ends[0], &ran, sizeof ran) == sizeof ran);
    MUST(waitpid(child, &status, 0) == child && status == 0);
    printf("fork %.6f\nchild %.6f\n", returned - begun, ran - begun);
}

static void *touches(void *byte)
{
    return (void *)(uintptr_t)*(volatile unsigned char *)byte;
}

/* From a line of input on a thread wants the last byte of the file. */
static void waits(const char *path)
{
    char line[16];
    struct stat status;
    pthread_t thread;
    int fd = open(path, O_RDONLY);
    MUST(fd >= 0 && !fstat(fd, &status));
    unsigned char *file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    MUST(file != MAP_FAILED);
    printf("%d\n", getpid());
    fflush(stdout);
    MUST(fgets(line, sizeof line, stdin));
    MUST(!pthread_create(&thread, NULL, touches, file + status.st_size - 1));
    usleep(100000);
    puts("waits");
    fflush(stdout);
    pause();
}

int main(int argc, char **argv)
{
    MUST(argc > 2);
    if (!strcmp(argv[1], "fork")) {
        forks(mib(argv[2]));
    } else if (!strcmp(argv[1], "core")) {
        MUST(argc > 3);
        filled(mib(argv[2]), mib(argv[3]));
        puts("ready");
        fflush(stdout);
        abort();
    } else {
        waits(argv[2]);
    }
    return 0;
}
