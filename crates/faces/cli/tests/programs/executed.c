/* Programs and scripts that lie in /dev/shm are executed, however large. */
#include "check.h"
#include <sys/stat.h>

#define LARGE (3 << 20)

/* It does not fit into what Linux keeps of a file there. */
static volatile char large[LARGE] = {1, 2, 3, [LARGE - 1] = 4};
static char copy[64], script[64];

static void copy_to(const char *to, const char *before)
{
    static char bytes[65536];
    int from = open(before, O_RDONLY), fd = open(to, O_CREAT | O_TRUNC | O_WRONLY, 0700);
    ssize_t got;
    CHECK(from >= 0 && fd >= 0);
    while ((got = read(from, bytes, sizeof bytes)) > 0)
        CHECK(write(fd, bytes, got) == got);
    CHECK(got == 0);
    close(from);
    close(fd);
}

static void write_script(const char *text)
{
    int fd = open(script, O_CREAT | O_TRUNC | O_WRONLY, 0700);
    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* By fork, and by a child that shares its parent's memory. */
static void executes(const char *path, int code)
{
    char *words[] = {(char *)path, "code", 0};
    pid_t child = fork();
    if (!child) {
        execv(path, words);
        _exit(96);
    }
    wait_for(child, code);
    CHECK(!posix_spawn(&child, path, 0, 0, words, 0));
    wait_for(child, code);
}

/* While it is executed nobody writes to it, and who reads or maps it sees it. */
static void while_executed(int code)
{
    int go[2], ready[2], fd;
    char bytes[4], *at;
    pid_t child;
    CHECK(!pipe(go) && !pipe(ready));
    child = fork();
    if (!child) {
        char *words[] = {copy, code ? "waits" : 0, 0};
        CHECK(dup2(go[0], 0) == 0 && dup2(ready[1], 1) == 1);
        close(go[1]);
        execv(copy, words);
        _exit(96);
    }
    close(go[0]);
    close(ready[1]);
    CHECK(write(go[1], "r", 1) == 1);
    CHECK(read(ready[0], bytes, 1) == 1);
    CHECK(open(copy, O_WRONLY) == -1 && errno == ETXTBSY);
    fd = open(copy, O_RDONLY);
    at = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED && !memcmp(at, "\177ELF", 4));
    CHECK(pread(fd, bytes, 4, 0) == 4 && !memcmp(bytes, "\177ELF", 4));
    CHECK(!munmap(at, 4096));
    close(fd);
    CHECK(write(go[1], "r", 1) == 1);
    CHECK(read(ready[0], bytes, 1) == 1);
    close(go[1]);
    close(ready[0]);
    wait_for(child, code);
}

/* The mode of the copy is `mode` before it is executed and after that. */
static void executes_with(mode_t mode, int code)
{
    struct stat status;
    CHECK(!chmod(copy, mode));
    executes(copy, code);
    CHECK(!stat(copy, &status) && (status.st_mode & 07777) == mode);
    CHECK(!chmod(copy, 0700));
}

int main(int count, char **words)
{
    char line[80];
    CHECK(large[0] == 1 && large[2] == 3 && large[LARGE - 1] == 4);
    if (count > 1 && !strcmp(words[1], "waits")) {
        while (read(0, line, 1) == 1)
            CHECK(write(1, line, 1) == 1);
        return large[LARGE - 1];
    }
    if (count > 1)
        return 7;
    snprintf(copy, sizeof copy, "/dev/shm/executed-%d", getpid());
    snprintf(script, sizeof script, "/dev/shm/script-%d", getpid());
    copy_to(copy, "/proc/self/exe");
    executes(copy, 7);
    copy_to(copy, "/proc/self/exe");
    executes_with(0555, 7);
    write_script("#!/bin/sh\nexit 5\n");
    executes(script, 5);
    snprintf(line, sizeof line, "#!%s\n", copy);
    write_script(line);
    executes(script, 7);

    while_executed(4);
    /* It is written anew, and that is what is executed. */
    copy_to(copy, "/bin/false");
    executes(copy, 1);
    copy_to(copy, "/bin/cat");
    while_executed(0);
    CHECK(!unlink(copy) && !unlink(script));
    puts("as it should be");
    return 0;
}
