/* Attributes of files, and what tells of events. */
#define XATTR "user.name-of-one"
static char *with_attribute(struct call *c)
{
    char *n = made_file(c);
    CHECK(!setxattr(n, XATTR, content, 200, 0));
    return n;
}
static void tell_attribute(struct call *c)
{
    unsigned char value[8000];
    ssize_t got = getxattr((char *)c->kept[0], XATTR, value, sizeof value);
    say(c, " attribute %zd:%08x", got, digest(2166136261, value, got > 0 ? got : 0));
}
static long of_attribute(struct call *c, char *name)
{
    c->kept[0] = (long)name;
    c->after = tell_attribute;
    return (long)name;
}
static int opened_attribute(struct call *c)
{
    return open((char *)of_attribute(c, with_attribute(c)), O_RDWR | O_CLOEXEC);
}
ROW(setxattr)
{
    char *n = made_file(c);
    of_attribute(c, n);
    CALL(c, SYS_setxattr, text(c, "path", n), text(c, "name", XATTR), in(c, "value", content, 300), 300, 0);
}
ROW(setxattr_long)
{
    char *n = made_file(c);
    of_attribute(c, n);
    CALL(c, SYS_setxattr, text(c, "path", n), text(c, "name", XATTR), in(c, "value", content, 3900), 3900, 0);
}
ROW(lsetxattr)
{
    char *n = made_file(c);
    of_attribute(c, n);
    CALL(c, SYS_lsetxattr, text(c, "path", n), text(c, "name", XATTR), in(c, "value", content, 300), 300, 0);
}
ROW(fsetxattr)
{
    CALL(c, SYS_fsetxattr, opened_attribute(c), text(c, "name", XATTR), in(c, "value", content, 300), 300, 0);
}
ROW(getxattr)
{
    CALL(c, SYS_getxattr, text(c, "path", with_attribute(c)), text(c, "name", XATTR), out(c, "value", 300), 300);
}
ROW(lgetxattr)
{
    CALL(c, SYS_lgetxattr, text(c, "path", with_attribute(c)), text(c, "name", XATTR), out(c, "value", 300), 300);
}
ROW(fgetxattr) { CALL(c, SYS_fgetxattr, opened_attribute(c), text(c, "name", XATTR), out(c, "value", 300), 300); }
ROW(listxattr) { CALL(c, SYS_listxattr, text(c, "path", with_attribute(c)), out(c, "list", 300), 300); }
ROW(llistxattr) { CALL(c, SYS_llistxattr, text(c, "path", with_attribute(c)), out(c, "list", 300), 300); }
ROW(flistxattr) { CALL(c, SYS_flistxattr, opened_attribute(c), out(c, "list", 300), 300); }
ROW(removexattr)
{
    char *n = with_attribute(c);
    of_attribute(c, n);
    CALL(c, SYS_removexattr, text(c, "path", n), text(c, "name", XATTR));
}
ROW(lremovexattr)
{
    char *n = with_attribute(c);
    of_attribute(c, n);
    CALL(c, SYS_lremovexattr, text(c, "path", n), text(c, "name", XATTR));
}
ROW(fremovexattr) { CALL(c, SYS_fremovexattr, opened_attribute(c), text(c, "name", XATTR)); }
struct attribute_args {
    uint64_t value;
    uint32_t size, flags;
};
ROW(setxattrat)
{
    char *n = made_file(c);
    of_attribute(c, n);
    struct attribute_args of = {in(c, "value", content, 300), 300, 0};
    CALL(c, 463, AT_FDCWD, text(c, "path", n), 0, text(c, "name", XATTR), PUT(c, "arguments", of), sizeof of);
}
ROW(getxattrat)
{
    char *n = with_attribute(c);
    struct attribute_args of = {out(c, "value", 300), 300, 0};
    CALL(c, 464, AT_FDCWD, text(c, "path", n), 0, text(c, "name", XATTR), PUT(c, "arguments", of), sizeof of);
}
ROW(listxattrat) { CALL(c, 465, AT_FDCWD, text(c, "path", with_attribute(c)), 0, out(c, "list", 300), 300); }
ROW(removexattrat)
{
    char *n = with_attribute(c);
    of_attribute(c, n);
    CALL(c, 466, AT_FDCWD, text(c, "path", n), 0, text(c, "name", XATTR));
}
/* A list of more than a page. */
static char *with_many(struct call *c)
{
    char *n = own(c, "/dev/shm/many");
    char name[256];
    int fd = open(n, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    for (int i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "user.%0200d", i);
        if (fsetxattr(fd, name, "x", 1, 0))
            break;
    }
    unlink(n);
    c->kept[0] = fd;
    return n;
}
ROW(flistxattr_long)
{
    with_many(c);
    CALL(c, SYS_flistxattr, c->kept[0], hide(c, out(c, "list", 20000), 0, 20000), 20000);
}
static int epoll_of(struct call *c)
{
    struct epoll_event of[2] = {{EPOLLIN, {.u64 = 0x1234567890}}, {EPOLLOUT, {.u64 = 77}}};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    pipe_with(c, 5);
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, c->kept[0], &of[0]) &&
          !epoll_ctl(epoll, EPOLL_CTL_ADD, c->kept[1], &of[1]));
    return epoll;
}
ROW(epoll_wait) { CALL(c, SYS_epoll_wait, epoll_of(c), out(c, "events", 120), 10, 1000); }
ROW(epoll_ctl)
{
    struct epoll_event of = {EPOLLIN, {.u64 = 3}};
    pipe_with(c, 1);
    CALL(c, SYS_epoll_ctl, epoll_create1(EPOLL_CLOEXEC), EPOLL_CTL_ADD, c->kept[0], PUT(c, "event", of));
}
ROW(epoll_pwait)
{
    unsigned long set = 1 << 9;
    CALL(c, SYS_epoll_pwait, epoll_of(c), out(c, "events", 120), 10, 1000, PUT(c, "mask", set), 8);
}
ROW(epoll_pwait_without_mask) { CALL(c, SYS_epoll_pwait, epoll_of(c), out(c, "events", 120), 10, 1000, 0, 8); }
ROW(epoll_pwait2)
{
    unsigned long set = 1 << 9;
    struct timespec t = {1, 0};
    CALL(c, SYS_epoll_pwait2, epoll_of(c), out(c, "events", 120), 10, PUT(c, "time", t), PUT(c, "mask", set), 8);
}
ROW(epoll_pwait2_one)
{
    struct timespec t = {1, 0};
    CALL(c, SYS_epoll_pwait2, epoll_of(c), out(c, "events", 12), 1, PUT(c, "time", t), 0, 8);
}
ROW(epoll_pwait2_in_vain)
{
    struct timespec t = {0, 2000000};
    CALL(c, SYS_epoll_pwait2, epoll_create1(EPOLL_CLOEXEC), out(c, "events", 120), 10, PUT(c, "time", t), 0, 8);
}
static int inotify(struct call *c)
{
    static int one = -1;
    (void)c;
    if (one < 0)
        one = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return one;
}
ROW(inotify_add_watch) { CALL(c, SYS_inotify_add_watch, inotify(c), text(c, "path", "."), IN_CREATE); }
static int fanotify(struct call *c)
{
    static int one = -2;
    (void)c;
    if (one == -2)
        one = fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_REPORT_FID, O_RDONLY);
    return one;
}
ROW(fanotify_mark)
{
    char *n = made_file(c);
    CALL(c, SYS_fanotify_mark, fanotify(c), FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, text(c, "path", n));
}
