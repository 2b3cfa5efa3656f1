/* Shared memory of POSIX, whose meaning is the same with and without farpage run --shm. */
#include "fds.h"
#include <sys/stat.h>
#include <sys/uio.h>

#define PAGE 4096
#define NAME own_name("/farpage-shm-test")
#define RW (PROT_READ | PROT_WRITE)

static char *path(void)
{
    static char text[64];
    snprintf(text, sizeof text, "/dev/shm%s", NAME);
    return text;
}

static int make(size_t bytes)
{
    int fd = shm_open(NAME, O_CREAT | O_EXCL | O_RDWR, 0640);
    CHECK(fd >= 0);
    CHECK(!ftruncate(fd, bytes));
    return fd;
}

static void *map(int fd, size_t bytes, int prot, int flags, off_t offset)
{
    void *at = mmap(0, bytes, prot, flags, fd, offset);
    CHECK(at != MAP_FAILED);
    return at;
}

static sigjmp_buf *escape;

static void on_bus(int signal)
{
    (void)signal;
    siglongjmp(*escape, 1);
}

/* An access to `at` raises SIGBUS. */
static int raises_bus(volatile char *at)
{
    sigjmp_buf here;
    struct sigaction action = {.sa_handler = on_bus}, before;
    escape = &here;
    CHECK(!sigaction(SIGBUS, &action, &before));
    int raised = sigsetjmp(here, 1);
    if (!raised)
        (void)*at;
    CHECK(!sigaction(SIGBUS, &before, 0));
    return raised;
}

static void names(void)
{
    int fd = make(5 * PAGE + 10);
    struct stat about;
    CHECK(!stat(path(), &about));
    CHECK(about.st_size == 5 * PAGE + 10 && (about.st_mode & 0777) == 0640);
    char *at = map(fd, 5 * PAGE + 10, RW, MAP_SHARED, 0);
    memset(at, 7, 5 * PAGE + 10);
    CHECK(shm_open(NAME, O_CREAT | O_EXCL | O_RDWR, 0600) < 0 && errno == EEXIST);
    int other = shm_open(NAME, O_RDONLY, 0);
    CHECK(other >= 0);
    CHECK(mmap(0, PAGE, RW, MAP_SHARED, other, 0) == MAP_FAILED && errno == EACCES);
    char *seen = map(other, PAGE, PROT_READ, MAP_SHARED, 5 * PAGE);
    CHECK(seen[9] == 7 && seen[10] == 0);
    CHECK(mprotect(seen, PAGE, RW) && errno == EACCES);
    char *own = map(other, PAGE, RW, MAP_PRIVATE, PAGE);
    own[1] = 9;
    CHECK(own[0] == 7 && at[PAGE + 1] == 7);
    at[PAGE] = 8;
    CHECK(!shm_unlink(NAME));
    CHECK(shm_open(NAME, O_RDWR, 0) < 0 && errno == ENOENT);
    CHECK(!close(fd) && !close(other));
    CHECK(at[5 * PAGE] == 7);
    CHECK(!munmap(at, 6 * PAGE) && !munmap(seen, PAGE) && !munmap(own, PAGE));
    fd = make(PAGE);
    at = map(fd, PAGE, RW, MAP_SHARED, 0);
    CHECK(at[0] == 0);
    CHECK(!munmap(at, PAGE) && !close(fd) && !shm_unlink(NAME));
}

