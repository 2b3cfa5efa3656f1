/* Memory files, whose meaning is the same with and without farpage run --shm. */
#include "fds.h"
#include <sys/random.h>
#include <sys/stat.h>

#define PAGE 4096
#define MIB (1 << 20)
#define RW (PROT_READ | PROT_WRITE)

static int make(size_t bytes, unsigned flags)
{
    int fd = memfd_create("farpage-test", flags);
    CHECK(fd >= 0 && !ftruncate(fd, bytes));
    return fd;
}

static char *map(int fd, size_t bytes, int flags)
{
    char *at = mmap(0, bytes, RW, flags, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void children(void)
{
    int fd = make(4 * MIB, MFD_CLOEXEC);
    char *at = map(fd, 4 * MIB, MAP_SHARED), *own = map(fd, 4 * MIB, MAP_PRIVATE);
    at[0] = 1, own[PAGE] = 2;
    pid_t child = fork();
    if (!child) {
        CHECK(at[0] == 1 && own[0] == 1 && own[PAGE] == 2 && at[PAGE] == 0);
        at[2 * MIB] = 3, own[PAGE] = 4;
        CHECK(pwrite(fd, "by the child", 12, 3 * MIB) == 12);
        _exit(0);
    }
    wait_for(child, 0);
    CHECK(at[2 * MIB] == 3 && own[PAGE] == 2 && !memcmp(at + 3 * MIB, "by the child", 12));
    CHECK(!munmap(at, 4 * MIB) && !munmap(own, 4 * MIB));
    char bytes[12];
    CHECK(pread(fd, bytes, 12, 3 * MIB) == 12 && !memcmp(bytes, "by the child", 12));
    char *again = map(fd, 4 * MIB, MAP_SHARED);
    CHECK(again[0] == 1 && again[2 * MIB] == 3);
    CHECK(!munmap(again, 4 * MIB) && !close(fd));
}

/* What was written before it is mapped, and is read after. */
static void written(void)
{
    static char bytes[3 * MIB], seen[3 * MIB];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = i * 7 + (i >> 12);
    int fd = make(0, 0);
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
    CHECK(pread(fd, seen, sizeof seen, 0) == sizeof seen && !memcmp(bytes, seen, sizeof bytes));
    char *at = map(fd, sizeof bytes, MAP_SHARED);
    CHECK(!memcmp(at, bytes, sizeof bytes));
    at[MIB] = 99;
    CHECK(pread(fd, seen, sizeof seen, 0) == sizeof seen && seen[MIB] == 99);
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again = open(name, O_RDWR);
    CHECK(again >= 0 && pread(again, seen, 1, MIB) == 1 && seen[0] == 99);
    CHECK(!ftruncate(again, 5 * MIB) && pwrite(again, "end", 3, 5 * MIB - 3) == 3);
    char *more = map(again, 5 * MIB, MAP_SHARED);
    CHECK(!memcmp(more + 5 * MIB - 3, "end", 3) && more[4 * MIB] == 0 && more[MIB] == 99);
    CHECK(!munmap(at, sizeof bytes) && !munmap(more, 5 * MIB) && !close(fd) && !close(again));
}

/* Mapped in another way first: all mappings show the same all the same. */
static void otherwise(void)
{
    int fd = make(4 * MIB, 0);
    char *little = map(fd, PAGE, MAP_SHARED), *all = map(fd, 4 * MIB, MAP_SHARED);
    little[5] = 5;
    CHECK(all[5] == 5 && (all[PAGE] = 6));
    CHECK(!munmap(little, PAGE) && !munmap(all, 4 * MIB));
    char *again = map(fd, 4 * MIB, MAP_SHARED);
    CHECK(again[5] == 5 && again[PAGE] == 6);
    CHECK(!munmap(again, 4 * MIB) && !close(fd));
    fd = make(4 * MIB, 0);
    char *own = map(fd, 4 * MIB, MAP_PRIVATE);
    own[0] = 1;
    all = map(fd, 4 * MIB, MAP_SHARED);
    all[PAGE] = 2;
    CHECK(own[0] == 1 && own[PAGE] == 2 && all[0] == 0);
    CHECK(!munmap(own, 4 * MIB) && !munmap(all, 4 * MIB) && !close(fd));
}

static void seals(void)
{
    int fd = make(4 * MIB, MFD_ALLOW_SEALING);
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    char *at = map(fd, 4 * MIB, MAP_SHARED), byte = 0;
    at[MIB] = 7;
    CHECK(ftruncate(fd, MIB) < 0 && errno == EPERM);
    CHECK(pwrite(fd, "x", 1, 4 * MIB) < 0 && errno == EPERM);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EBUSY);
    CHECK(!munmap(at, 4 * MIB));
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
    CHECK(pwrite(fd, "x", 1, 0) < 0 && errno == EPERM);
    CHECK(mmap(0, 4 * MIB, RW, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EPERM);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) < 0 && errno == EPERM);
    CHECK(pread(fd, &byte, 1, MIB) == 1 && byte == 7);
    char *own = map(fd, 4 * MIB, MAP_PRIVATE);
    CHECK(own[MIB] == 7 && (own[MIB] = 8) && pread(fd, &byte, 1, MIB) == 1 && byte == 7);
    CHECK(!munmap(own, 4 * MIB) && !close(fd));
    /* Who has it mapped may go on to write; nobody else begins to. */
    fd = make(2 * MIB, MFD_ALLOW_SEALING);
    at = map(fd, 2 * MIB, MAP_SHARED);
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
    at[9] = 9;
    CHECK(mmap(0, 2 * MIB, RW, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EPERM);
    char *seen = mmap(0, 2 * MIB, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(seen != MAP_FAILED && seen[9] == 9 && mprotect(seen, PAGE, RW) && errno == EACCES);
    CHECK(pwrite(fd, "x", 1, 0) < 0 && errno == EPERM);
    CHECK(!munmap(seen, 2 * MIB) && !munmap(at, 2 * MIB) && !close(fd));
    /* Sealed before it is mapped, and without the right to be. */
    fd = make(2 * MIB, MFD_ALLOW_SEALING);
    CHECK(pwrite(fd, "sealed", 6, 0) == 6 && !fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL));
    own = map(fd, 2 * MIB, MAP_PRIVATE);
    CHECK(!memcmp(own, "sealed", 6) && !munmap(own, 2 * MIB) && !close(fd));
    fd = make(2 * MIB, 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM && !close(fd));
}

/* Executes a file by its descriptor; it must say so. */
static void executes(int fd)
{
    int ends[2];
    CHECK(!pipe(ends));
    pid_t child = fork();
    if (!child) {
        char *words[] = {"memfd", "executed", 0}, *no[] = {0};
        CHECK(dup2(ends[1], 1) == 1);
        fexecve(fd, words, no);
        CHECK(!"executed");
    }
    char said[16] = {0};
    CHECK(!close(ends[1]) && read(ends[0], said, sizeof said) == 9 && !strcmp(said, "executed\n"));
    wait_for(child, 0);
    CHECK(!close(ends[0]));
}

static void execution(void)
{
    int self = open("/proc/self/exe", O_RDONLY);
    struct stat about;
    CHECK(self >= 0 && !fstat(self, &about));
    char *program = malloc(about.st_size);
    CHECK(program && read(self, program, about.st_size) == about.st_size && !close(self));
    /* Written, in whatever way. */
    int fd = make(0, MFD_CLOEXEC);
    CHECK(write(fd, program, about.st_size) == about.st_size);
    executes(fd);
    CHECK(!close(fd));
    /* Written in memory, in a file that is large. */
    size_t bytes = about.st_size + 2 * MIB;
    fd = make(bytes, MFD_CLOEXEC);
    char *at = map(fd, bytes, MAP_SHARED);
    memcpy(at, program, about.st_size);
    CHECK(!munmap(at, bytes));
    executes(fd);
    at = map(fd, bytes, MAP_SHARED);
    CHECK(!memcmp(at, program, about.st_size) && !munmap(at, bytes) && !close(fd));
    free(program);
}

/* More than fits into memory, written by two and read by two. */
static void large(size_t megabytes)
{
    size_t words = (megabytes << 20) / 8, half = words / 2;
    int fd = make(words * 8, MFD_CLOEXEC);
    unsigned long *at = (unsigned long *)map(fd, words * 8, MAP_SHARED);
    for (unsigned long round = 1; round <= 2; round++) {
        pid_t child = fork();
        size_t from = child ? 0 : half, to = child ? half : words;
        for (size_t i = from; i < to; i += 64)
            at[i] = i * 0x9E3779B97F4A7C15ul * round;
        if (!child)
            _exit(0);
        wait_for(child, 0);
        for (size_t i = 0; i < words; i += 64)
            CHECK(at[i] == i * 0x9E3779B97F4A7C15ul * round);
    }
    CHECK(!munmap(at, words * 8) && !close(fd));
}

/* Memory files that nobody has any more: let go of, in whatever order, or by a process that is killed. */
static void often(int times)
{
    size_t bytes = 8 * MIB;
    for (int i = 0; i < times; i++) {
        pid_t child = i % 3 == 0 ? fork() : 0;
        if (!child) {
            int fd = make(bytes, 0), copy = dup(fd);
            char *at = map(fd, bytes, MAP_SHARED);
            for (size_t done = 0; done < bytes; done += PAGE)
                CHECK(getrandom(at + done, PAGE, 0) == PAGE);
            if (i % 3 == 0)
                raise(SIGKILL);
            if (i % 3 == 1)
                CHECK(!close(fd) && !close(copy) && !munmap(at, bytes));
            else
                CHECK(!munmap(at, bytes) && !close(copy) && !close(fd));
        } else {
            int status;
            CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        }
    }
}

/* All of it in another namespace of processes. */
static void apart(void)
{
    CHECK(!unshare(CLONE_NEWPID));
    pid_t child = fork();
    if (!child) {
        CHECK(getpid() == 1);
        children();
        written();
        otherwise();
        seals();
        _exit(0);
    }
    wait_for(child, 0);
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "executed")) {
        puts("executed");
        return 0;
    }
    if (!strcmp(what, "large")) {
        large(strtoul(words[2], 0, 10));
    } else if (!strcmp(what, "apart")) {
        apart();
    } else if (!strcmp(what, "often")) {
        often(atoi(words[2]));
    } else {
        children();
        written();
        otherwise();
        seals();
        execution();
    }
    puts("as it should be");
    return 0;
}
