/* Memory, and words that threads wait for. */
/* What is named is memory itself, whole pages of it. */
static long pages(struct call *c)
{
    c->align = PAGE;
    c->is_whole = c->count == c->subject;
    return in(c, "memory", content, 2 * PAGE);
}
static unsigned char *other_memory(void)
{
    unsigned char *at = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 1, 4 * PAGE);
    return at;
}
ROW(mincore)
{
    unsigned char *at = other_memory();
    CALL(c, SYS_mincore, (long)at, 4 * PAGE, out(c, "vector", 4));
}
ROW(msync) { CALL(c, SYS_msync, pages(c), 2 * PAGE, 4); }
ROW(mlock) { CALL(c, SYS_mlock, pages(c), 2 * PAGE); }
ROW(mlock2) { CALL(c, SYS_mlock2, pages(c), 2 * PAGE, 1); }
ROW(munlock) { CALL(c, SYS_munlock, pages(c), 2 * PAGE); }
ROW(mprotect) { CALL(c, SYS_mprotect, pages(c), 2 * PAGE, PROT_READ); }
ROW(pkey_mprotect) { CALL(c, SYS_pkey_mprotect, pages(c), 2 * PAGE, PROT_READ, -1); }
ROW(madvise_dontneed) { CALL(c, SYS_madvise, pages(c), 2 * PAGE, MADV_DONTNEED); }
ROW(madvise_willneed) { CALL(c, SYS_madvise, pages(c), 2 * PAGE, MADV_WILLNEED); }
ROW(madvise_cold) { CALL(c, SYS_madvise, pages(c), 2 * PAGE, MADV_COLD); }
ROW(madvise_pageout) { CALL(c, SYS_madvise, pages(c), 2 * PAGE, MADV_PAGEOUT); }
ROW(madvise_populate_read) { CALL(c, SYS_madvise, pages(c), 2 * PAGE, 22); }
ROW(madvise_populate_write) { CALL(c, SYS_madvise, pages(c), 2 * PAGE, 23); }
ROW(process_madvise_willneed)
{
    struct iovec of = {(void *)pages(c), 2 * PAGE};
    c->align = 1;
    CALL(c, SYS_process_madvise, syscall(SYS_pidfd_open, getpid(), 0), PUT(c, "vector", of), 1, MADV_WILLNEED, 0);
}
static long moved(struct call *c)
{
    unsigned char *from = c->areas[0].at, *to = mremap(from, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE);
    if (to == MAP_FAILED)
        return -1;
    say(c, " holds %08x %d", digest(2166136261, to, 2 * PAGE), to[3 * PAGE]);
    /* Back, for what is looked at afterwards. */
    return mremap(to, 4 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, from) == from ? 0 : -1;
}
/* From then on nothing of it may be unmapped, moved or protected. */
static long sealed(struct call *c)
{
    unsigned char *at = c->areas[0].at;
    if (syscall(462, at, 2 * PAGE, 0))
        return -1;
    say(c, " munmap %d", munmap(at, 2 * PAGE) ? errno : 0);
    say(c, " mprotect %d", mprotect(at, 2 * PAGE, PROT_READ) ? errno : 0);
    say(c, " mremap %d", mremap(at, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED ? errno : 0);
    return 0;
}
ROW(mseal)
{
    CALL(c, 462, pages(c));
    c->make = sealed;
}
ROW(mremap)
{
    CALL(c, SYS_mremap, pages(c));
    c->make = moved;
}
static long unmapped(struct call *c)
{
    unsigned char *at = c->areas[0].at;
    if (munmap(at, 2 * PAGE))
        return -1;
    say(c, " gone %ld", syscall(SYS_rt_sigprocmask, SIG_BLOCK, at, 0l, 8l));
    return mmap(at, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at ? 0 : -1;
}
ROW(munmap)
{
    CALL(c, SYS_munmap, pages(c));
    c->make = unmapped;
}
ROW(mbind_memory)
{
    unsigned long of = 1;
    long at = pages(c);
    c->align = 1;
    CALL(c, SYS_mbind, at, 2 * PAGE, 2, PUT(c, "nodes", of), 64, 0);
}
ROW(set_mempolicy_home_node) { CALL(c, SYS_set_mempolicy_home_node, pages(c), 2 * PAGE, 0, 0); }
/* What it says of pages that are away is not looked at: that they are. */
ROW(move_pages_memory)
{
    unsigned char *at[2] = {(unsigned char *)pages(c)};
    at[1] = at[0] + PAGE;
    c->align = 1;
    long p = PUT(c, "pages", at);
    CALL(c, SYS_move_pages, 0, 2, p, 0, hide(c, out(c, "status", 8), 0, 8), 2);
}
/* The same. */
ROW(mincore_memory)
{
    long at = pages(c);
    c->align = 1;
    CALL(c, SYS_mincore, at, 2 * PAGE, hide(c, out(c, "vector", 2), 0, 2));
}
ROW(mbind)
{
    unsigned long of = 1;
    unsigned char *at = other_memory();
    CALL(c, SYS_mbind, (long)at, PAGE, 2, PUT(c, "nodes", of), 64, 0);
}
ROW(set_mempolicy)
{
    unsigned long of = 1;
    CALL(c, SYS_set_mempolicy, 1, PUT(c, "nodes", of), 64);
}
ROW(get_mempolicy)
{
    long m = out(c, "mode", 4), n = out(c, "nodes", 128);
    CALL(c, SYS_get_mempolicy, m, n, 1024, 0, 0);
}
ROW(get_mempolicy_of)
{
    long m = out(c, "node", 4);
    CALL(c, SYS_get_mempolicy, m, 0, 0, out(c, "at", 8), 3);
}
ROW(migrate_pages)
{
    unsigned long of = 1;
    long a = PUT(c, "old", of);
    CALL(c, SYS_migrate_pages, 0, 64, a, PUT(c, "new", of));
}
ROW(move_pages)
{
    unsigned char *at[2] = {other_memory(), other_memory()};
    int nodes[2] = {0, 0};
    long p = hide(c, PUT(c, "pages", at), 0, 16), n = PUT(c, "nodes", nodes);
    CALL(c, SYS_move_pages, 0, 2, p, n, out(c, "status", 8), 2);
}
ROW(process_vm_readv)
{
    struct iovec near = {(void *)out(c, "to", 1000), 1000}, far = {(void *)in(c, "from", content, 1000), 1000};
    long n = PUT(c, "local", near);
    CALL(c, SYS_process_vm_readv, getpid(), n, 1, PUT(c, "remote", far), 1, 0);
}
ROW(process_vm_writev)
{
    struct iovec near = {(void *)in(c, "from", content, 1000), 1000}, far = {(void *)out(c, "to", 1000), 1000};
    long n = PUT(c, "local", near);
    CALL(c, SYS_process_vm_writev, getpid(), n, 1, PUT(c, "remote", far), 1, 0);
}
ROW(process_madvise)
{
    struct iovec of = {(void *)pages(c), 2 * PAGE};
    c->align = 1;
    CALL(c, SYS_process_madvise, syscall(SYS_pidfd_open, getpid(), 0), PUT(c, "vector", of), 1, MADV_COLD, 0);
}
static int memory_file(void) { return open("/proc/self/mem", O_RDWR | O_CLOEXEC); }
ROW(memory_file_read)
{
    long from = in(c, "memory", content, 1000), b = out(c, "buffer", 1000);
    CALL(c, SYS_pread64, memory_file(), b, 1000, from);
}
ROW(memory_file_write)
{
    long to = out(c, "memory", 1000), b = in(c, "buffer", content, 1000);
    CALL(c, SYS_pwrite64, memory_file(), b, 1000, to);
}

/* Words that threads wait for. */
#define WORD(name, value) \
    ({ \
        unsigned word_ = (value); \
        c->align = 4; \
        PUT(c, name, word_); \
    })
ROW(futex_wait)
{
    struct timespec t = {0, 2000000};
    long w = WORD("word", 7);
    c->align = 4;
    CALL(c, SYS_futex, w, FUTEX_WAIT_PRIVATE, 7, PUT(c, "time", t));
}
ROW(futex_wait_other) { CALL(c, SYS_futex, WORD("word", 7), FUTEX_WAIT_PRIVATE, 8, 0); }
ROW(futex_wait_shared)
{
    struct timespec t = {0, 2000000};
    long w = WORD("word", 7);
    CALL(c, SYS_futex, w, FUTEX_WAIT, 7, PUT(c, "time", t));
}
ROW(futex_wait_bitset)
{
    struct timespec t = {1, 0};
    long w = WORD("word", 7);
    CALL(c, SYS_futex, w, FUTEX_WAIT_BITSET_PRIVATE, 7, PUT(c, "time", t), 0, -1);
}
ROW(futex_wake) { CALL(c, SYS_futex, WORD("word", 7), FUTEX_WAKE_PRIVATE, 1); }
ROW(futex_wake_shared) { CALL(c, SYS_futex, WORD("word", 7), FUTEX_WAKE, 1); }
ROW(futex_requeue)
{
    long a = WORD("word", 7);
    CALL(c, SYS_futex, a, FUTEX_REQUEUE_PRIVATE, 1, 1, WORD("other", 3));
}
ROW(futex_cmp_requeue)
{
    long a = WORD("word", 7);
    CALL(c, SYS_futex, a, FUTEX_CMP_REQUEUE_PRIVATE, 1, 1, WORD("other", 3), 7);
}
ROW(futex_cmp_requeue_shared)
{
    long a = WORD("word", 7);
    CALL(c, SYS_futex, a, FUTEX_CMP_REQUEUE, 1, 1, WORD("other", 3), 7);
}
ROW(futex_wake_op)
{
    long a = WORD("word", 7);
    CALL(c, SYS_futex, a, FUTEX_WAKE_OP_PRIVATE, 1, 1, WORD("other", 3),
         FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0));
}
ROW(futex_wake_op_shared)
{
    long a = WORD("word", 7);
    CALL(c, SYS_futex, a, FUTEX_WAKE_OP, 1, 1, WORD("other", 3), FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0));
}
/* The word holds the thread's number afterwards. */
ROW(futex_lock_pi)
{
    struct timespec t = {9999999999, 0};
    long w = hide(c, WORD("word", 0), 0, 4);
    CALL(c, SYS_futex, w, FUTEX_LOCK_PI_PRIVATE, 0, PUT(c, "time", t));
}
ROW(futex_lock_pi2)
{
    struct timespec t = {99999999, 0};
    long w = hide(c, WORD("word", 0), 0, 4);
    CALL(c, SYS_futex, w, 13 | FUTEX_PRIVATE_FLAG, 0, PUT(c, "time", t));
}
ROW(futex_trylock_pi) { CALL(c, SYS_futex, hide(c, WORD("word", 0), 0, 4), FUTEX_TRYLOCK_PI_PRIVATE, 0, 0); }
ROW(futex_unlock_pi)
{
    CALL(c, SYS_futex, hide(c, WORD("word", syscall(SYS_gettid)), 0, 4), FUTEX_UNLOCK_PI_PRIVATE, 0, 0);
}
ROW(futex_cmp_requeue_pi)
{
    long a = WORD("word", 7);
    CALL(c, SYS_futex, a, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, 1, hide(c, WORD("other", 0), 0, 4), 7);
}
ROW(futex_wait_requeue_pi)
{
    struct timespec t = {1, 0};
    long a = WORD("word", 7), time = PUT(c, "time", t);
    CALL(c, SYS_futex, a, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 7, time, WORD("other", 0));
}
struct waiter {
    unsigned long value, word;
    unsigned flags, spare;
};
ROW(futex_waitv)
{
    struct timespec t = {1, 0};
    struct waiter of[2] = {{7, WORD("first", 7), 2 | 128, 0}, {8, WORD("second", 8), 2 | 128, 0}};
    long w = PUT(c, "waiters", of);
    CALL(c, SYS_futex_waitv, w, 2, 0, PUT(c, "time", t), CLOCK_MONOTONIC);
}
ROW(futex_waitv_other)
{
    struct waiter of[2] = {{7, WORD("first", 7), 2 | 128, 0}, {9, WORD("second", 8), 2 | 128, 0}};
    CALL(c, SYS_futex_waitv, PUT(c, "waiters", of), 2, 0, 0, CLOCK_MONOTONIC);
}
ROW(futex2_wake) { CALL(c, 454, WORD("word", 7), -1u, 1, 2 | 128); }
ROW(futex2_wait)
{
    struct timespec t = {1, 0};
    long w = WORD("word", 7);
    CALL(c, 455, w, 7, -1u, 2 | 128, PUT(c, "time", t), CLOCK_MONOTONIC);
}
ROW(futex2_requeue)
{
    struct waiter of[2] = {{7, WORD("first", 7), 2 | 128, 0}, {0, WORD("second", 8), 2 | 128, 0}};
    CALL(c, 456, PUT(c, "waiters", of), 0, 1, 1);
}