static void parts(void)
{
    int fd = make(64 * PAGE);
    char *at = map(fd, 64 * PAGE, RW, MAP_SHARED, 0);
    for (int i = 0; i < 64; i++)
        at[i * PAGE] = i;
    CHECK(!munmap(at + 10 * PAGE, 5 * PAGE));
    CHECK(!mprotect(at + 20 * PAGE, PAGE, PROT_READ));
    CHECK(!mprotect(at + 20 * PAGE, PAGE, RW));
    at[20 * PAGE] = 20;
    char *again = mmap(at + 10 * PAGE, 5 * PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 30 * PAGE);
    CHECK(again == at + 10 * PAGE && again[0] == 30);
    again[PAGE] = 99;
    CHECK(at[31 * PAGE] == 99);
    void *over = mmap(again, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == again && again[0] == 0 && again[PAGE] == 99);
    CHECK(!madvise(at, 10 * PAGE, MADV_DONTNEED));
    for (int i = 0; i < 10; i++)
        CHECK(at[i * PAGE] == i);
    CHECK(!madvise(at + PAGE, 2 * PAGE, MADV_REMOVE));
    CHECK(at[0] == 0 && at[PAGE] == 0 && at[2 * PAGE] == 0 && at[3 * PAGE] == 3);
    /* In pieces that are protected and locked apart, all of which are touched anew. */
    CHECK(!madvise(at + 32 * PAGE, 32 * PAGE, MADV_DONTNEED));
    CHECK(!mprotect(at + 41 * PAGE, PAGE, PROT_READ) && !mlock(at + 45 * PAGE, PAGE));
    for (int i = 32; i < 64; i++)
        CHECK(at[i * PAGE] == i);
    for (int i = 42; i < 64; i++)
        at[i * PAGE] = i;
    CHECK(!mprotect(at + 41 * PAGE, PAGE, RW) && !munlock(at + 45 * PAGE, PAGE));
    at[41 * PAGE] = 41;
    /* Moved, grown and shrunk. */
    char *moved = mremap(at + 32 * PAGE, 32 * PAGE, 8 * PAGE, 0);
    CHECK(moved == at + 32 * PAGE && moved[7 * PAGE] == 39);
    CHECK(!ftruncate(fd, 128 * PAGE));
    moved = mremap(moved, 8 * PAGE, 96 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved[7 * PAGE] == 39 && moved[31 * PAGE] == 63);
    moved[95 * PAGE] = 5;
    char *end = map(fd, PAGE, RW, MAP_SHARED, 127 * PAGE);
    CHECK(end[0] == 5);
    CHECK(!munmap(moved, 96 * PAGE) && !munmap(end, PAGE) && !munmap(at, 32 * PAGE));
    CHECK(!close(fd) && !shm_unlink(NAME));
}

static void sizes(void)
{
    int fd = make(4 * PAGE);
    char *at = map(fd, 16 * PAGE, RW, MAP_SHARED, 0);
    memset(at, 1, 4 * PAGE);
    CHECK(raises_bus(at + 4 * PAGE));
    CHECK(!ftruncate(fd, PAGE + 100));
    CHECK(raises_bus(at + 2 * PAGE));
    CHECK(at[PAGE + 99] == 1 && at[PAGE + 100] == 0);
    CHECK(!ftruncate(fd, 8 * PAGE));
    CHECK(at[PAGE + 99] == 1 && at[PAGE + 100] == 0);
    CHECK(at[6 * PAGE] == 0);
    char *more = map(fd, 16 * PAGE, RW, MAP_SHARED, 0);
    CHECK(more[2 * PAGE] == 0 && more[3 * PAGE + 5] == 0);
    memset(more, 3, 8 * PAGE);
    CHECK(!posix_fallocate(fd, 0, 12 * PAGE));
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == 12 * PAGE);
    CHECK(more[11 * PAGE] == 0 && more[7 * PAGE] == 3);
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE + 5, 2 * PAGE));
    CHECK(more[PAGE + 4] == 3 && more[PAGE + 5] == 0 && more[2 * PAGE] == 0);
    CHECK(more[3 * PAGE + 4] == 0 && more[3 * PAGE + 5] == 3);
    int again = shm_open(NAME, O_RDWR | O_TRUNC, 0);
    CHECK(again >= 0 && raises_bus(more));
    CHECK(!truncate(path(), PAGE));
    char *fresh = map(again, PAGE, RW, MAP_SHARED, 0);
    CHECK(fresh[0] == 0);
    CHECK(!munmap(at, 16 * PAGE) && !munmap(more, 16 * PAGE) && !munmap(fresh, PAGE));
    CHECK(!close(fd) && !close(again) && !shm_unlink(NAME));
}

