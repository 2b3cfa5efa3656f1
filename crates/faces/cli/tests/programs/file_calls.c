/* Calls on files of shared memory that say more than where and how much: when a file was written to, flags
 * of transfers and of mappings, copies between files. */
#include "check.h"
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define BYTES (4 << 20)
#define HELLO "hello"
#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif
#ifndef MAP_SHARED_VALIDATE
#define MAP_SHARED_VALIDATE 3
#endif

static char bytes[64];

/* It has been written to since it was asked for last. */
static int is_newer(int fd)
{
    static const struct timespec OLD[2] = {{1000, 0}, {1000, 0}};
    struct stat status;
    CHECK(!fstat(fd, &status));
    CHECK(!futimens(fd, OLD));
    return status.st_mtim.tv_sec != 1000;
}

static void times(int fd)
{
    is_newer(fd);
    CHECK(pread(fd, bytes, 10, 0) == 10);
    CHECK(pwrite(fd, bytes, 0, 0) == 0);
    CHECK(!is_newer(fd));
    CHECK(pwrite(fd, "h", 1, 100) == 1);
    CHECK(is_newer(fd));
    CHECK(lseek(fd, 7, SEEK_SET) == 7 && write(fd, "h", 1) == 1);
    CHECK(is_newer(fd));
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096));
    CHECK(is_newer(fd));
    CHECK(!ftruncate(fd, BYTES));
    CHECK(is_newer(fd));
}

static void flags(int fd)
{
    static const int DONE[] = {0, RWF_HIPRI, RWF_DSYNC, RWF_SYNC};
    struct iovec piece = {HELLO, 5}, back = {bytes, 5};
    for (int i = 0; i < 4; i++) {
        CHECK(pwritev2(fd, &piece, 1, 200 + 10 * i, DONE[i]) == 5);
        memset(bytes, 0, 5);
        CHECK(preadv2(fd, &back, 1, 200 + 10 * i, DONE[i]) == 5 && !memcmp(bytes, HELLO, 5));
    }
    CHECK(lseek(fd, 50, SEEK_SET) == 50);
    CHECK(pwritev2(fd, &piece, 1, 100, RWF_APPEND) == 5);
    CHECK(lseek(fd, 0, SEEK_CUR) == 50 && lseek(fd, 0, SEEK_END) == BYTES + 5);
    CHECK(lseek(fd, 50, SEEK_SET) == 50);
    CHECK(pwritev2(fd, &piece, 1, -1, RWF_APPEND) == 5);
    CHECK(lseek(fd, 0, SEEK_CUR) == BYTES + 10);
    CHECK(pwritev2(fd, &piece, 1, 0, 1 << 20) == -1 && errno == EOPNOTSUPP);
    /* Linux appends wherever was said. */
    CHECK(!fcntl(fd, F_SETFL, O_APPEND));
    CHECK(pwrite(fd, HELLO, 5, 0) == 5 && lseek(fd, 0, SEEK_END) == BYTES + 15);
    CHECK(!fcntl(fd, F_SETFL, 0));
    CHECK(!ftruncate(fd, BYTES));
}

static void copies(int fd, int other)
{
    off64_t from = 100, to = BYTES / 2;
    CHECK(pwrite(fd, HELLO, 5, 100) == 5);
    CHECK(copy_file_range(fd, &from, fd, &to, 5000, 0) == 5000);
    CHECK(from == 5100 && to == BYTES / 2 + 5000);
    CHECK(pread(fd, bytes, 5, BYTES / 2) == 5 && !memcmp(bytes, HELLO, 5));
    to = from + 100;
    CHECK(copy_file_range(fd, &from, fd, &to, 5000, 0) == -1 && errno == EINVAL);
    CHECK(lseek(fd, 100, SEEK_SET) == 100);
    CHECK(copy_file_range(fd, 0, other, 0, BYTES, 0) > 5);
    CHECK(lseek(fd, 0, SEEK_CUR) == 100 + lseek(other, 0, SEEK_CUR));
    CHECK(pread(other, bytes, 5, 0) == 5 && !memcmp(bytes, HELLO, 5));
    CHECK(copy_file_range(fd, 0, other, 0, 5, 1) == -1 && errno == EINVAL);
    CHECK(!fcntl(other, F_SETFL, O_APPEND));
    CHECK(copy_file_range(fd, 0, other, 0, 5, 0) == -1 && errno == EBADF);
    close(other);
}

