/* Calls on sockets. */
#include <linux/filter.h>
#include <linux/errqueue.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

/* A socket that listens, and where. */
static int listening(struct sockaddr_in *at)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof *at;
    *at = loopback(0);
    CHECK(fd >= 0 && !bind(fd, (void *)at, bytes) && !listen(fd, 5) && !getsockname(fd, (void *)at, &bytes));
    return fd;
}

static int connected(struct call *c)
{
    struct sockaddr_in at;
    int listens = listening(&at), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!connect(fd, (void *)&at, sizeof at));
    c->kept[1] = fd;
    return c->kept[0] = listens;
}

static void pair(struct call *c, int kind)
{
    int both[2];
    CHECK(!socketpair(AF_UNIX, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both));
    c->kept[0] = both[0];
    c->kept[1] = both[1];
}

ROW(connect)
{
    struct sockaddr_in at;
    listening(&at);
    CALL(c, SYS_connect, socket(AF_INET, SOCK_STREAM, 0), hide(c, PUT(c, "address", at), 2, 2), sizeof at);
}
ROW(connect_unix)
{
    struct sockaddr_un at = {AF_UNIX, "no/such/socket"};
    CALL(c, SYS_connect, socket(AF_UNIX, SOCK_STREAM, 0), PUT(c, "address", at), sizeof at);
}
static void accept_with(struct call *c, long number)
{
    int bytes = 16, fd = connected(c);
    long address = hide(c, out(c, "address", 16), 2, 2), length = PUT(c, "length", bytes);
    c->is_fd = 1;
    CALL(c, number, fd, address, length, 0);
}
ROW(accept) { accept_with(c, SYS_accept); }
ROW(accept4) { accept_with(c, SYS_accept4); }
ROW(sendto)
{
    pair(c, SOCK_DGRAM);
    CALL(c, SYS_sendto, c->kept[1], in(c, "buffer", content, 3000), 3000, 0, 0, 0);
    c->after = tell_pipe;
}
ROW(sendto_stream)
{
    pair(c, SOCK_STREAM);
    CALL(c, SYS_sendto, c->kept[1], in(c, "buffer", content, 3000), 3000, 0, 0, 0);
    c->after = tell_pipe;
}
static int datagram(struct sockaddr_in *at)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof *at;
    *at = loopback(0);
    CHECK(fd >= 0 && !bind(fd, (void *)at, bytes) && !getsockname(fd, (void *)at, &bytes));
    return fd;
}
ROW(sendto_address)
{
    struct sockaddr_in at, own_at;
    c->kept[0] = datagram(&at);
    c->kept[1] = datagram(&own_at);
    long buffer = in(c, "buffer", content, 3000);
    CALL(c, SYS_sendto, c->kept[1], buffer, 3000, 0, hide(c, PUT(c, "address", at), 2, 2), sizeof at);
    c->after = tell_pipe;
}
static void sent(struct call *c)
{
    struct sockaddr_in at, own_at;
    c->kept[0] = datagram(&at);
    c->kept[1] = datagram(&own_at);
    CHECK(sendto(c->kept[1], content, 3000, 0, (void *)&at, sizeof at) == 3000);
}
ROW(recvfrom)
{
    int bytes = 16;
    sent(c);
    long buffer = out(c, "buffer", 4000), address = hide(c, out(c, "address", 16), 2, 2),
         length = PUT(c, "length", bytes);
    CALL(c, SYS_recvfrom, c->kept[0], buffer, 4000, 0, address, length);
}
ROW(recvfrom_stream)
{
    pair(c, SOCK_STREAM);
    CHECK(write(c->kept[1], content, 3000) == 3000);
    CALL(c, SYS_recvfrom, c->kept[0], out(c, "buffer", 4000), 4000, 0, 0, 0);
}
/* A message of two pieces, with an address and a descriptor beside it. */
static struct msghdr message(struct call *c, int write)
{
    static const char *const names[] = {"first", "last"};
    struct iovec of[2] = {{0, 700}, {0, 900}};
    struct msghdr message = {.msg_iovlen = 2};
    for (int i = 0; i < 2; i++)
        of[i].iov_base =
            (void *)(write ? in(c, names[i], content + 11 * i, of[i].iov_len) : out(c, names[i], of[i].iov_len));
    message.msg_iov = (void *)PUT(c, "vector", of);
    return message;
}
/* What lies between its fields has no value. */
static long put_message(struct call *c, void *of, size_t size)
{
    long at = in(c, "message", of, size);
    for (size_t i = 0; i < size; i += sizeof(struct mmsghdr)) {
        mask(c, i + 12, 4);
        mask(c, i + 52, 4);
        if (size > sizeof(struct msghdr))
            mask(c, i + 60, 4);
    }
    return at;
}
static void with_descriptor(struct call *c, struct msghdr *message, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct msghdr own = {.msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&own);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    message->msg_control =
        (void *)(fd >= 0 ? in(c, "control", control, sizeof control) : out(c, "control", sizeof control));
    mask(c, CMSG_LEN(0), 4);
    message->msg_controllen = sizeof control;
}
ROW(sendmsg)
{
    pair(c, SOCK_STREAM);
    struct msghdr of = message(c, 1);
    with_descriptor(c, &of, open("/dev/null", O_RDONLY));
    CALL(c, SYS_sendmsg, c->kept[1], put_message(c, &of, sizeof of), 0);
    c->after = tell_pipe;
}
ROW(sendmsg_address)
{
    struct sockaddr_in at, own_at;
    c->kept[0] = datagram(&at);
    c->kept[1] = datagram(&own_at);
    struct msghdr of = message(c, 1);
    of.msg_name = (void *)hide(c, PUT(c, "address", at), 2, 2);
    of.msg_namelen = sizeof at;
    CALL(c, SYS_sendmsg, c->kept[1], put_message(c, &of, sizeof of), 0);
    c->after = tell_pipe;
}
static void send_one(struct call *c)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec of = {content, 1400};
    struct msghdr own = {.msg_iov = &of, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&own);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    CHECK(sendmsg(c->kept[1], &own, 0) == 1400);
    close(fd);
}
ROW(recvmsg)
{
    pair(c, SOCK_STREAM);
    send_one(c);
    struct msghdr of = message(c, 0);
    with_descriptor(c, &of, -1);
    CALL(c, SYS_recvmsg, c->kept[0], put_message(c, &of, sizeof of), MSG_CMSG_CLOEXEC);
}
ROW(recvmsg_address)
{
    sent(c);
    struct msghdr of = message(c, 0);
    of.msg_name = (void *)hide(c, out(c, "address", 16), 2, 2);
    of.msg_namelen = 16;
    CALL(c, SYS_recvmsg, c->kept[0], put_message(c, &of, sizeof of), 0);
}
ROW(sendmmsg)
{
    pair(c, SOCK_DGRAM);
    struct mmsghdr of[2] = {{.msg_hdr = message(c, 1)}, {.msg_hdr = message(c, 1)}};
    CALL(c, SYS_sendmmsg, c->kept[1], put_message(c, of, sizeof of), 2, 0);
    c->after = tell_pipe;
}
ROW(recvmmsg)
{
    struct timespec time = {1, 0};
    pair(c, SOCK_DGRAM);
    send_one(c);
    send_one(c);
    struct mmsghdr of[2] = {{.msg_hdr = message(c, 0)}, {.msg_hdr = message(c, 0)}};
    long messages = put_message(c, of, sizeof of);
    CALL(c, SYS_recvmmsg, c->kept[0], messages, 2, 0, hide(c, PUT(c, "time", time), 0, 16));
}
ROW(sendmsg_copyless)
{
    struct sockaddr_in at, own_at;
    int one = 1;
    c->kept[0] = datagram(&at);
    c->kept[1] = datagram(&own_at);
    CHECK(!connect(c->kept[1], (void *)&at, sizeof at) && !setsockopt(c->kept[1], SOL_SOCKET, SO_ZEROCOPY, &one, 4));
    struct msghdr of = message(c, 1);
    CALL(c, SYS_sendmsg, c->kept[1], put_message(c, &of, sizeof of), MSG_ZEROCOPY);
    c->after = tell_pipe;
}
ROW(bind)
{
    struct sockaddr_in at = loopback(0);
    CALL(c, SYS_bind, socket(AF_INET, SOCK_STREAM, 0), PUT(c, "address", at), sizeof at);
}
ROW(bind_unix)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, own(c, "sock"));
    CALL(c, SYS_bind, socket(AF_UNIX, SOCK_STREAM, 0), PUT(c, "address", at), sizeof at);
}
static void address_of(struct call *c, long number, int fd)
{
    int bytes = 16;
    long address = hide(c, out(c, "address", 16), 2, 2);
    CALL(c, number, fd, address, PUT(c, "length", bytes));
}
ROW(getsockname)
{
    struct sockaddr_in at;
    address_of(c, SYS_getsockname, listening(&at));
}
ROW(getpeername)
{
    connected(c);
    address_of(c, SYS_getpeername, c->kept[1]);
}
ROW(socketpair)
{
    CALL(c, SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, hide(c, out(c, "descriptors", 8), 0, 8));
    c->after = close_two;
}
ROW(setsockopt)
{
    int bytes = 30000;
    CALL(c, SYS_setsockopt, socket(AF_INET, SOCK_STREAM, 0), SOL_SOCKET, SO_SNDBUF, PUT(c, "value", bytes), 4);
}
ROW(setsockopt_filter)
{
    struct sock_filter all = {BPF_RET, 0, 0, -1}, filter[600];
    for (int i = 0; i < 600; i++)
        filter[i] = all;
    long program[2] = {600, PUT(c, "filter", filter)};
    CALL(c, SYS_setsockopt, socket(AF_INET, SOCK_DGRAM, 0), SOL_SOCKET, SO_ATTACH_FILTER, PUT(c, "program", program),
         sizeof program);
}
ROW(getsockopt)
{
    int bytes = 4;
    long v = out(c, "value", 4);
    CALL(c, SYS_getsockopt, socket(AF_INET, SOCK_STREAM, 0), SOL_SOCKET, SO_TYPE, v, PUT(c, "length", bytes));
}
ROW(getsockopt_info)
{
    int bytes = 232;
    struct sockaddr_in at;
    long v = hide(c, out(c, "value", 300), 0, 232);
    CALL(c, SYS_getsockopt, listening(&at), IPPROTO_TCP, TCP_INFO, v, PUT(c, "length", bytes));
}
ROW(getsockopt_filter)
{
    struct sock_filter all = {BPF_RET, 0, 0, -1}, filter[1200];
    int fd = socket(AF_INET, SOCK_DGRAM, 0), count = 1200;
    for (int i = 0; i < 1200; i++)
        filter[i] = all;
    struct sock_fprog program = {1200, filter};
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    long v = out(c, "filter", sizeof filter);
    CALL(c, SYS_getsockopt, fd, SOL_SOCKET, SO_GET_FILTER, v, PUT(c, "length", count));
}
