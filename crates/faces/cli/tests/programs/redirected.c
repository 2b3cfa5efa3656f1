/* Shared memory by descriptors of any number and at any address, and what is sent from it and to it. The meaning is
   the same with and without farpage run --shm. */
#include "check.h"
#include <sys/ipc.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#define PAGE 4096
#define BYTES (4 << 20)
#define RW (PROT_READ | PROT_WRITE)

static char expected[BYTES], got[BYTES];

static int make(char **at)
{
    int fd = shm_open(own_name("/redirected"), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, BYTES));
    *at = mmap(0, BYTES, RW, MAP_SHARED, fd, 0);
    CHECK(*at != MAP_FAILED);
    for (size_t i = 0; i < BYTES; i++)
        (*at)[i] = expected[i] = i * 7 + (i >> 12);
    return fd;
}

static void numbers(int fd, char *at)
{
    for (int number = 0; number < 60; number += 17) {
        int before = fcntl(number, F_DUPFD, 700);
        CHECK(dup2(fd, number) == number);
        CHECK(lseek(number, 0, SEEK_SET) == 0);
        CHECK(read(number, got, BYTES) == BYTES && !memcmp(got, expected, BYTES));
        CHECK(read(number, got, 1) == 0);
        CHECK(pwrite(number, "by number", 9, 3 * PAGE) == 9);
        CHECK(!memcmp(at + 3 * PAGE, "by number", 9));
        memcpy(expected + 3 * PAGE, "by number", 9);
        int other = fcntl(number, F_DUPFD, 3);
        CHECK(other >= 3 && pread(other, got, 9, 3 * PAGE) == 9 && !memcmp(got, "by number", 9));
        CHECK(!close(other));
        CHECK(lseek(number, 0, SEEK_HOLE) == BYTES);
        if (before >= 0)
            CHECK(dup2(before, number) == number && !close(before));
        else
            CHECK(!close(number));
    }
}

/* A program that is started reads it as its standard input; the number was given before it was mapped, and after. */
static void inputs(int fd)
{
    const char *lines[] = {"wc -c", "tail -c +12289 | head -c 9", "md5sum", "cat | md5sum", "sh -c 'exec cat' | md5sum"};
    for (int i = 0; i < 5; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
            CHECK(lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, 0) == 0);
            execl("/bin/sh", "sh", "-c", lines[i], NULL);
            _exit(99);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    puts("");
}

static void first_unmapped(void)
{
    char name[64];
    snprintf(name, sizeof name, "%s-unmapped", own_name("/redirected"));
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, BYTES) && pwrite(fd, "before", 6, 0) == 6);
    int saved = dup(0);
    CHECK(dup2(fd, 0) == 0);
    char *at = mmap(0, BYTES, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    memcpy(at, "behind", 6);
    CHECK(pread(0, got, 6, 0) == 6 && !memcmp(got, "behind", 6));
    CHECK(dup2(saved, 0) == 0 && !close(saved) && !close(fd) && !munmap(at, BYTES));
    CHECK(!shm_unlink(name));
}

static void *drain(void *argument)
{
    int fd = *(int *)argument;
    for (size_t done = 0; done < BYTES;) {
        ssize_t count = read(fd, got + done, BYTES - done);
        CHECK(count > 0);
        done += count;
        if (done < BYTES / 2)
            pass_us(200);
    }
    return 0;
}

static void nothing(int signal)
{
    (void)signal;
}

