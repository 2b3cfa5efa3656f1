/* /proc/PID/mem of memory that is paged out. */
#define MUCH (24 << 20)
#include "away.h"
#include <sys/uio.h>

#define PAGE 4096
#define BYTES (8 << 20)
/* Pages that may still be in memory when memory counts as away. */
#define LEFT 64

static unsigned char *memory, expected[BYTES], got[BYTES];

static void away(void)
{
    send_away(memory, BYTES, LEFT);
}

static off_t at(size_t offset)
{
    return (off_t)(memory + offset);
}

static void reads(int file)
{
    away();
    CHECK(pread(file, got, BYTES, at(0)) == BYTES && !memcmp(got, expected, BYTES));
    away();
    memset(got, 0, BYTES);
    struct iovec parts[] = {{got + 100, 3 * PAGE}, {got + BYTES / 2, 5}};
    CHECK(preadv(file, parts, 2, at(777)) == 3 * PAGE + 5);
    CHECK(!memcmp(got + 100, expected + 777, 3 * PAGE));
    CHECK(!memcmp(got + BYTES / 2, expected + 777 + 3 * PAGE, 5));
    away();
    CHECK(preadv2(file, parts, 1, at(PAGE - 2), 0) == 3 * PAGE);
    CHECK(!memcmp(got + 100, expected + PAGE - 2, 3 * PAGE));
    /* By where the descriptor stands. */
    away();
    CHECK(lseek(file, at(BYTES / 4), SEEK_SET) == at(BYTES / 4));
    CHECK(read(file, got, 2 * PAGE) == 2 * PAGE && !memcmp(got, expected + BYTES / 4, 2 * PAGE));
    CHECK(lseek(file, 0, SEEK_CUR) == at(BYTES / 4 + 2 * PAGE));
    CHECK(readv(file, parts, 1) == 3 * PAGE);
    CHECK(!memcmp(got + 100, expected + BYTES / 4 + 2 * PAGE, 3 * PAGE));
}

static void writes(int file)
{
    away();
    CHECK(pwrite(file, "written", 7, at(5 * PAGE - 3)) == 7);
    memcpy(expected + 5 * PAGE - 3, "written", 7);
    struct iovec parts[] = {{"one", 3}, {"another", 7}};
    CHECK(pwritev(file, parts, 2, at(7 * PAGE - 5)) == 10);
    memcpy(expected + 7 * PAGE - 5, "oneanother", 10);
    away();
    CHECK(lseek(file, at(BYTES / 2), SEEK_SET) == at(BYTES / 2));
    CHECK(write(file, "here", 4) == 4 && writev(file, parts, 1) == 3);
    memcpy(expected + BYTES / 2, "hereone", 7);
    CHECK(!memcmp(memory, expected, BYTES));
}

/* What is not there, and what may only be read. */
static void edges(int file)
{
    away();
    CHECK(!munmap(memory + BYTES - PAGE, PAGE));
    CHECK(pread(file, got, 3 * PAGE, at(BYTES - 3 * PAGE)) == 2 * PAGE);
    CHECK(pread(file, got, 1, at(BYTES - PAGE)) == -1 && errno == EIO);
    CHECK(pwrite(file, got, 1, at(BYTES - PAGE)) == -1 && errno == EIO);
    CHECK(lseek(file, at(BYTES - PAGE), SEEK_SET) == at(BYTES - PAGE));
    CHECK(read(file, got, 1) == -1 && errno == EIO);
    void *volatile nowhere = (void *)8;
    CHECK(pread(file, nowhere, 1, at(0)) == -1 && errno == EFAULT);
    CHECK(mmap(memory + BYTES - PAGE, PAGE, PROT_READ | PROT_WRITE,
               MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    memcpy(memory + BYTES - PAGE, expected + BYTES - PAGE, PAGE);
    CHECK(!mprotect(memory + PAGE, PAGE, PROT_READ));
    away();
    CHECK(pread(file, got, 2 * PAGE, at(0)) == 2 * PAGE && !memcmp(got, expected, 2 * PAGE));
    CHECK(!mprotect(memory + PAGE, PAGE, PROT_READ | PROT_WRITE));
    CHECK(!memcmp(memory, expected, BYTES));
}

/* A child reads and changes what its parent has. As an ordinary user that is left to Linux. */
static void another(void)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", getpid());
    away();
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        int file = open(name, O_RDWR);
        CHECK(file >= 0);
        CHECK(pread(file, got, BYTES, at(0)) == BYTES && !memcmp(got, expected, BYTES));
        CHECK(pwrite(file, "by a child", 10, at(9 * PAGE)) == 10);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    memcpy(expected + 9 * PAGE, "by a child", 10);
    CHECK(!memcmp(memory, expected, BYTES));
}

int main(void)
{
    memory = map(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        memory[i] = expected[i] = i * 7 + (i >> 12) * 13;
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", getpid());
    const char *names[] = {"/proc/self/mem", "/proc/thread-self/mem", name};
    for (int i = 0; i < 3; i++) {
        int file = open(names[i], O_RDWR);
        CHECK(file >= 0);
        away();
        CHECK(pread(file, got, BYTES, at(0)) == BYTES && !memcmp(got, expected, BYTES));
        CHECK(!close(file));
    }
    int file = open("/proc/self/mem", O_RDWR);
    CHECK(file >= 0);
    reads(file);
    writes(file);
    edges(file);
    /* Also by a number that another file has had. */
    CHECK(dup2(file, 0) == 0 && !close(file));
    reads(0);
    /* Programs that are started open their libraries by numbers that have been such a file's. */
    for (int number = 3; number < 8; number++)
        CHECK(dup2(0, number) == number && lseek(number, at(0), SEEK_SET) == at(0));
    for (int number = 3; number < 8; number++)
        CHECK(!close(number));
    CHECK(system("cat /dev/null | cat") == 0);
    /* A file that is none: nothing of it changes. */
    int null = open("/dev/null", O_RDWR);
    CHECK(dup2(null, 0) == 0 && read(0, got, 1) == 0 && write(0, "x", 1) == 1);
    CHECK(pread(null, got, 1, at(0)) == 0);
    if (geteuid() == 0)
        another();
    return 0;
}