static int refused(int fd, int flags)
{
    return mmap(0, BYTES, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED ? errno : 0;
}

static void mappings(int fd)
{
    char *low, *other;
    CHECK(refused(fd, MAP_SHARED_VALIDATE | MAP_SYNC) == EOPNOTSUPP);
    CHECK(refused(fd, MAP_SHARED | MAP_GROWSDOWN) == EINVAL);
    CHECK(refused(fd, MAP_SHARED | MAP_HUGETLB) == EINVAL);
    CHECK(refused(fd, 0) == EINVAL);
    low = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_32BIT, fd, 0);
    CHECK(low != MAP_FAILED && (size_t)low + BYTES <= 1UL << 31);
    other = mmap(0, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    strcpy(low + BYTES - 10, HELLO);
    CHECK(!strcmp(other + BYTES - 10, HELLO));
    CHECK(!munmap(other, BYTES));
    CHECK(!munmap(low + 4096, BYTES - 4096));
    CHECK(mmap(low + 4096, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == low + 4096);
    CHECK(low[4096] == 0 && low[7] == 'h');
    CHECK(!munmap(low, 8192));
}

/* A process that may open nothing more reads what is there, or is told that it cannot. */
static void without_descriptors(int fd)
{
    pid_t child = fork();
    if (!child) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0}};
        struct rlimit limit;
        int last = dup(fd);
        /* Nobody may raise the limit again. */
        CHECK(!syscall(SYS_capset, &header, none));
        CHECK(last >= 0);
        limit.rlim_cur = limit.rlim_max = last + 1;
        CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
        while (dup(2) >= 0)
            ;
        CHECK(errno == EMFILE);
        ssize_t got = pread(fd, bytes, 5, 0);
        CHECK(got == 5 ? !memcmp(bytes, HELLO, 5) : got == -1 && errno == EMFILE);
        got = pwrite(fd, HELLO, 5, 0);
        CHECK(got == 5 || (got == -1 && errno == EMFILE));
        _exit(0);
    }
    wait_for(child, 0);
}

static void all(int fd, int other)
{
    void *at, *to;
    CHECK(!ftruncate(fd, BYTES) && !ftruncate(other, BYTES));
    to = mmap(0, BYTES, PROT_READ, MAP_SHARED, other, 0);
    CHECK(to != MAP_FAILED);
    CHECK(write(fd, HELLO, 5) == 5);
    is_newer(fd);
    at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && !is_newer(fd));
    without_descriptors(fd);
    times(fd);
    flags(fd);
    copies(fd, other);
    mappings(fd);
    CHECK(!munmap(at, BYTES) && !munmap(to, BYTES));
    close(fd);
}

/* A child that has its parent's memory empties a file before it executes a program that writes to it. */
static void spawned(const char *name)
{
    char *words[] = {"/bin/echo", HELLO, 0};
    posix_spawn_file_actions_t actions;
    pid_t child = fork();
    if (!child) {
        int fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        CHECK(!ftruncate(fd, BYTES));
        char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        memset(at, 7, BYTES);
        _exit(0);
    }
    wait_for(child, 0);
    CHECK(!posix_spawn_file_actions_init(&actions));
    CHECK(!posix_spawn_file_actions_addopen(&actions, 1, name, O_WRONLY | O_TRUNC, 0));
    CHECK(!posix_spawn(&child, words[0], &actions, 0, words, 0));
    wait_for(child, 0);
    int fd = open(name, O_RDONLY);
    CHECK(read(fd, bytes, sizeof bytes) == 6 && !memcmp(bytes, HELLO "\n", 6));
    CHECK(!close(fd) && !unlink(name));
}

int main(int count, char **words)
{
    const char *name = own_name("/dev/shm/file-calls");
    int fd, other;
    (void)words;
    if (count > 1) {
        spawned(name);
        puts("as it should be");
        return 0;
    }
    all(memfd_create("file calls", 0), memfd_create("other", 0));
    fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(!unlink(name));
    other = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(!unlink(name));
    all(fd, other);
    puts("as it should be");
    return 0;
}