/* All of it, to somebody who reads slowly: a socket and a pipe. */
static void sends(int fd, char *at)
{
    for (int pipes = 0; pipes < 2; pipes++) {
        int ends[2];
        CHECK(!(pipes ? pipe(ends) : socketpair(AF_UNIX, SOCK_STREAM, 0, ends)));
        pthread_t reader;
        memset(got, 0, BYTES);
        CHECK(!pthread_create(&reader, 0, drain, &ends[0]));
        off_t offset = 0;
        while (offset < BYTES) {
            ssize_t sent = pipes ? splice(fd, &offset, ends[1], 0, BYTES - offset, 0)
                                 : sendfile(ends[1], fd, &offset, BYTES - offset);
            CHECK(sent > 0);
        }
        CHECK(!pthread_join(reader, 0) && !memcmp(got, at, BYTES));
        CHECK(sendfile(ends[1], fd, &offset, 10) == 0);
        /* Nobody reads any more. */
        CHECK(!fcntl(ends[1], F_SETFL, O_NONBLOCK));
        offset = 0;
        while (sendfile(ends[1], fd, &offset, BYTES) > 0)
            offset = 0;
        CHECK(errno == EAGAIN);
        CHECK(!fcntl(ends[1], F_SETFL, 0));
        struct sigaction action = {.sa_handler = nothing};
        CHECK(!sigaction(SIGALRM, &action, 0));
        struct itimerval soon = {{0, 20000}, {0, 20000}}, never = {{0}};
        CHECK(!setitimer(ITIMER_REAL, &soon, 0));
        CHECK(sendfile(ends[1], fd, &offset, BYTES) == -1 && errno == EINTR);
        CHECK(!setitimer(ITIMER_REAL, &never, 0));
        CHECK(!close(ends[0]) && signal(SIGPIPE, SIG_IGN) != SIG_ERR);
        CHECK(sendfile(ends[1], fd, &offset, BYTES) == -1 && errno == EPIPE);
        CHECK(!close(ends[1]));
    }
}

