/* Files of shared memory, with names and without, whose descriptors come over a socket and are read,
 * written and mapped; and that receiving means what it means without farpage run --shm. */
#include "fds.h"
#include <sys/stat.h>
#include <sys/time.h>

#define BYTES (3 << 20)

static int named(void)
{
    const char *name = own_name("/farpage-handed");
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(fd >= 0 && !shm_unlink(name));
    return fd;
}

static int unnamed(void)
{
    return memfd_create("handed", MFD_CLOEXEC);
}

static char *map(int fd)
{
    char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* What a child does that gets descriptors: reads only, from the start on. */
static void reads(int socket)
{
    static char bytes[BYTES];
    int fd = receive_fd(socket);
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == BYTES);
    for (size_t done = 0; done < BYTES;) {
        ssize_t got = read(fd, bytes + done, BYTES - done);
        CHECK(got > 0);
        done += got;
    }
    for (int i = 0; i < BYTES; i += 4096)
        CHECK(bytes[i] == (char)(i >> 12));
    CHECK(pwrite(fd, "child", 5, 5 * 4096) == 5);
    int copy = dup(fd);
    CHECK(copy >= 0 && pread(copy, bytes, 5, 5 * 4096) == 5 && !memcmp(bytes, "child", 5));
    CHECK(!close(fd) && !close(copy));
}

static void handed(int (*make)(void))
{
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t child = fork();
    if (!child) {
        reads(ends[1]);
        _exit(0);
    }
    int fd = make();
    CHECK(fd >= 0 && !ftruncate(fd, BYTES));
    char *at = map(fd);
    for (int i = 0; i < BYTES; i += 4096)
        at[i] = i >> 12;
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    send_fd(ends[0], fd);
    CHECK(!close(fd));
    wait_for(child, 0);
    CHECK(!memcmp(at + 5 * 4096, "child", 5));
    CHECK(!munmap(at, BYTES) && !close(ends[0]) && !close(ends[1]));
}

/* Several in a message, by recvmmsg, and more than have numbers: right bytes, or an error. */
static void several(void)
{
    enum { MESSAGES = 100, EACH = 2 };
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    pid_t child = fork();
    if (!child) {
        int fd = memfd_create("several", 0), wrong = 0;
        CHECK(!ftruncate(fd, BYTES));
        char *at = map(fd), byte;
        at[7] = 'x';
        for (int i = 0; i < MESSAGES; i += EACH) {
            char control[EACH][CMSG_SPACE(sizeof(int))];
            struct iovec part = {&byte, 1};
            struct mmsghdr messages[EACH] = {0};
            for (int k = 0; k < EACH; k++) {
                messages[k].msg_hdr.msg_iov = &part, messages[k].msg_hdr.msg_iovlen = 1;
                messages[k].msg_hdr.msg_control = control[k];
                messages[k].msg_hdr.msg_controllen = sizeof control[k];
                send_fd(ends[1], fd);
            }
            int got = recvmmsg(ends[0], messages, EACH, 0, 0);
            CHECK(got == EACH);
            for (int k = 0; k < got; k++) {
                CHECK(messages[k].msg_len == 1);
                memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&messages[k].msg_hdr)), sizeof fd);
                if (pread(fd, &byte, 1, 7) == 1)
                    CHECK(byte == 'x');
                else
                    CHECK(errno == EBADF && ++wrong);
            }
        }
        _exit(wrong > MESSAGES ? 1 : 0);
    }
    wait_for(child, 0);
    CHECK(!close(ends[0]) && !close(ends[1]));
}

/* Where it is told that an alarm has come. */
static int told;

static void on_alarm(int signal)
{
    (void)signal;
    if (told)
        CHECK(write(told, "a", 1) == 1);
}

/* recvmmsg, made by hand: the registers are the program's own afterwards. */
static long receive_several(int socket, struct mmsghdr *messages, long count, long flags)
{
    register long r10 __asm__("r10") = flags, r8 __asm__("r8") = 0;
    long got = SYS_recvmmsg, fd = socket, wanted = count;
    struct mmsghdr *at = messages;
    __asm__ volatile("syscall"
                     : "+a"(got), "+D"(fd), "+S"(at), "+d"(wanted), "+r"(r10), "+r"(r8)
                     :
                     : "rcx", "r11", "memory");
    CHECK(fd == socket && at == messages && wanted == count && r10 == flags && r8 == 0);
    return got;
}

enum { ALL = 5 };

static void prepare(struct mmsghdr *messages, char control[ALL][CMSG_SPACE(sizeof(int))])
{
    static struct iovec part;
    static char byte;
    part.iov_base = &byte, part.iov_len = 1;
    memset(messages, 0, ALL * sizeof *messages);
    for (int i = 0; i < ALL; i++) {
        messages[i].msg_hdr.msg_iov = &part, messages[i].msg_hdr.msg_iovlen = 1;
        messages[i].msg_hdr.msg_control = control[i];
        messages[i].msg_hdr.msg_controllen = CMSG_SPACE(sizeof(int));
    }
}

