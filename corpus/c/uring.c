/* io_uring on large buffers: plain, vectored and registered. Where the kernel or Farpage refuses
 * io_uring at set-up, the program does what programs do: it falls back to plain calls. */
#include "job.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { ENTRIES = 8 };
static int ring = -1;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

static void open_ring(void)
{
    struct io_uring_params p = {0};
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (ring < 0)
        return;
    size_t sq_len = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq_len = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    size_t len = sq_len > cq_len ? sq_len : cq_len;
    MUST(p.features & IORING_FEAT_SINGLE_MMAP);
    char *r = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    sqes = mmap(NULL, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                IORING_OFF_SQES);
    MUST(r != MAP_FAILED && (void *)sqes != MAP_FAILED);
    sq_tail = (unsigned *)(r + p.sq_off.tail);
    sq_mask = (unsigned *)(r + p.sq_off.ring_mask);
    sq_array = (unsigned *)(r + p.sq_off.array);
    cq_head = (unsigned *)(r + p.cq_off.head);
    cq_tail = (unsigned *)(r + p.cq_off.tail);
    cq_mask = (unsigned *)(r + p.cq_off.ring_mask);
    cqes = (struct io_uring_cqe *)(r + p.cq_off.cqes);
}

static ssize_t one(int op, int fd, void *addr, unsigned len, uint64_t off)
{
    unsigned tail = *sq_tail, at = tail & *sq_mask;
    sqes[at] = (struct io_uring_sqe){.opcode = (uint8_t)op, .fd = fd, .off = off,
                                     .addr = (uintptr_t)addr, .len = len};
    sq_array[at] = at;
    atomic_store_explicit((_Atomic unsigned *)sq_tail, tail + 1, memory_order_release);
    long n;
    do
        n = syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    while (n < 0 && errno == EINTR);
    MUST(n == 1);
    unsigned head = *cq_head;
    MUST(head != atomic_load_explicit((_Atomic unsigned *)cq_tail, memory_order_acquire));
    ssize_t res = cqes[head & *cq_mask].res;
    atomic_store_explicit((_Atomic unsigned *)cq_head, head + 1, memory_order_release);
    return res;
}

/* Moves `len` bytes at a file's `off`; completes what comes back short, as liburing users do. */
static void transfer(int write_it, int vectored, int fixed, int fd, char *at, size_t len, off_t off)
{
    while (len > 0) {
        ssize_t n;
        struct iovec iov = {at, len};
        if (ring < 0)
            n = write_it ? pwrite(fd, at, len, off) : pread(fd, at, len, off);
        else if (vectored)
            n = one(write_it ? IORING_OP_WRITEV : IORING_OP_READV, fd, &iov, 1, (uint64_t)off);
        else
            n = one(write_it ? (fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE)
                             : (fixed ? IORING_OP_READ_FIXED : IORING_OP_READ),
                    fd, at, (unsigned)len, (uint64_t)off);
        if (n <= 0)
            DIE("transfer: result %zd", n);
        at += n, len -= (size_t)n, off += n;
    }
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv) / 2, bytes = pages * PAGE, chunk = 4 << 20;
    char *from = map_pages(pages), *to = map_pages(pages);
    open_ring();
    int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0);
    for (int mode = 0; mode < 3; mode++) {
        struct iovec reg = {from, chunk};
        int fixed = mode == 2 && ring >= 0 &&
                    syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &reg, 1) == 0;
        for (size_t i = 0; i < pages; i++)
            page_fill(from + i * PAGE, i + (uint64_t)mode);
        memset(to, mode, bytes);
        for (size_t off = 0; off < bytes; off += chunk) {
            size_t len = bytes - off < chunk ? bytes - off : chunk;
            transfer(1, mode == 1, fixed && off == 0, fd, from + off, len, (off_t)off);
            transfer(0, mode == 1, 0, fd, to + off, len, (off_t)off);
        }
        printf("mode %d %s %016llx\n", mode, memcmp(from, to, bytes) ? "DIFFERENT" : "same",
               (unsigned long long)digest(to, bytes, 0));
    }
    unlink("data");
    return 0;
}
