/* Calls that read, write and wait. */
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/inotify.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <termios.h>
#include <utime.h>

#define BYTES 5000
#define NAME_BYTES 32

/* A name of this case's own, in memory that stays. */
static char *own(struct call *c, const char *what)
{
    char *name = plain(NAME_BYTES);
    snprintf(name, NAME_BYTES, "%s%06d", what, c->number + 1);
    return name;
}

static int file_of(const char *name, size_t bytes)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    CHECK(fd >= 0 && write(fd, content, bytes) == (ssize_t)bytes && !lseek(fd, 0, SEEK_SET));
    return fd;
}

static int file(struct call *c) { return c->kept[0] = file_of(own(c, "file"), BYTES); }

/* What the file of the row holds afterwards, and where it stands. */
static void tell_file(struct call *c)
{
    static unsigned char seen[1 << 20];
    ssize_t got = pread(c->kept[0], seen, sizeof seen, 0);
    say(c, " holds %zd:%08x at %ld", got, digest(2166136261, seen, got > 0 ? got : 0),
        (long)lseek(c->kept[0], 0, SEEK_CUR));
}

/* What a name is afterwards. */
static void tell_name(struct call *c, const char *name)
{
    struct stat status;
    char to[64] = "";
    if (lstat(name, &status)) {
        say(c, " %.4s:none", name);
        return;
    }
    if (S_ISLNK(status.st_mode) && readlink(name, to, 63) < 0)
        to[0] = '?';
    say(c, " %.4s:%o,%d,%ld%s%s", name, status.st_mode, (int)status.st_nlink, (long)status.st_size, to[0] ? ">" : "",
        to);
}

static void tell_names(struct call *c)
{
    for (int i = 0; i < 2; i++)
        if (c->kept[i])
            tell_name(c, (const char *)c->kept[i]);
}

static void named(struct call *c, const char *first, const char *second)
{
    c->kept[0] = (long)first;
    c->kept[1] = (long)second;
    c->after = tell_names;
}

static char *made_file(struct call *c)
{
    char *name = own(c, "file");
    close(file_of(name, 100));
    return name;
}

#define STAT(call, at) hide(call, at, 0, 144)

/* Of a file's status the times, the inode and the device are not looked at. */
static long status_area(struct call *c)
{
    long at = out(c, "status", sizeof(struct stat));
    mask(c, 0, 16);
    mask(c, offsetof(struct stat, st_atim), 48);
    return at;
}

