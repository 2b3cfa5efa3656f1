/* Files of shared memory that several processes write to, or read beside a writer, by descriptors. They are
 * large enough that Linux has none of their pages.
 *
 *   writers WHAT */
#include "check.h"
#include <sys/stat.h>
#include <sys/uio.h>

#define WRITERS 4
#define LINES 400
#define LINE 1000
#define FIRST (2 << 20)
#define PIECE (32 << 10)
#define PIECES 1024
#define LARGE (PIECE * PIECES)

static const char *name;

/* A file of FIRST bytes, all 'x'. */
static int begin(int flags)
{
    char *first = malloc(FIRST);
    int fd;
    CHECK(first);
    memset(first, 'x', FIRST);
    name = own_name("/dev/shm/writers");
    fd = open(name, O_CREAT | O_EXCL | O_RDWR | flags, 0600);
    CHECK(fd >= 0);
    CHECK(write(fd, first, FIRST) == FIRST);
    free(first);
    return fd;
}

static void write_lines(int fd, int which)
{
    char line[LINE];
    memset(line, 'a' + which, LINE - 1);
    line[LINE - 1] = '\n';
    for (int i = 0; i < LINES; i++)
        CHECK(write(fd, line, LINE) == LINE);
}

static void end_all(int count)
{
    for (int i = 0; i < count; i++) {
        int status;
        CHECK(wait(&status) > 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* Every line of every writer is there once and whole. */
static void check_lines(void)
{
    char line[LINE];
    int counts[WRITERS] = {0}, fd = open(name, O_RDONLY);
    struct stat status;
    CHECK(!fstat(fd, &status));
    CHECK(status.st_size == FIRST + WRITERS * LINES * LINE);
    CHECK(lseek(fd, FIRST, SEEK_SET) == FIRST);
    while (read(fd, line, LINE) == LINE) {
        CHECK(line[0] >= 'a' && line[0] < 'a' + WRITERS && line[LINE - 1] == '\n');
        for (int i = 1; i < LINE - 1; i++)
            CHECK(line[i] == line[0]);
        counts[line[0] - 'a']++;
    }
    for (int i = 0; i < WRITERS; i++)
        CHECK(counts[i] == LINES);
    close(fd);
}

/* Each has opened the file to append to it. */
static void append(void)
{
    close(begin(0));
    for (int which = 0; which < WRITERS; which++)
        if (!fork()) {
            write_lines(open(name, O_WRONLY | O_APPEND), which);
            _exit(0);
        }
    end_all(WRITERS);
    check_lines();
}

/* All have one open file, and so one offset. */
static void offset(void)
{
    int fd = begin(0);
    for (int which = 0; which < WRITERS; which++)
        if (!fork()) {
            write_lines(fd, which);
            _exit(0);
        }
    end_all(WRITERS);
    check_lines();
}

/* Who asks for room at the end, where another writes, takes nothing of that away. */
static void allocate(void)
{
    int fd = begin(0), stop[2];
    char byte;
    CHECK(!pipe(stop));
    if (!fork()) {
        close(stop[1]);
        CHECK(!fcntl(stop[0], F_SETFL, O_NONBLOCK));
        while (read(stop[0], &byte, 1) < 0)
            CHECK(!fallocate(fd, 0, 0, lseek(fd, 0, SEEK_CUR) + LINE / 2));
        _exit(0);
    }
    close(stop[0]);
    for (int which = 0; which < WRITERS; which++)
        write_lines(fd, which);
    close(stop[1]);
    end_all(1);
    CHECK(!ftruncate(fd, FIRST + WRITERS * LINES * LINE));
    check_lines();
}

/* A reader never sees a size without the bytes. */
static void beside(void)
{
    int fd = begin(0), other = open(name, O_RDONLY);
    off_t total = FIRST + WRITERS * LINES * LINE, all = 0;
    static char bytes[65536];
    if (!fork()) {
        for (int which = 0; which < WRITERS; which++)
            write_lines(fd, which);
        _exit(0);
    }
    while (all < total) {
        ssize_t got = read(other, bytes, sizeof bytes);
        CHECK(got >= 0);
        for (ssize_t i = 0; i < got; i++)
            CHECK(bytes[i]);
        all += got;
    }
    end_all(1);
}

/* Who reads by one open file gets other bytes than the others, and together they get all. */
static void parted(void)
{
    int fd = begin(0), told[2];
    long all = 0, got;
    CHECK(!pipe(told));
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    for (int which = 0; which < WRITERS; which++)
        if (!fork()) {
            static char bytes[4096];
            long sum = 0;
            while ((got = read(fd, bytes, sizeof bytes)) > 0)
                sum += got;
            CHECK(got == 0);
            CHECK(write(told[1], &sum, sizeof sum) == sizeof sum);
            _exit(0);
        }
    end_all(WRITERS);
    for (int which = 0; which < WRITERS; which++) {
        CHECK(read(told[0], &got, sizeof got) == sizeof got);
        all += got;
    }
    CHECK(all == FIRST);
    CHECK(lseek(fd, 0, SEEK_CUR) == FIRST);
}

/* A file that is emptied while another appends to it has whole lines only. */
static void emptied(void)
{
    struct stat status;
    char line[LINE];
    int fd;
    close(begin(0));
    if (!fork()) {
        int own = open(name, O_WRONLY | O_APPEND);
        for (int which = 0; which < WRITERS; which++)
            write_lines(own, which);
        _exit(0);
    }
    for (int i = 0; i < 100; i++)
        close(open(name, O_WRONLY | O_TRUNC));
    end_all(1);
    fd = open(name, O_RDONLY);
    CHECK(!fstat(fd, &status));
    CHECK(status.st_size % LINE == 0 && status.st_size <= WRITERS * LINES * LINE);
    while (read(fd, line, LINE) == LINE)
        for (int i = 0; i < LINE - 1; i++)
            CHECK(line[i] == line[0] && line[0]);
}

static pid_t writer;

static void goes_on(int number)
{
    (void)number;
    kill(writer, SIGCONT);
}

/* Makes a writer of LARGE bytes, which has begun. It has so little memory of its own that none of it is paged
 * out: a process that waits for a page cannot be stopped. */
static int write_much(void)
{
    static char piece[PIECE];
    struct iovec pieces[PIECES];
    struct stat status;
    int fd = begin(0);
    memset(piece, 'y', PIECE);
    for (int i = 0; i < PIECES; i++)
        pieces[i] = (struct iovec){piece, PIECE};
    writer = fork();
    if (!writer) {
        CHECK(writev(fd, pieces, PIECES) == LARGE);
        _exit(0);
    }
    do
        CHECK(!fstat(fd, &status));
    while (status.st_size == FIRST);
    return fd;
}

static void check_bytes(int fd, char byte, long from, long count)
{
    char *bytes = malloc(count);
    CHECK(bytes);
    CHECK(pread(fd, bytes, count, from) == count);
    for (long i = 0; i < count; i++)
        CHECK(bytes[i] == byte);
    free(bytes);
}

/* Who waits for a writer that was stopped still gets its signals. */
static void stopped(void)
{
    int fd = write_much(), status;
    struct sigaction action = {.sa_handler = goes_on};
    CHECK(!kill(writer, SIGSTOP));
    CHECK(waitpid(writer, &status, WUNTRACED) == writer);
    if (WIFSTOPPED(status)) {
        CHECK(!sigaction(SIGALRM, &action, 0));
        /* Again and again: the first may come before the call. */
        ualarm(50000, 50000);
        check_bytes(fd, 'y', FIRST, LARGE);
        ualarm(0, 0);
        /* Where nobody waits, as without Farpage, all may be read before the first signal. */
        CHECK(!kill(writer, SIGCONT));
        CHECK(waitpid(writer, &status, 0) == writer);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Nobody waits for a writer that was killed. */
static void killed(void)
{
    int fd = write_much(), status;
    CHECK(!kill(writer, SIGKILL));
    CHECK(waitpid(writer, &status, 0) == writer);
    check_bytes(fd, 'x', 0, FIRST);
    CHECK(!ftruncate(fd, FIRST));
    CHECK(lseek(fd, FIRST, SEEK_SET) == FIRST);
    for (int which = 0; which < WRITERS; which++)
        write_lines(fd, which);
    check_lines();
}

static void *writes_much(void *file)
{
    static char piece[PIECE];
    static struct iovec pieces[PIECES];
    for (int i = 0; i < PIECES; i++)
        pieces[i] = (struct iovec){piece, PIECE};
    writev(*(int *)file, pieces, PIECES);
    return 0;
}

/* A child that was made in the middle of a write holds up nobody when the writer is killed. */
static void orphan(void)
{
    int fd = begin(0), ends[2];
    struct stat status;
    char byte;
    CHECK(!pipe(ends));
    writer = fork();
    if (!writer) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, 0, writes_much, &fd));
        do
            CHECK(!fstat(fd, &status));
        while (status.st_size == FIRST);
        if (!fork()) {
            CHECK(!close(ends[1]));
            /* It lives until this program ends. */
            _exit(read(ends[0], &byte, 1) != 0);
        }
        kill(getpid(), SIGKILL);
    }
    CHECK(!close(ends[0]) && waitpid(writer, 0, 0) == writer);
    check_bytes(fd, 'x', 0, FIRST);
    CHECK(pwrite(fd, "y", 1, 0) == 1);
}

/* The bytes that are written lie in the file itself, mapped, or cannot be had. */
static void itself(void)
{
    int fd = begin(0);
    struct stat status;
    char *at = mmap(0, FIRST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    CHECK(write(fd, at, FIRST) == FIRST);
    CHECK(pwrite(fd, at + 100, FIRST - 100, 0) == FIRST - 100);
    check_bytes(fd, 'x', 0, 2L * FIRST);
    CHECK(pread(fd, at, FIRST, 7) == FIRST);
    /* What cannot be read makes the file no longer. */
    CHECK(!mprotect(at + FIRST / 2, FIRST / 2, PROT_NONE));
    CHECK(pwrite(fd, at, FIRST, 2L * FIRST) == FIRST / 2);
    CHECK(!fstat(fd, &status) && status.st_size == 2L * FIRST + FIRST / 2);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*act)(void);
    } ALL[] = {
        {"append", append}, {"offset", offset}, {"allocate", allocate}, {"beside", beside},
        {"parted", parted}, {"emptied", emptied}, {"stopped", stopped}, {"killed", killed},
        {"itself", itself}, {"orphan", orphan},
    };
    CHECK(count == 2);
    for (size_t i = 0; i < LENGTH(ALL); i++)
        if (!strcmp(words[1], ALL[i].name)) {
            ALL[i].act();
            CHECK(!unlink(name));
            puts("as it should be");
            return 0;
        }
    return 1;
}
