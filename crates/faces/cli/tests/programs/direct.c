/* Files that are read and written past the page cache, from and into memory most of which is paged out: by calls (O_DIRECT)
   and, where there are rings, by a ring, also with buffers that are registered. Arguments: a folder, and "rings"
   where there must be some. */
#include "check.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

#define PAGE 4096
#define MIB (1 << 20)
#define BYTES (64 << 20)
#define REGISTERED (8 << 20)
#define RW (PROT_READ | PROT_WRITE)

static int ring;
static struct io_uring_sqe *requests;
static struct io_uring_cqe *answers;
static unsigned *request_end, *request_mask, *request_list, *answer_begin, *answer_end, *answer_mask;

static char *memory(size_t bytes)
{
    char *at = mmap(0, bytes, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void fill(char *at, unsigned long seed)
{
    for (unsigned long *word = (void *)at; word < (unsigned long *)(at + BYTES); word++)
        *word = seed = seed * 6364136223846793005 + 1;
}

static int make_ring(void)
{
    struct io_uring_params p = {0};
    ring = syscall(SYS_io_uring_setup, 8, &p);
    if (ring < 0)
        return 0;
    char *sent = mmap(0, p.sq_off.array + p.sq_entries * 4, RW, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *got = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof *answers, RW, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    requests = mmap(0, p.sq_entries * sizeof *requests, RW, MAP_SHARED, ring, IORING_OFF_SQES);
    CHECK(sent != MAP_FAILED && got != MAP_FAILED && requests != MAP_FAILED);
    request_end = (void *)(sent + p.sq_off.tail);
    request_mask = (void *)(sent + p.sq_off.ring_mask);
    request_list = (void *)(sent + p.sq_off.array);
    answer_begin = (void *)(got + p.cq_off.head);
    answer_end = (void *)(got + p.cq_off.tail);
    answer_mask = (void *)(got + p.cq_off.ring_mask);
    answers = (void *)(got + p.cq_off.cqes);
    return 1;
}

/* What one request is answered with. */
static int by_ring(int what, int fd, void *at, unsigned bytes, off_t offset)
{
    unsigned end = *request_end, slot = end & *request_mask;
    requests[slot] = (struct io_uring_sqe){
        .opcode = what, .fd = fd, .addr = (unsigned long)at, .len = bytes, .off = offset};
    request_list[slot] = slot;
    __atomic_store_n(request_end, end + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
    unsigned first = *answer_begin;
    CHECK(first != __atomic_load_n(answer_end, __ATOMIC_ACQUIRE));
    int answer = answers[first & *answer_mask].res;
    __atomic_store_n(answer_begin, first + 1, __ATOMIC_RELEASE);
    return answer;
}

static void calls(int fd, char *from, char *to)
{
    for (off_t at = 0; at < BYTES; at += 4 * MIB)
        CHECK(pwrite(fd, from + at, 4 * MIB, at) == 4 * MIB);
    for (off_t at = 0; at < BYTES; at += 8 * MIB)
        CHECK(pread(fd, to + at, 8 * MIB, at) == 8 * MIB);
    CHECK(!memcmp(from, to, BYTES));
    fill(to, 3);
    struct iovec parts[] = {{to + 100 * PAGE, PAGE}, {to + 5000 * PAGE, 2 * PAGE}, {to + 9000 * PAGE, PAGE}};
    CHECK(preadv(fd, parts, 3, 7 * PAGE) == 4 * PAGE);
    CHECK(!memcmp(to + 100 * PAGE, from + 7 * PAGE, PAGE) && !memcmp(to + 5000 * PAGE, from + 8 * PAGE, 2 * PAGE));
    CHECK(!memcmp(to + 9000 * PAGE, from + 10 * PAGE, PAGE));
    char *volatile nowhere = (void *)8;
    CHECK(pread(fd, nowhere, PAGE, 0) == -1 && (errno == EFAULT || errno == EINVAL));
    CHECK(!mprotect(to, PAGE, PROT_READ) && pread(fd, to, PAGE, 0) == -1 && errno == EFAULT);
    CHECK(!mprotect(to, PAGE, RW));
}

static void rings(int fd, char *from, char *to)
{
    for (off_t at = 0; at < BYTES; at += MIB)
        CHECK(by_ring(IORING_OP_WRITE, fd, from + at, MIB, at) == MIB);
    for (off_t at = 0; at < BYTES; at += MIB)
        CHECK(by_ring(IORING_OP_READ, fd, to + at, MIB, at) == MIB);
    CHECK(!memcmp(from, to, BYTES));
    char *kept = memory(REGISTERED), *copy = memory(REGISTERED);
    for (int i = 0; i < REGISTERED; i++)
        kept[i] = i * 7;
    fill(to, 4);
    CHECK(!syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &(struct iovec){kept, REGISTERED}, 1));
    for (int i = 0; i < REGISTERED; i++)
        CHECK(kept[i] == (char)(i * 7));
    for (int round = 0; round < 3; round++) {
        off_t place = round * MIB;
        fill(to, 5 + round);
        for (off_t at = 0; at < REGISTERED; at += MIB)
            CHECK(by_ring(IORING_OP_READ_FIXED, fd, kept + at, MIB, place + at) == MIB);
        fill(to, 8 + round);
        CHECK(!memcmp(kept, from + place, REGISTERED));
        for (int i = 0; i < REGISTERED; i += 64)
            kept[i] ^= 0x55;
        fill(to, 11 + round);
        for (off_t at = 0; at < REGISTERED; at += MIB)
            CHECK(by_ring(IORING_OP_WRITE_FIXED, fd, kept + at, MIB, BYTES + at) == MIB);
        CHECK(pread(fd, copy, REGISTERED, BYTES) == REGISTERED && !memcmp(copy, kept, REGISTERED));
    }
    CHECK(!syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, 0, 0));
    fill(to, 14);
    CHECK(!memcmp(copy, kept, REGISTERED));
    CHECK(by_ring(IORING_OP_READ, fd, (void *)8, PAGE, 0) < 0);
}

int main(int argc, char **argv)
{
    char name[4096];
    CHECK(argc >= 2);
    snprintf(name, sizeof name, "%s/farpage-direct-XXXXXX", argv[1]);
    int fd = mkostemp(name, O_DIRECT);
    CHECK(fd >= 0 && !unlink(name));
    char *from = memory(BYTES), *to = memory(BYTES);
    fill(from, 1);
    fill(to, 2);
    calls(fd, from, to);
    int are_there = make_ring();
    if (are_there)
        rings(fd, from, to);
    CHECK(are_there || argc == 2);
    return 0;
}
