/* Threads wait in calls that read or write memory when that memory becomes managed, and leaves. */
#define MUCH (48 << 20)
#include "away.h"
#include <sys/socket.h>
#include <sys/uio.h>

#define PLACE (64 << 10)
#define ROOM (4 << 20)
#define PAIRS 6

static unsigned char *room;
static int ends[PAIRS][2];
static volatile pid_t ids[PAIRS + 2];

/* What the thread `i` has its call read or write: the last bytes of one page and the first of the next. */
static void *place(int i)
{
    return room + i * PLACE + 4096 - 8;
}

static void *events(void *)
{
    struct epoll_event one = {.events = EPOLLIN, .data.u64 = 77}, *got = place(0);
    int fd = epoll_create1(0);
    CHECK(!epoll_ctl(fd, EPOLL_CTL_ADD, ends[0][0], &one));
    ids[0] = gettid();
    CHECK(epoll_wait(fd, got, 64, -1) == 1);
    CHECK(got->data.u64 == 77 && got->events == EPOLLIN);
    return 0;
}

static void *bytes(void *)
{
    ids[1] = gettid();
    CHECK(read(ends[1][0], place(1), 3 * PLACE / 4) == 16);
    CHECK(!memcmp(place(1), "0123456789abcdef", 16));
    return 0;
}

static void *datagram(void *)
{
    ids[2] = gettid();
    CHECK(recv(ends[2][0], place(2), 100, 0) == 16);
    CHECK(!memcmp(place(2), "0123456789abcdef", 16));
    return 0;
}

static void *ready(void *)
{
    struct pollfd *asked = place(3);
    *asked = (struct pollfd){.fd = ends[3][0], .events = POLLIN};
    ids[3] = gettid();
    CHECK(poll(asked, 1, -1) == 1);
    CHECK(asked->revents == POLLIN);
    return 0;
}

static void *pieces(void *)
{
    struct iovec *two = place(4);
    two[0] = (struct iovec){(char *)place(4) + 2 * 4096, 10};
    two[1] = (struct iovec){(char *)place(4) + 5 * 4096, 10};
    ids[4] = gettid();
    CHECK(readv(ends[4][0], two, 2) == 16);
    CHECK(!memcmp((char *)place(4) + 2 * 4096, "0123456789", 10));
    CHECK(!memcmp((char *)place(4) + 5 * 4096, "abcdef", 6));
    return 0;
}

/* Never written to, so that nothing was there when it became managed. */
static void *fresh(void *)
{
    unsigned char *never = map(ROOM);
    ids[5] = gettid();
    CHECK(read(ends[5][0], never + PLACE, 100) == 16);
    CHECK(!memcmp(never + PLACE, "0123456789abcdef", 16));
    return 0;
}

static void *signals(void *)
{
    sigset_t wanted;
    siginfo_t *info = place(6);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    ids[6] = gettid();
    CHECK(sigwaitinfo(&wanted, info) == SIGUSR1);
    CHECK(info->si_pid == getpid());
    return 0;
}

static void *time_passes(void *)
{
    struct timespec *left = place(7);
    *left = (struct timespec){.tv_sec = 1};
    ids[7] = gettid();
    CHECK(!syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, left, left));
    return 0;
}

/* The thread sleeps, which it does nowhere but in its call. */
static int waits(pid_t id)
{
    char path[64], text[512] = "", *state;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return 1;
    CHECK(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    CHECK((state = strrchr(text, ')')));
    return state[2] == 'S';
}

int main(void)
{
    void *(*const all[])(void *) = {events, bytes, datagram, ready, pieces, fresh, signals, time_passes};
    enum { THREADS = LENGTH(all) };
    pthread_t threads[THREADS];
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(!sigprocmask(SIG_BLOCK, &blocked, 0));
    room = map(ROOM);
    memset(room, 1, ROOM);
    for (int i = 0; i < PAIRS; i++)
        CHECK(!socketpair(AF_UNIX, i == 2 ? SOCK_DGRAM : SOCK_STREAM, 0, ends[i]));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], 0, all[i], 0));
    for (int i = 0; i < THREADS; i++)
        wait_until(ids[i] && waits(ids[i]), "a thread waits in its call");
    /* What the calls need may stay, and no more. */
    send_away(room, ROOM, 64);
    for (int i = 0; i < PAIRS; i++)
        CHECK(write(ends[i][1], "0123456789abcdef", 16) == 16);
    CHECK(!kill(getpid(), SIGUSR1));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], 0));
    return 0;
}