static void descriptors(void)
{
    char buffer[3 * PAGE];
    int fd = make(0);
    CHECK(write(fd, "written first", 13) == 13);
    char *at = map(fd, 4 * PAGE, RW, MAP_SHARED, 0);
    CHECK(!memcmp(at, "written first", 14));
    at[0] = 'W';
    CHECK(pread(fd, buffer, sizeof buffer, 0) == 13 && !memcmp(buffer, "Written first", 13));
    CHECK(write(fd, " and then", 9) == 9 && !memcmp(at, "Written first and then", 23));
    CHECK(lseek(fd, 0, SEEK_END) == 22 && lseek(fd, 8, SEEK_SET) == 8);
    struct iovec two[2] = {{buffer, 3}, {buffer + 100, 1000}};
    CHECK(readv(fd, two, 2) == 14 && !memcmp(buffer, "fir", 3) && !memcmp(buffer + 100, "st a", 4));
    CHECK(read(fd, buffer, 1) == 0);
    memset(buffer, 'x', sizeof buffer);
    CHECK(pwrite(fd, buffer, sizeof buffer, PAGE - 3) == sizeof buffer);
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == 4 * PAGE - 3);
    CHECK(at[PAGE - 4] == 0 && at[PAGE - 3] == 'x' && at[4 * PAGE - 4] == 'x' && !at[4 * PAGE - 3]);
    int copy = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 5);
    CHECK(copy >= 0 && high >= 5 && pread(copy, buffer, 2, 0) == 2 && buffer[0] == 'W');
    CHECK(pread(high, buffer, 2, 0) == 2 && buffer[1] == 'r');
    int append = shm_open(NAME, O_RDWR | O_APPEND, 0);
    CHECK(append >= 0 && write(append, "end", 3) == 3 && !memcmp(at + 4 * PAGE - 3, "end", 3));
    int only = shm_open(NAME, O_RDONLY, 0);
    CHECK(write(only, "a", 1) < 0 && errno == EBADF);
    CHECK(!close(only) && !close(append) && !close(high) && !close(copy) && !close(fd));
    CHECK(!munmap(at, 4 * PAGE) && !shm_unlink(NAME));
}

/* A file that is written, and read, and mapped only then. */
static void written(size_t megabytes)
{
    size_t bytes = megabytes << 20;
    unsigned *own = malloc(1 << 16), at = 0;
    int fd = shm_open(NAME, O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && own);
    for (size_t done = 0; done < bytes; done += 1 << 16) {
        for (int i = 0; i < 1 << 14; i++)
            own[i] = at++ * 2654435761u;
        CHECK(write(fd, own, 1 << 16) == 1 << 16);
    }
    CHECK(pread(fd, own, 1 << 16, bytes / 2 + 4) == 1 << 16);
    CHECK(own[0] == (unsigned)(bytes / 8 + 1) * 2654435761u);
    unsigned *seen = map(fd, bytes, PROT_READ, MAP_SHARED, 0);
    for (size_t i = 0; i < bytes / 4; i++)
        CHECK(seen[i] == (unsigned)i * 2654435761u);
    CHECK(!munmap(seen, bytes) && !close(fd) && !shm_unlink(NAME));
    free(own);
}

/* A descriptor that nobody else has any more, on its way to another process. */
static void sent(void)
{
    int ends[2], gone[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && !pipe(gone));
    pid_t child = fork();
    if (!child) {
        close(ends[0]);
        char byte;
        CHECK(read(ends[1], &byte, 1) == 1);
        /* It stays while it is on its way, however long that takes. */
        CHECK(read(gone[0], &byte, 1) == 1);
        pass_us(700000);
        int fd = receive_fd(ends[1]);
        char *at = map(fd, 8 * PAGE, RW, MAP_SHARED, 0);
        CHECK(at[0] == 'a' && at[7 * PAGE] == 'h');
        at[0] = 'A';
        CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'A');
        _exit(0);
    }
    close(ends[1]);
    int fd = make(8 * PAGE);
    char *at = map(fd, 8 * PAGE, RW, MAP_SHARED, 0);
    for (int i = 0; i < 8; i++)
        at[i * PAGE] = 'a' + i;
    CHECK(!shm_unlink(NAME) && write(ends[0], "!", 1) == 1);
    send_fd(ends[0], fd);
    CHECK(!munmap(at, 8 * PAGE) && !close(fd) && write(gone[1], "!", 1) == 1);
    wait_for(child, 0);
    CHECK(!close(ends[0]) && !close(gone[0]) && !close(gone[1]));
}

