/* System calls whose buffers are large memory, mostly not resident: read and write whole, readv and
 * writev, sendmsg and recvmsg, O_DIRECT, process_vm_readv, a pipe. A regular file is read whole by
 * one call, as on bare Linux: short counts are printed and so show as a difference. */
#include "job.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum { SLICES = 64 };

static char *from, *to;
static size_t pages, bytes;

static void fresh(uint64_t gen)
{
    for (size_t i = 0; i < pages; i++)
        page_fill(from + i * PAGE, i + gen);
    memset(to, (int)gen, bytes);
}

static void same(const char *what, ssize_t wrote, ssize_t got)
{
    printf("%s wrote %s read %s %s %016llx\n", what, wrote == (ssize_t)bytes ? "all" : "SHORT",
           got == (ssize_t)bytes ? "all" : "SHORT", memcmp(from, to, bytes) ? "DIFFERENT" : "same",
           (unsigned long long)digest(to, bytes, 0));
}

static void slices(char *base, struct iovec *iov)
{
    size_t each = pages / SLICES * PAGE;
    for (size_t s = 0; s < SLICES; s++) /* backwards, so that neighbours are not contiguous */
        iov[s] = (struct iovec){base + (SLICES - 1 - s) * each,
                                s == 0 ? bytes - (SLICES - 1) * each : each};
}

static void plain(int fd)
{
    fresh(1);
    ssize_t wrote = pwrite(fd, from, bytes, 0);
    same("pread", wrote, pread(fd, to, bytes, 0));
    fresh(2);
    struct iovec out[SLICES], in[SLICES];
    slices(from, out);
    slices(to, in);
    wrote = pwritev(fd, out, SLICES, 0);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    same("readv", wrote, readv(fd, in, SLICES));
    fresh(3);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    wrote = writev(fd, out, SLICES);
    same("preadv2", wrote, preadv2(fd, in, SLICES, 0, 0));
}

static void direct(void)
{
    fresh(4);
    int fd = open("direct", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (fd < 0 || pwrite(fd, from, PAGE, 0) != (ssize_t)PAGE) /* a file system without it */
        fd = open("direct", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0);
    ssize_t wrote = pwrite(fd, from, bytes, 0);
    same("O_DIRECT", wrote, pread(fd, to, bytes, 0));
    close(fd);
    unlink("direct");
}

static void by_process_vm(void)
{
    fresh(5);
    struct iovec l = {to, bytes}, r = {from, bytes};
    same("process_vm_readv", (ssize_t)bytes, process_vm_readv(getpid(), &l, 1, &r, 1, 0));
}

/* The peer sends `from` in messages of several slices; streams may cut, so the loops complete. */
static void messages(int kind)
{
    int sv[2];
    fresh(6 + (uint64_t)kind);
    MUST(kind ? pipe(sv) == 0 : socketpair(AF_UNIX, SOCK_STREAM, 0, sv) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        for (size_t done = 0; done < bytes;) {
            size_t half = (bytes - done) / 2;
            struct iovec iov[2] = {{from + done, half}, {from + done + half, bytes - done - half}};
            struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
            ssize_t n = kind ? writev(sv[1], iov, 2) : sendmsg(sv[1], &msg, 0);
            if (n <= 0)
                DIE("send");
            done += (size_t)n;
        }
        _exit(0);
    }
    close(sv[1]);
    size_t done = 0;
    while (done < bytes) {
        size_t half = (bytes - done) / 2;
        struct iovec iov[2] = {{to + done, half}, {to + done + half, bytes - done - half}};
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
        ssize_t n = kind ? readv(sv[0], iov, 2) : recvmsg(sv[0], &msg, 0);
        if (n <= 0)
            DIE("receive at %zu of %zu", done, bytes);
        done += (size_t)n;
    }
    wait_ok(pid);
    close(sv[0]);
    same(kind ? "pipe" : "sendmsg", (ssize_t)bytes, (ssize_t)done);
}

int main(int argc, char **argv)
{
    pages = job_pages(argc, argv) / 2;
    bytes = pages * PAGE;
    from = map_pages(pages);
    to = map_pages(pages);
    int fd = open("plain", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0);
    plain(fd);
    close(fd);
    unlink("plain");
    direct();
    by_process_vm();
    messages(0);
    messages(1);
    struct stat st; /* small results written by the kernel into a page that is out */
    for (size_t i = 0; i + 1 < pages; i += pages / 16 + 1)
        MUST(stat("/", (struct stat *)(to + i * PAGE)) == 0 && stat("/", &st) == 0 &&
             ((struct stat *)(to + i * PAGE))->st_ino == st.st_ino);
    puts("stat same");
    return 0;
}