ROW(read)
{
    CALL(c, SYS_read, file(c), out(c, "buffer", 100), 100);
    c->after = tell_file;
}
ROW(read_long)
{
    CALL(c, SYS_read, file(c), out(c, "buffer", 40000), 4900);
    c->after = tell_file;
}
ROW(read_whole)
{
    c->kept[0] = file_of(own(c, "file"), 400000);
    CALL(c, SYS_read, c->kept[0], out(c, "buffer", 400000), 400000);
    c->after = tell_file;
}
static int pipe_with(struct call *c, size_t bytes)
{
    int both[2];
    CHECK(!pipe2(both, O_NONBLOCK | O_CLOEXEC) && write(both[1], content, bytes) == (ssize_t)bytes);
    c->kept[0] = both[0];
    c->kept[1] = both[1];
    return both[0];
}
static void tell_pipe(struct call *c)
{
    unsigned char seen[9000];
    ssize_t got = read(c->kept[0], seen, sizeof seen);
    say(c, " pipe %zd:%08x", got, digest(2166136261, seen, got > 0 ? got : 0));
}
ROW(read_pipe)
{
    CALL(c, SYS_read, pipe_with(c, 6000), out(c, "buffer", 6000), 6000);
    c->after = tell_pipe;
}
ROW(write)
{
    CALL(c, SYS_write, file(c), in(c, "buffer", content + 7, 3000), 3000);
    c->after = tell_file;
}
ROW(write_pipe)
{
    pipe_with(c, 0);
    CALL(c, SYS_write, c->kept[1], in(c, "buffer", content + 7, 6000), 6000);
    c->after = tell_pipe;
}
ROW(open)
{
    c->is_fd = 1;
    CALL(c, SYS_open, text(c, "path", made_file(c)), O_RDONLY);
}
ROW(open_made)
{
    char *n = own(c, "made");
    c->is_fd = 1;
    CALL(c, SYS_open, text(c, "path", n), O_RDWR | O_CREAT, 0640);
    named(c, n, 0);
}
ROW(stat) { CALL(c, SYS_stat, text(c, "path", made_file(c)), status_area(c)); }
ROW(fstat) { CALL(c, SYS_fstat, file(c), status_area(c)); }
ROW(lstat) { CALL(c, SYS_lstat, text(c, "path", made_file(c)), status_area(c)); }
/* Descriptors that a call's memory names have to be the same in all runs. */
static void low_pipe(struct call *c, size_t bytes)
{
    pipe_with(c, bytes);
    for (int i = 0; i < 2; i++)
        CHECK(dup2(c->kept[i], 900 + i) == 900 + i);
}
ROW(poll)
{
    struct pollfd of[3] = {{900, POLLIN, 0}, {901, POLLOUT, 0}, {-1, POLLIN, 9}};
    low_pipe(c, 5);
    CALL(c, SYS_poll, PUT(c, "descriptors", of), 3, 1000);
}
ROW(poll_many)
{
    struct pollfd of[1000];
    low_pipe(c, 5);
    for (int i = 0; i < 1000; i++)
        of[i] = (struct pollfd){i % 2 ? 900 : -1, POLLIN, 7};
    CALL(c, SYS_poll, PUT(c, "descriptors", of), 1000, 1000);
}
ROW(poll_in_vain)
{
    struct pollfd of = {900, POLLIN, 5};
    low_pipe(c, 0);
    CALL(c, SYS_poll, PUT(c, "descriptors", of), 1, 5);
}
ROW(ioctl_winsize)
{
    struct winsize size = {20, 30, 4, 5};
    CALL(c, SYS_ioctl, posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), TIOCSWINSZ, PUT(c, "size", size));
    c->kept[0] = c->arguments[0];
}
ROW(ioctl_termios) { CALL(c, SYS_ioctl, posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), TCGETS, out(c, "termios", 36)); }
ROW(ioctl_set_termios)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    unsigned char kernel[60] = {0};
    CHECK(!ioctl(terminal, TCGETS, kernel));
    CALL(c, SYS_ioctl, terminal, TCSETS, in(c, "termios", kernel, 36));
}
ROW(ioctl_readable) { CALL(c, SYS_ioctl, pipe_with(c, 77), FIONREAD, out(c, "count", 4)); }
ROW(ioctl_nonblocking)
{
    int one = 1;
    CALL(c, SYS_ioctl, pipe_with(c, 7), FIONBIO, PUT(c, "flag", one));
}
ROW(ioctl_flags) { CALL(c, SYS_ioctl, file(c), FS_IOC_GETFLAGS, out(c, "flags", 8)); }
ROW(ioctl_extents)
{
    struct {
        struct fiemap head;
        struct fiemap_extent extents[4];
    } map = {.head = {.fm_length = ~0ull, .fm_flags = FIEMAP_FLAG_SYNC, .fm_extent_count = 4}};
    CALL(c, SYS_ioctl, file(c), FS_IOC_FIEMAP, PUT(c, "map", map));
    mask(c, sizeof map.head + 8, 8);
}
ROW(ioctl_clone_range)
{
    struct file_clone_range r = {file(c), 0, 0, 0};
    CALL(c, SYS_ioctl, file_of(own(c, "to"), 0), FICLONERANGE, PUT(c, "range", r));
}
ROW(pread64) { CALL(c, SYS_pread64, file(c), out(c, "buffer", 3000), 3000, 100); }
ROW(pwrite64)
{
    CALL(c, SYS_pwrite64, file(c), in(c, "buffer", content + 9, 3000), 3000, 1000);
    c->after = tell_file;
}
static long pieces(struct call *c, int write)
{
    struct iovec of[3] = {{0, 700}, {0, 0}, {0, 900}};
    static const char *const names[] = {"first", 0, "last"};
    for (int i = 0; i < 3; i += 2)
        of[i].iov_base =
            (void *)(write ? in(c, names[i], content + 11 * i, of[i].iov_len) : out(c, names[i], of[i].iov_len));
    return PUT(c, "vector", of);
}
static long many_pieces(struct call *c, int write)
{
    struct iovec of[1000];
    for (int i = 0; i < 1000; i++)
        of[i] = (struct iovec){content + (write ? i : 800000), 3};
    return PUT(c, "vector", of);
}
ROW(readv)
{
    CALL(c, SYS_readv, file(c), pieces(c, 0), 3);
    c->after = tell_file;
}
ROW(readv_many)
{
    CALL(c, SYS_readv, file(c), many_pieces(c, 0), 1000);
    c->after = tell_file;
}
ROW(readv_pipe)
{
    CALL(c, SYS_readv, pipe_with(c, 1500), pieces(c, 0), 3);
    c->after = tell_pipe;
}
ROW(writev)
{
    CALL(c, SYS_writev, file(c), pieces(c, 1), 3);
    c->after = tell_file;
}
ROW(writev_many)
{
    CALL(c, SYS_writev, file(c), many_pieces(c, 1), 1000);
    c->after = tell_file;
}
ROW(writev_pipe)
{
    pipe_with(c, 0);
    CALL(c, SYS_writev, c->kept[1], pieces(c, 1), 3);
    c->after = tell_pipe;
}
ROW(access) { CALL(c, SYS_access, text(c, "path", made_file(c)), R_OK); }
static void close_two(struct call *c)
{
    int *got = (int *)c->areas[0].at;
    if (c->kept[7] == 0) {
        CHECK(write(got[1], "x", 1) == 1);
        close(got[0]);
        close(got[1]);
    }
}
ROW(pipe)
{
    CALL(c, SYS_pipe, hide(c, out(c, "descriptors", 8), 0, 8));
    c->after = close_two;
}
ROW(pipe2)
{
    CALL(c, SYS_pipe2, hide(c, out(c, "descriptors", 8), 0, 8), O_CLOEXEC);
    c->after = close_two;
}
static long set_of(struct call *c, const char *name, int fd, int bytes)
{
    unsigned char set[1024 + 8] = {0};
    if (fd >= 0)
        set[fd / 8] = 1 << fd % 8;
    return in(c, name, set, bytes);
}
ROW(select)
{
    struct timeval time = {1, 0};
    low_pipe(c, 5);
    long r = set_of(c, "read", 900, 128), w = set_of(c, "write", 901, 128), e = set_of(c, "except", 900, 128);
    CALL(c, SYS_select, 910, r, w, e, hide(c, PUT(c, "time", time), 0, 16));
}
ROW(select_in_vain)
{
    struct timeval time = {0, 3000};
    low_pipe(c, 0);
    long r = set_of(c, "read", -1, 128);
    CALL(c, SYS_select, 910, r, 0, 0, hide(c, PUT(c, "time", time), 0, 16));
}
ROW(pselect6)
{
    struct timespec time = {1, 0};
    unsigned long none = 1 << 9;
    low_pipe(c, 5);
    long r = set_of(c, "read", 900, 128), w = set_of(c, "write", 901, 128), e = set_of(c, "except", 900, 128);
    long t = hide(c, PUT(c, "time", time), 0, 16), m = PUT(c, "mask", none);
    long both[2] = {m, 8};
    CALL(c, SYS_pselect6, 910, r, w, e, t, PUT(c, "mask-and-size", both));
}
ROW(pselect6_without_mask)
{
    struct timespec time = {1, 0};
    low_pipe(c, 5);
    long r = set_of(c, "read", 900, 128);
    long both[2] = {0, 8};
    CALL(c, SYS_pselect6, 910, r, 0, 0, hide(c, PUT(c, "time", time), 0, 16), PUT(c, "mask-and-size", both));
}
ROW(ppoll)
{
    struct timespec time = {1, 0};
    unsigned long none = 1 << 9;
    struct pollfd of[3] = {{900, POLLIN, 0}, {901, POLLOUT, 0}, {-1, POLLIN, 9}};
    low_pipe(c, 5);
    CALL(c, SYS_ppoll, PUT(c, "descriptors", of), 3, hide(c, PUT(c, "time", time), 0, 16), PUT(c, "mask", none), 8);
}
ROW(ppoll_without_mask)
{
    struct timespec time = {0, 2000000};
    struct pollfd of = {900, POLLIN, 4};
    low_pipe(c, 0);
    CALL(c, SYS_ppoll, PUT(c, "descriptors", of), 1, hide(c, PUT(c, "time", time), 0, 16), 0, 8);
}