static void children(void)
{
    int fd = make(32 * PAGE);
    char *at = map(fd, 32 * PAGE, RW, MAP_SHARED, 0);
    char *own = map(fd, 32 * PAGE, RW, MAP_PRIVATE, 0);
    char *unnamed = map(-1, 1 << 20, RW, MAP_SHARED | MAP_ANONYMOUS, 0);
    at[0] = 1, own[PAGE] = 2, unnamed[0] = 3;
    pid_t child = fork();
    if (!child) {
        CHECK(at[0] == 1 && own[0] == 1 && own[PAGE] == 2 && unnamed[0] == 3);
        at[0] = 11, own[PAGE] = 12, unnamed[0] = 13, unnamed[(1 << 20) - 1] = 14;
        pid_t grandchild = fork();
        if (!grandchild) {
            CHECK(at[0] == 11 && own[PAGE] == 12 && unnamed[0] == 13);
            at[1] = 21, own[PAGE] = 22, unnamed[1] = 23;
            _exit(0);
        }
        wait_for(grandchild, 0);
        CHECK(own[PAGE] == 12);
        _exit(0);
    }
    wait_for(child, 0);
    CHECK(at[0] == 11 && at[1] == 21 && own[PAGE] == 2 && own[0] == 11);
    CHECK(unnamed[0] == 13 && unnamed[1] == 23 && unnamed[(1 << 20) - 1] == 14);
    /* A child has what its parent had, though that is gone when it looks. */
    int ends[2];
    CHECK(!pipe(ends));
    if (!(child = fork())) {
        char *late = map(-1, 1 << 20, RW, MAP_SHARED | MAP_ANONYMOUS, 0);
        late[5] = 55;
        pid_t self = getpid();
        if (!fork()) {
            wait_until(getppid() != self, "its parent has ended");
            /* What it had stays, however long that takes. */
            pass_us(300000);
            late[6] = late[5] + at[0] + unnamed[0];
            CHECK(write(ends[1], late + 6, 1) == 1);
            _exit(0);
        }
        _exit(0);
    }
    wait_for(child, 0);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 55 + 11 + 13);
    CHECK(!munmap(at, 32 * PAGE) && !munmap(own, 32 * PAGE) && !munmap(unnamed, 1 << 20));
    CHECK(!close(fd) && !shm_unlink(NAME) && !close(ends[0]) && !close(ends[1]));
}

struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    long turn;
};

/* Locks and conditions in memory that leaves meanwhile. */
static void locks(size_t megabytes)
{
    size_t bytes = megabytes << 20;
    int fd = make(bytes);
    char *at = map(fd, bytes, RW, MAP_SHARED, 0);
    struct shared *shared = (struct shared *)at;
    pthread_mutexattr_t mutex;
    pthread_condattr_t condition;
    CHECK(!pthread_mutexattr_init(&mutex) && !pthread_condattr_init(&condition));
    CHECK(!pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED));
    CHECK(!pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED));
    CHECK(!pthread_mutex_init(&shared->mutex, &mutex));
    CHECK(!pthread_cond_init(&shared->changed, &condition));
    pid_t child = fork();
    size_t next = PAGE, step = bytes / 40 / PAGE * PAGE;
    for (int i = 0; i < 200; i++) {
        CHECK(!pthread_mutex_lock(&shared->mutex));
        while (shared->turn % 2 != !child)
            CHECK(!pthread_cond_wait(&shared->changed, &shared->mutex));
        shared->turn++;
        CHECK(!pthread_cond_signal(&shared->changed));
        CHECK(!pthread_mutex_unlock(&shared->mutex));
        for (size_t end = next + step; next < end; next += PAGE)
            at[next % (bytes - PAGE) / PAGE * PAGE + PAGE] = 1;
    }
    if (!child)
        _exit(0);
    wait_for(child, 0);
    CHECK(shared->turn == 400);
    CHECK(!munmap(at, bytes) && !close(fd) && !shm_unlink(NAME));
}

/* More than fits into memory, written by two and read by two. */
static void large(size_t megabytes)
{
    size_t words = (megabytes << 20) / 8, half = words / 2;
    int fd = make(words * 8);
    unsigned long *at = map(fd, words * 8, RW, MAP_SHARED, 0);
    for (int round = 1; round <= 2; round++) {
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
    CHECK(!munmap(at, words * 8) && !close(fd) && !shm_unlink(NAME));
}

int main(int count, char **words)
{
    alarm(1500);
    /* Children have the same. */
    (void)NAME;
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "calls")) {
        names();
        parts();
        sizes();
        descriptors();
        sent();
        children();
    } else if (!strcmp(what, "locks")) {
        locks(strtoul(words[2], 0, 10));
    } else if (!strcmp(what, "large")) {
        large(strtoul(words[2], 0, 10));
    } else if (!strcmp(what, "written")) {
        written(strtoul(words[2], 0, 10));
    } else {
        CHECK(!"a word that is known");
    }
    puts("as it should be");
    return 0;
}
