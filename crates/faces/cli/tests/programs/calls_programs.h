/* Programs: what is executed tells what it was given by how it ends. */
static long execute(struct call *c)
{
    pid_t child = fork();
    int status;
    if (!child) {
        const long *a = c->arguments;
        syscall(c->call, a[0], a[1], a[2], a[3], a[4]);
        _exit(errno);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}
static long executed(struct call *c, long *path)
{
    static const char script[] = "test \"$1-$ONE\" = argument-of-it && exit 33";
    *path = text(c, "path", "/bin/sh");
    long of[] = {text(c, "argument", "sh"), (long)"-c", (long)script, (long)"sh", text(c, "last", "argument"), 0};
    c->make = execute;
    return hide(c, PUT(c, "arguments", of), 8, 24);
}
static long environment(struct call *c)
{
    long of[] = {text(c, "variable", "ONE=of-it"), 0};
    return PUT(c, "environment", of);
}
ROW(execve)
{
    long p, a = executed(c, &p);
    CALL(c, SYS_execve, p, a, environment(c));
}
ROW(execveat)
{
    long p, a = executed(c, &p);
    CALL(c, SYS_execveat, AT_FDCWD, p, a, environment(c), 0);
}

/* One process traces another, which it has stopped. */
static pid_t stopped(void)
{
    int ready[2];
    char one;
    CHECK(!pipe2(ready, O_CLOEXEC));
    pid_t child = fork();
    if (!child) {
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    CHECK(read(ready[0], &one, 1) == 1);
    return child;
}
static long trace(struct call *c)
{
    int status;
    pid_t child = stopped();
    const long *a = c->arguments;
    CHECK(child > 0);
    if (ptrace(PTRACE_SEIZE, child, 0, 0) || ptrace(PTRACE_INTERRUPT, child, 0, 0))
        return -1;
    CHECK(waitpid(child, &status, 0) == child);
    long got = syscall(SYS_ptrace, a[0], child, a[2], a[3]);
    int why = errno;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    errno = why;
    return got;
}
ROW(ptrace_registers)
{
    CALL(c, SYS_ptrace, PTRACE_GETREGS, 0, 0,
         hide(c, out(c, "registers", sizeof(struct user_regs_struct)), 0, sizeof(struct user_regs_struct)));
    c->make = trace;
}
ROW(ptrace_register_set)
{
    struct iovec of = {(void *)hide(c, out(c, "registers", 216), 0, 216), 216};
    CALL(c, SYS_ptrace, PTRACE_GETREGSET, 0, 1, PUT(c, "vector", of));
    c->make = trace;
}
ROW(ptrace_signal)
{
    CALL(c, SYS_ptrace, PTRACE_GETSIGINFO, 0, 0, hide(c, out(c, "information", 128), 16, 8));
    c->make = trace;
}
ROW(ptrace_peek)
{
    CALL(c, SYS_ptrace, PTRACE_PEEKDATA, 0, (long)content, out(c, "word", 8));
    c->make = trace;
}
ROW(ptrace_mask)
{
    CALL(c, SYS_ptrace, 0x420a, 0, 8, out(c, "mask", 8));
    c->make = trace;
}
/* What the traced process has, as its tracer sees it. */
ROW(ptrace_peek_there)
{
    CALL(c, SYS_ptrace, PTRACE_PEEKDATA, 0, in(c, "memory", content, 8), (long)plain(8));
    c->make = trace;
}

/* The kernel's own way to do many calls. */
static void tell_ring(struct call *c) { close(c->kept[7]); }
ROW(io_uring_setup)
{
    unsigned of[30] = {0};
    c->is_fd = 1;
    CALL(c, SYS_io_uring_setup, 4, hide(c, PUT(c, "parameters", of), 0, 120));
    (void)tell_ring;
}
static int ring(void)
{
    unsigned of[30] = {0};
    return syscall(SYS_io_uring_setup, 4, of);
}
ROW(io_uring_register_buffers)
{
    struct iovec of = {(void *)in(c, "buffer", content, 8192), 8192};
    CALL(c, SYS_io_uring_register, ring(), 0, PUT(c, "vector", of), 1);
}
ROW(io_uring_register_files)
{
    int of[2] = {0, -1};
    CALL(c, SYS_io_uring_register, ring(), 2, PUT(c, "files", of), 2);
}
ROW(io_uring_enter)
{
    unsigned long none = 1 << 9;
    CALL(c, SYS_io_uring_enter, ring(), 0, 0, 1, PUT(c, "mask", none), 8);
}
ROW(io_setup) { CALL(c, SYS_io_setup, 4, hide(c, out(c, "context", 8), 0, 8)); }
static long context(void)
{
    unsigned long of = 0;
    /* Where there is no such call, the rows fail in the same way for each state. */
    syscall(SYS_io_setup, 4, &of);
    return of;
}
struct control {
    unsigned long data;
    unsigned key, flags;
    unsigned short operation, priority;
    unsigned fd;
    unsigned long buffer, bytes, offset, spare;
    unsigned more, event;
};
static void tell_event(struct call *c)
{
    struct {
        long data, at, result, more;
    } event = {0};
    struct timespec time = {5, 0};
    if (c->kept[7] != 1)
        return;
    long got = syscall(SYS_io_getevents, c->kept[1], 1, 1, &event, &time);
    say(c, " event %ld:%ld", got, event.result);
}
ROW(io_submit)
{
    struct control of = {.operation = 0, .fd = file(c), .buffer = out(c, "buffer", 3000), .bytes = 3000};
    long one = PUT(c, "control", of);
    c->kept[1] = context();
    CALL(c, SYS_io_submit, c->kept[1], 1, PUT(c, "list", one));
    c->after = tell_event;
}
ROW(io_cancel)
{
    struct control of = {.operation = 0};
    long i = PUT(c, "control", of);
    CALL(c, SYS_io_cancel, context(), i, out(c, "event", 32));
}
ROW(io_getevents)
{
    struct control of = {.operation = 0, .fd = file(c), .buffer = (long)content + 900000, .bytes = 3000};
    struct timespec time = {5, 0};
    struct control *one = plain(sizeof of);
    long at = context();
    *one = of;
    syscall(SYS_io_submit, at, 1, &one);
    long e = hide(c, out(c, "events", 64), 8, 8);
    CALL(c, SYS_io_getevents, at, 1, 2 - 1, e, PUT(c, "time", time));
}
ROW(io_pgetevents)
{
    struct control of = {.operation = 0, .fd = file(c), .buffer = (long)content + 900000, .bytes = 3000};
    struct timespec time = {5, 0};
    struct control *one = plain(sizeof of);
    unsigned long set = 1 << 9;
    long at = context();
    *one = of;
    syscall(SYS_io_submit, at, 1, &one);
    long e = hide(c, out(c, "events", 64), 8, 8), t = PUT(c, "time", time);
    long both[2] = {PUT(c, "mask", set), 8};
    CALL(c, SYS_io_pgetevents, at, 1, 1, e, t, PUT(c, "mask-and-size", both));
}
/* Requests to devices that lead to more memory. */
ROW(ioctl_interfaces)
{
    struct {
        long bytes, at;
    } of = {400, hide(c, out(c, "buffer", 400), 0, 400)};
    CALL(c, SYS_ioctl, socket(AF_INET, SOCK_DGRAM, 0), 0x8912, PUT(c, "configuration", of));
}
ROW(ioctl_ethtool)
{
    struct ifreq of;
    unsigned info[49] = {3};
    memset(&of, 0, sizeof of);
    strcpy(of.ifr_name, "lo");
    of.ifr_data = (void *)hide(c, PUT(c, "information", info), 4, 192);
    CALL(c, SYS_ioctl, socket(AF_INET, SOCK_DGRAM, 0), 0x8946, PUT(c, "request", of));
}
/* A userfaultfd of the program's own, on memory that Farpage does not manage. */
ROW(userfaultfd_api)
{
    unsigned long of[3] = {0xaa, 0, 0};
    CALL(c, SYS_ioctl, syscall(SYS_userfaultfd, O_CLOEXEC | 1), 0xc018aa3f, PUT(c, "api", of));
}