static int is_marked(struct mmsghdr *message)
{
    int fd;
    char byte;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message->msg_hdr)), sizeof fd);
    return pread(fd, &byte, 1, 7) == 1 && byte == 'x' && !close(fd);
}

/* recvmmsg waits for all, unless it is told not to, or a signal comes. */
static void all_of_several(void)
{
    int ends[2], fd = memfd_create("all", 0);
    struct mmsghdr messages[ALL];
    char control[ALL][CMSG_SPACE(sizeof(int))];
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) && !ftruncate(fd, BYTES));
    char *at = map(fd);
    at[7] = 'x';
    for (int first = 0; first < ALL; first++) {
        for (int i = 0; i < first; i++)
            send_fd(ends[1], fd);
        pid_t child = fork();
        if (!child) {
            for (int i = first; i < ALL; i++) {
                /* Most of them come while the others are waited for. */
                pass_us(5000);
                send_fd(ends[1], fd);
            }
            _exit(0);
        }
        prepare(messages, control);
        CHECK(receive_several(ends[0], messages, ALL, 0) == ALL);
        for (int i = 0; i < ALL; i++)
            CHECK(is_marked(messages + i));
        wait_for(child, 0);
    }
    send_fd(ends[1], fd);
    prepare(messages, control);
    CHECK(receive_several(ends[0], messages, ALL, MSG_WAITFORONE) == 1 && is_marked(messages));
    send_fd(ends[1], fd);
    prepare(messages, control);
    CHECK(receive_several(ends[0], messages, ALL, MSG_DONTWAIT) == 1 && is_marked(messages));
    struct sigaction action = {.sa_handler = on_alarm}, before;
    struct itimerval often = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
    send_fd(ends[1], fd), send_fd(ends[1], fd);
    prepare(messages, control);
    CHECK(!sigaction(SIGALRM, &action, &before) && !setitimer(ITIMER_REAL, &often, 0));
    CHECK(receive_several(ends[0], messages, ALL, 0) == 2);
    CHECK(!setitimer(ITIMER_REAL, &off, 0) && !sigaction(SIGALRM, &before, 0));
    CHECK(is_marked(messages) && is_marked(messages + 1));
    CHECK(!munmap(at, BYTES) && !close(fd) && !close(ends[0]) && !close(ends[1]));
}

static ssize_t receive(int socket, int flags)
{
    char byte, control[64];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = control, message.msg_controllen = sizeof control;
    return recvmsg(socket, &message, flags);
}

/* Waiting, not waiting, for so long, until a signal, until the end. */
static void waiting(int kind)
{
    int ends[2];
    CHECK(!socketpair(AF_UNIX, kind, 0, ends));
    CHECK(receive(ends[0], MSG_DONTWAIT) < 0 && errno == EAGAIN);
    CHECK(!fcntl(ends[0], F_SETFL, O_NONBLOCK));
    CHECK(receive(ends[0], 0) < 0 && errno == EAGAIN);
    CHECK(!fcntl(ends[0], F_SETFL, 0));
    struct timeval some = {0, 50000}, none = {0, 0};
    CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    CHECK(receive(ends[0], 0) < 0 && errno == EAGAIN);
    CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    struct sigaction action = {.sa_handler = on_alarm}, before;
    /* Again and again: the first may come before the call. */
    struct itimerval often = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
    CHECK(!sigaction(SIGALRM, &action, &before) && !setitimer(ITIMER_REAL, &often, 0));
    CHECK(receive(ends[0], 0) < 0 && errno == EINTR);
    CHECK(!setitimer(ITIMER_REAL, &off, 0));
    action.sa_flags = SA_RESTART;
    int alarms[2];
    CHECK(!sigaction(SIGALRM, &action, 0) && !pipe(alarms));
    pid_t child = fork();
    if (!child) {
        char byte;
        for (int i = 0; i < 5; i++)
            CHECK(read(alarms[0], &byte, 1) == 1);
        CHECK(send(ends[1], "a", 1, 0) == 1);
        _exit(0);
    }
    told = alarms[1];
    CHECK(!setitimer(ITIMER_REAL, &often, 0));
    CHECK(receive(ends[0], 0) == 1);
    CHECK(!setitimer(ITIMER_REAL, &off, 0));
    told = 0;
    wait_for(child, 0);
    CHECK(!sigaction(SIGALRM, &before, 0) && !close(alarms[0]) && !close(alarms[1]));
    if (kind != SOCK_DGRAM) {
        CHECK(!close(ends[1]) && receive(ends[0], 0) == 0);
    } else {
        CHECK(send(ends[1], "", 0, 0) == 0 && receive(ends[0], 0) == 0 && !close(ends[1]));
    }
    CHECK(!close(ends[0]) && receive(ends[0], 0) < 0 && errno == EBADF);
}

int main(void)
{
    handed(named);
    handed(unnamed);
    several();
    all_of_several();
    waiting(SOCK_STREAM);
    waiting(SOCK_SEQPACKET);
    waiting(SOCK_DGRAM);
    puts("as it should be");
    return 0;
}