/* To it, and between two of it; by where the descriptors stand. */
static void takes(int fd, char *at)
{
    char *other;
    int file = memfd_create("other", 0);
    CHECK(file >= 0 && !ftruncate(file, BYTES));
    other = mmap(0, BYTES, RW, MAP_SHARED, file, 0);
    CHECK(other != MAP_FAILED);
    CHECK(lseek(fd, PAGE, SEEK_SET) == PAGE && lseek(file, 10, SEEK_SET) == 10);
    CHECK(sendfile(file, fd, 0, 2 * PAGE) == 2 * PAGE && !memcmp(other + 10, at + PAGE, 2 * PAGE));
    CHECK(lseek(fd, 0, SEEK_CUR) == 3 * PAGE && lseek(file, 0, SEEK_CUR) == 10 + 2 * PAGE);
    int ends[2];
    CHECK(!pipe(ends) && write(ends[1], "through a pipe", 14) == 14);
    off_t offset = BYTES - 4;
    CHECK(splice(ends[0], 0, file, &offset, 100, 0) == 14 && offset == BYTES + 10);
    struct stat status;
    CHECK(!fstat(file, &status) && status.st_size == BYTES + 10);
    CHECK(pread(file, got, 14, BYTES - 4) == 14 && !memcmp(got, "through a pipe", 14));
    CHECK(splice(ends[0], 0, file, &offset, 100, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
    CHECK(!close(ends[1]) && splice(ends[0], 0, file, &offset, 100, 0) == 0);
    CHECK(splice(file, 0, fd, 0, 100, 0) == -1 && errno == EINVAL);
    int only = open("/dev/null", O_RDONLY);
    CHECK(sendfile(only, fd, &(off_t){0}, 10) == -1 && errno == EBADF && !close(only));
    char name[] = "/tmp/farpage-redirected-XXXXXX";
    int plain = mkstemp(name);
    CHECK(plain >= 0 && !unlink(name));
    CHECK(sendfile(plain, fd, &(off_t){0}, BYTES) == BYTES);
    CHECK(pread(plain, got, BYTES, 0) == BYTES && !memcmp(got, at, BYTES));
    CHECK(lseek(file, 0, SEEK_SET) == 0 && sendfile(file, plain, &(off_t){PAGE}, BYTES) == BYTES - PAGE);
    CHECK(!memcmp(other, at + PAGE, BYTES - PAGE));
    CHECK(!munmap(other, BYTES) && !close(file) && !close(plain) && !close(ends[0]));
}

/* A ring that lies twice in a row, where the program has reserved the room, and at places that Linux chose. */
static void rings(void)
{
    int fd = memfd_create("ring", 0);
    CHECK(fd >= 0 && !ftruncate(fd, BYTES));
    int flags[] = {MAP_PRIVATE | MAP_ANONYMOUS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK};
    for (int i = 0; i < 3; i++) {
        char *room = mmap(0, 2 * BYTES, i == 2 ? RW : PROT_NONE, flags[i], -1, 0);
        CHECK(room != MAP_FAILED);
        CHECK(mmap(room, BYTES, RW, MAP_SHARED | MAP_FIXED, fd, 0) == room);
        CHECK(mmap(room + BYTES, BYTES, RW, MAP_SHARED | MAP_FIXED, fd, 0) == room + BYTES);
        memcpy(room + BYTES - 4, "straddle", 8);
        CHECK(!memcmp(room, "ddle", 4) && !memcmp(room + BYTES, "ddle", 4));
        /* What is done to it there is seen. */
        CHECK(!mprotect(room, PAGE, PROT_READ) && room[0] == 'd' && !mprotect(room, PAGE, RW));
        CHECK(!munmap(room + BYTES, PAGE) && room[1] == 'd');
        CHECK(mmap(room + BYTES, PAGE, RW, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == room + BYTES);
        CHECK(room[BYTES] == 0 && room[BYTES + PAGE] == room[PAGE]);
        char *moved = mremap(room + BYTES + PAGE, BYTES - PAGE, BYTES - PAGE, MREMAP_MAYMOVE);
        CHECK(moved != MAP_FAILED && moved[0] == room[PAGE]);
        CHECK(!munmap(moved, BYTES - PAGE) && !munmap(room, BYTES + PAGE));
    }
    CHECK(!close(fd));
}

static void segments(void)
{
    int id = shmget(IPC_PRIVATE, BYTES, 0600);
    CHECK(id >= 0);
    char *free_ = mmap(0, 8 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(free_ != MAP_FAILED && !munmap(free_, 8 * BYTES));
    for (int i = 0; i < 8; i += 2)
        CHECK(shmat(id, free_ + i * BYTES + i, SHM_RND) == free_ + i * BYTES);
    memcpy(free_, "everywhere", 10);
    for (int i = 0; i < 8; i += 2)
        CHECK(!memcmp(free_ + i * BYTES, "everywhere", 10));
    CHECK(shmat(id, free_ + PAGE, 0) == (void *)-1 && errno == EINVAL);
    CHECK(shmat(id, free_, SHM_REMAP) == free_ && !memcmp(free_, "everywhere", 10));
    struct shmid_ds about;
    CHECK(!shmctl(id, IPC_STAT, &about) && about.shm_nattch == 4);
    for (int i = 0; i < 8; i += 2)
        CHECK(!shmdt(free_ + i * BYTES));
    /* Many of them. */
    char *many[200];
    for (int i = 0; i < 200; i++) {
        many[i] = shmat(id, 0, 0);
        CHECK(many[i] != (void *)-1 && !memcmp(many[i], "everywhere", 10));
    }
    for (int i = 0; i < 200; i++)
        CHECK(!shmdt(many[i]));
    CHECK(!shmctl(id, IPC_STAT, &about) && about.shm_nattch == 0 && !shmctl(id, IPC_RMID, 0));
}

int main(void)
{
    char *at;
    int fd = make(&at);
    numbers(fd, at);
    first_unmapped();
    inputs(fd);
    sends(fd, at);
    takes(fd, at);
    rings();
    segments();
    inputs(fd);
    CHECK(!memcmp(at, expected, BYTES));
    CHECK(!shm_unlink(own_name("/redirected")));
    puts("as it should be");
    return 0;
}
