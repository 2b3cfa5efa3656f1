/* Locks of whole files, and of parts, of shared memory: POSIX, a memory file, and each mapped. */
#include "check.h"
#include <sys/file.h>

static void nothing(int number)
{
    (void)number;
}

/* Where it is told that an alarm has come. */
static int alarms;

static void tells(int number)
{
    (void)number;
    CHECK(write(alarms, "a", 1) == 1);
}

static int lock(int fd, int how, int kind, int whence, off_t start, off_t length)
{
    struct flock lock = {.l_type = kind, .l_whence = whence, .l_start = start, .l_len = length};
    return fcntl(fd, how, &lock);
}

/* What another process is told of locks here. */
static void others(int fd, pid_t own, int is_locked)
{
    struct flock lock = {.l_type = F_WRLCK};
    CHECK(!fcntl(fd, F_GETLK, &lock));
    if (is_locked) {
        CHECK(lock.l_type == F_WRLCK && lock.l_pid == own && lock.l_start == 0 && lock.l_len == 0);
        CHECK(lock.l_whence == SEEK_SET);
    } else {
        CHECK(lock.l_type == F_UNLCK);
    }
}

static void file(int fd)
{
    pid_t own = getpid(), child;
    int told[2];
    char byte = 0;
    CHECK(!lock(fd, F_SETLK, F_WRLCK, SEEK_SET, 0, 0));
    /* Locked again, with the end given in other ways. */
    CHECK(lseek(fd, 100, SEEK_SET) == 100);
    CHECK(!lock(fd, F_SETLK, F_WRLCK, SEEK_CUR, -100, 0));
    CHECK(!lock(fd, F_SETLK, F_WRLCK, SEEK_END, 0, 0));
    CHECK(lock(fd, F_SETLK, F_WRLCK, 7, 0, 0) == -1 && errno == EINVAL);
    CHECK(lock(fd, F_SETLK, F_WRLCK, SEEK_SET, -1, 0) == -1 && errno == EINVAL);
    CHECK(!pipe(told));
    child = fork();
    if (!child) {
        struct sigaction action = {.sa_handler = nothing};
        others(fd, own, 1);
        CHECK(lock(fd, F_SETLK, F_RDLCK, SEEK_SET, 0, 0) == -1);
        CHECK(errno == EAGAIN || errno == EACCES);
        /* A signal ends the wait. */
        CHECK(!sigaction(SIGALRM, &action, 0));
        /* Again and again: the first may come before the call. */
        ualarm(50000, 50000);
        CHECK(lock(fd, F_SETLKW, F_WRLCK, SEEK_SET, 0, 0) == -1 && errno == EINTR);
        /* One that lets calls go on does not. */
        alarms = told[1];
        action = (struct sigaction){.sa_handler = tells, .sa_flags = SA_RESTART};
        CHECK(!sigaction(SIGALRM, &action, 0));
        CHECK(!lock(fd, F_SETLKW, F_WRLCK, SEEK_SET, 0, 0));
        _exit(0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(read(told[0], &byte, 1) == 1);
    CHECK(!waitpid(child, 0, WNOHANG));
    CHECK(!lock(fd, F_SETLK, F_UNLCK, SEEK_SET, 0, 0));
    wait_for(child, 0);
    /* lockf, flock and locks of open files are whole, too. */
    CHECK(!lseek(fd, 0, SEEK_SET) && !lockf(fd, F_LOCK, 0));
    child = fork();
    if (!child) {
        others(fd, own, 1);
        _exit(0);
    }
    wait_for(child, 0);
    CHECK(!lockf(fd, F_ULOCK, 0) && !flock(fd, LOCK_EX) && !flock(fd, LOCK_UN));
    CHECK(!lock(fd, F_OFD_SETLKW, F_WRLCK, SEEK_SET, 0, 0));
    CHECK(!lock(fd, F_OFD_SETLK, F_UNLCK, SEEK_SET, 0, 0));
    child = fork();
    if (!child) {
        others(fd, own, 0);
        _exit(0);
    }
    wait_for(child, 0);
    CHECK(!close(told[0]) && !close(told[1]));
}

int main(void)
{
    const char *name = own_name("/farpage-test-file-locks");
    alarm(1500);
    for (int kind = 0; kind < 2; kind++) {
        int fd = kind ? memfd_create("locked", 0) : shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        size_t bytes = 8 << 20;
        CHECK(fd >= 0 && !ftruncate(fd, bytes));
        file(fd);
        char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        memset(at, 1, bytes);
        file(fd);
        CHECK(!munmap(at, bytes) && !close(fd));
    }
    CHECK(!shm_unlink(name));
    puts("as it should be");
    return 0;
}
