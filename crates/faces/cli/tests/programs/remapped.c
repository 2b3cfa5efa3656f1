/* Memory that is paged out, moved, replaced, protected and given up by calls of all kinds. What is done is said by the
   arguments, one after the other. */
#include "away.h"
#include <setjmp.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>

#define MIB (1 << 20)
#define BYTES (4 * MIB)

static unsigned char at_byte(size_t i)
{
    return i * 7 + (i >> 12) * 13 + 1;
}

static void fill(unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = at_byte(i);
}

static void holds(const unsigned char *at, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        CHECK(at[i] == at_byte(i));
}

static void is_empty(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK(!at[i]);
}

static unsigned char *filled_and_away(size_t bytes)
{
    unsigned char *at = map(bytes);
    fill(at, bytes);
    send_away(at, bytes, 0);
    return at;
}

static sigjmp_buf back;

static void on_fault(int signal)
{
    siglongjmp(back, signal);
}

static int may_write(unsigned char *at)
{
    signal(SIGSEGV, on_fault);
    int may = !sigsetjmp(back, 1) && (*(volatile unsigned char *)at = *(volatile unsigned char *)at, 1);
    signal(SIGSEGV, SIG_DFL);
    return may;
}

/* Linux has this call from 5.10 on, and lets a process give up its own memory by it from 6.13 on. */
static void advice(void)
{
    unsigned char *at = filled_and_away(BYTES);
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec parts[3] = {{at, MIB}, {at + 2 * MIB, MIB}, {at + 8192 + MIB, 0}};
    CHECK(self >= 0);
    if (syscall(SYS_process_madvise, self, 0, 0, MADV_DONTNEED, 0)) {
        puts("skipped: this Linux has no such advice");
        _exit(0);
    }
    CHECK(syscall(SYS_process_madvise, self, parts, 3, MADV_DONTNEED, 0) == 2 * MIB);
    is_empty(at, MIB);
    holds(at, MIB, 2 * MIB);
    is_empty(at + 2 * MIB, MIB);
    holds(at, 3 * MIB, BYTES);
    /* What was done before a part that cannot be is told. */
    fill(at, BYTES);
    send_away(at, BYTES, 0);
    parts[1].iov_base = at + 1;
    CHECK(syscall(SYS_process_madvise, self, parts, 2, MADV_DONTNEED, 0) == MIB);
    is_empty(at, MIB);
    holds(at, MIB, BYTES);
    CHECK(syscall(SYS_process_madvise, self, parts + 1, 1, MADV_DONTNEED, 0) == -1 && errno == EINVAL);
    parts[1] = (struct iovec){at + MIB, -4096};
    CHECK(syscall(SYS_process_madvise, self, parts, 2, MADV_DONTNEED, 0) == -1 && errno == EINVAL);
    parts[1] = (struct iovec){(void *)0xffff800000000000, MIB};
    CHECK(syscall(SYS_process_madvise, self, parts, 2, MADV_DONTNEED, 0) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_process_madvise, self, parts, 1, MADV_DONTNEED, 1) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_process_madvise, self, 8, 1, MADV_DONTNEED, 0) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_process_madvise, -1, parts, 1, MADV_DONTNEED, 0) == -1 && errno == EBADF);
    CHECK(!close(self));
}

/* Memory that may not be read, or not be written, moves as any other. */
static void unreadable(void)
{
    static const int KINDS[] = {PROT_NONE, PROT_READ, PROT_WRITE, PROT_EXEC};
    for (size_t kind = 0; kind < 4 * 2; kind++) {
        unsigned char *at = map(BYTES);
        fill(at, BYTES);
        if (kind % 2)
            send_away(at, BYTES, 0);
        holds(at, MIB, 2 * MIB);
        CHECK(!mprotect(at, BYTES, KINDS[kind / 2]));
        /* It cannot grow where it is. */
        (void)mmap(at + BYTES, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        unsigned char *to = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
        CHECK(to != MAP_FAILED && to != at);
        CHECK(may_write(to + 5) == (KINDS[kind / 2] == PROT_WRITE));
        CHECK(!mprotect(to, BYTES, PROT_READ | PROT_WRITE));
        holds(to, 0, BYTES);
        CHECK(!mprotect(to, BYTES, KINDS[kind / 2]));
        unsigned char *over = map(BYTES);
        fill(over, 2 * MIB);
        CHECK(mremap(to, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, over) == over);
        CHECK(may_write(over + BYTES - 1) == (KINDS[kind / 2] == PROT_WRITE));
        CHECK(!mprotect(over, BYTES, PROT_READ | PROT_WRITE));
        holds(over, 0, BYTES);
        CHECK(!munmap(over, BYTES) && !munmap(to + BYTES, BYTES));
    }
}

/* What was replaced by other memory is as that is, whatever was there. */
static void is_replaced(unsigned char *all, unsigned char *by)
{
    CHECK(by == all + MIB);
    fill(by, MIB);
    pid_t child = fork();
    if (!child) {
        by[0] = 'c';
        _exit(0);
    }
    wait_for(child, 0);
    for (int i = 0; i < 2; i++)
        press();
    CHECK(by[0] == 'c');
    holds(by, 1, MIB);
    holds(all, 0, MIB);
    holds(all, 2 * MIB, BYTES);
}

static void onto(void)
{
    unsigned char *all = filled_and_away(BYTES);
    unsigned char *shared = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    is_replaced(all, mremap(shared, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, all + MIB));
    /* As a ring that is mapped twice. */
    unsigned char *twice = mremap(all + MIB, 0, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, all + 2 * MIB);
    CHECK(twice == all + 2 * MIB);
    twice[5] = 77;
    press();
    CHECK(all[MIB + 5] == 77);
    unsigned char *third = mremap(twice, 0, MIB, MREMAP_MAYMOVE);
    CHECK(third != MAP_FAILED && third[5] == 77);
    CHECK(!munmap(all, BYTES) && !munmap(third, MIB));
    /* Managed memory is not shared, so it is not mapped twice. */
    all = filled_and_away(BYTES);
    CHECK(mremap(all, 0, MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);

    int segment = shmget(IPC_PRIVATE, MIB, 0600);
    CHECK(segment >= 0);
    unsigned char *attached = shmat(segment, all + MIB, SHM_REMAP);
    CHECK(!shmctl(segment, IPC_RMID, 0));
    CHECK(attached != (void *)-1);
    is_empty(attached, MIB);
    is_replaced(all, attached);
    CHECK(!shmdt(attached));
    CHECK(shmat(-1, all, SHM_REMAP) == (void *)-1 && errno == EINVAL);
    holds(all, 0, MIB);
}

/* Linux unmaps the target of a move before it finds that there is not enough memory for its new size. */
static void half(void)
{
    struct sysinfo has;
    CHECK(!sysinfo(&has));
    size_t too_much = 4 * (has.totalram + has.totalswap) * has.mem_unit / 4096 * 4096;
    void *at = (void *)0x120000000000;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    CHECK(mmap(at, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
    fill(at, BYTES);
    send_away(at, BYTES, 0);
    unsigned char *small = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(small != MAP_FAILED);
    fill(small, 4096);
    if (mremap(small, 4096, too_much, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at)
        /* This Linux promises any size (vm.overcommit_memory is 1). */
        return holds(at, 0, 4096);
    CHECK(errno == ENOMEM);
    holds(small, 0, 4096);
    for (int i = 0; i < 2; i++)
        press();
    unsigned char core;
    if (mincore(at, 4096, &core)) {
        CHECK(errno == ENOMEM);
        CHECK(mmap(at, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
        is_empty(at, BYTES);
        fill(at, BYTES);
    }
    send_away(at, BYTES, 0);
    holds(at, 0, BYTES);
}

/* Protection stays as it was set when memory moves, by whichever call it was set. */
static void protection(void)
{
    unsigned char *at = filled_and_away(BYTES);
    CHECK(!syscall(SYS_pkey_mprotect, at, BYTES, PROT_READ, -1));
    unsigned char *to = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED && !may_write(to + 5));
    holds(to, 0, BYTES);
    send_away(to, BYTES, 0);
    CHECK(!syscall(SYS_pkey_mprotect, to, BYTES, PROT_NONE, -1));
    CHECK(write(-1, to, 1) == -1);
    CHECK(mremap(to, BYTES, MIB, 0) == to && !may_write(to));
    CHECK(syscall(SYS_pkey_mprotect, to, MIB, PROT_READ | PROT_WRITE, 77) == -1 && errno == EINVAL);
    CHECK(!may_write(to));
    CHECK(!syscall(SYS_pkey_mprotect, to, MIB, PROT_READ | PROT_WRITE, -1));
    holds(to, 0, MIB);
    /* Before a hole it is changed, behind it is not. */
    at = map(3 * MIB);
    fill(at, 3 * MIB);
    CHECK(!munmap(at + MIB, MIB));
    CHECK(mprotect(at, 3 * MIB, PROT_READ) == -1 && errno == ENOMEM);
    CHECK(!may_write(at) && may_write(at + 2 * MIB));
    send_away(at, MIB, 0);
    to = mremap(at, MIB, 4 * MIB, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED && !may_write(to + 3));
    unsigned char *behind = mremap(at + 2 * MIB, MIB, 4 * MIB, MREMAP_MAYMOVE);
    CHECK(behind != MAP_FAILED && may_write(behind + 3));
    holds(to, 0, MIB);
    CHECK(mprotect(at + 1, 0, PROT_READ) == -1 && errno == EINVAL && !mprotect(to, 0, PROT_READ));
}

/* A key of the processor's, where it has some, moves with the memory. */
static void key(void)
{
    int key = syscall(SYS_pkey_alloc, 0, 0);
    if (key < 0) {
        puts("skipped: this machine has no protection keys");
        _exit(0);
    }
    unsigned char *at = filled_and_away(BYTES);
    CHECK(!syscall(SYS_pkey_mprotect, at, BYTES, PROT_READ | PROT_WRITE, key));
    press();
    (void)mmap(at + BYTES, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    unsigned char *to = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED && to != at);
    holds(to, 0, BYTES);
    CHECK(!pkey_set(key, PKEY_DISABLE_ACCESS));
    CHECK(!may_write(to + 5) && !may_write(to + BYTES + 5));
    /* Farpage pages it out, though the program may not read it now. */
    send_away(to, 2 * BYTES, 0);
    CHECK(!pkey_set(key, 0) && may_write(to + 5));
    holds(to, 0, BYTES);
}

/* Linux refuses a heap that ends before it begins. */
static void heap(void)
{
    unsigned char *at = filled_and_away(BYTES);
    unsigned char *begin = sbrk(BYTES);
    CHECK(begin != (void *)-1);
    fill(begin, BYTES);
    send_away(begin, BYTES, 0);
    unsigned char *end = sbrk(0);
    CHECK((unsigned char *)syscall(SYS_brk, 1) == end);
    CHECK((unsigned char *)syscall(SYS_brk, begin - 200 * MIB) == end);
    holds(at, 0, BYTES);
    holds(begin, 0, BYTES);
    CHECK((unsigned char *)syscall(SYS_brk, begin + MIB) == begin + MIB);
    CHECK((unsigned char *)syscall(SYS_brk, end) == end);
    holds(begin, 0, MIB);
    is_empty(begin + MIB, BYTES - MIB);
}

static pthread_t first;

static void *without_the_first(void *nothing)
{
    (void)nothing;
    CHECK(!pthread_join(first, 0));
    unsigned char *at = filled_and_away(BYTES);
    holds(at, 0, BYTES);
    pid_t child = fork();
    if (!child) {
        press();
        holds(at, 0, BYTES);
        _exit(0);
    }
    wait_for(child, 0);
    puts("as it should be");
    fflush(stdout);
    return 0;
}

/* The first thread ends before the process uses much. */
static void thread(void)
{
    pthread_t other;
    first = pthread_self();
    CHECK(!pthread_create(&other, 0, without_the_first, 0) && !pthread_detach(other));
    pthread_exit(0);
}

/* A process forbids itself descriptors and threads, and uses much after that. */
static void limits(void)
{
    struct rlimit none = {0, 0};
    unsigned char *at = map(BYTES);
    fill(at, BYTES);
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    CHECK(!syscall(SYS_prlimit64, 0, RLIMIT_NPROC, &none, 0));
    for (int i = 0; i < 3; i++)
        press();
    holds(at, 0, BYTES);
}

/* It names a file that is not there by a path that is paged out; a child does the same. */
static void path(void)
{
    char *name = (char *)map(MIB) + 8192;
    strcpy(name, "/nowhere/at/all");
    send_away((unsigned char *)name - 8192, MIB, 0);
    CHECK(open(name, O_RDONLY) == -1 && errno == ENOENT);
    pid_t child = fork();
    if (!child)
        _exit(open(name, O_RDONLY) == -1 && errno == ENOENT ? 0 : 1);
    wait_for(child, 0);
}

/* A debugger looks at a child whose memory is managed. */
static void attach(void)
{
    char command[128];
    int ready[2];
    char byte;
    CHECK(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
        press();
        CHECK(write(ready[1], "", 1) == 1);
        for (;;)
            pause();
    }
    CHECK(child > 0 && read(ready[0], &byte, 1) == 1);
    snprintf(command, sizeof command, "gdb -p %d -batch -ex 'print 6*7' -ex detach 2>/dev/null", child);
    CHECK(!system(command));
    CHECK(!kill(child, SIGKILL) && waitpid(child, 0, 0) == child);
}

/* Devices that give as much as is wanted give it at once, whatever of the memory is away. */
static void devices(void)
{
    static const char *const NAMES[] = {"/dev/zero", "/dev/urandom"};
    size_t bytes = 24 * MIB;
    unsigned char *at = map(bytes);
    struct iovec piece = {at, bytes};
    for (int i = 0; i < 2; i++) {
        int device = open(NAMES[i], O_RDONLY);
        CHECK(device >= 0 && read(device, at, bytes) == (ssize_t)bytes);
        CHECK(readv(device, &piece, 1) == (ssize_t)bytes && !close(device));
    }
    memset(at, 7, bytes);
    CHECK(syscall(SYS_getrandom, at, bytes, 0) == (long)bytes);
    for (size_t i = 0, run = 0; i < bytes; i++) {
        run = at[i] == 7 ? run + 1 : 0;
        CHECK(run < 16);
    }
    int device = open("/dev/null", O_WRONLY);
    CHECK(device >= 0 && write(device, at, bytes) == (ssize_t)bytes && !close(device));
}

static int taken[2];

static void *takes(void *mutex)
{
    CHECK(!pthread_mutex_lock(mutex) && write(taken[1], "", 1) == 1);
    for (;;)
        pause();
}

/* A thread whose stack is paged out has a robust lock when its process ends: the next one is told. */
static void robust(void)
{
    pthread_mutex_t *mutex = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t how;
    CHECK(mutex != MAP_FAILED && !pthread_mutexattr_init(&how));
    CHECK(!pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED));
    CHECK(!pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST));
    CHECK(!pthread_mutex_init(mutex, &how) && !pipe(taken));
    pid_t child = fork();
    if (!child) {
        pthread_attr_t attributes;
        pthread_t thread;
        CHECK(!pthread_attr_init(&attributes));
        CHECK(!pthread_attr_setstack(&attributes, map(MIB), MIB));
        CHECK(!pthread_create(&thread, &attributes, takes, mutex));
        char byte;
        CHECK(read(taken[0], &byte, 1) == 1);
        for (int i = 0; i < 3; i++)
            press();
        _exit(0);
    }
    wait_for(child, 0);
    struct timespec until;
    CHECK(!clock_gettime(CLOCK_REALTIME, &until));
    until.tv_sec += HANGS;
    errno = pthread_mutex_timedlock(mutex, &until);
    CHECK(errno == EOWNERDEAD);
}

static const struct {
    const char *word;
    void (*act)(void);
} WORDS[] = {
    {"advice", advice}, {"unreadable", unreadable}, {"onto", onto}, {"half", half},
    {"protection", protection}, {"key", key},       {"heap", heap}, {"thread", thread},
    {"limits", limits}, {"path", path},     {"attach", attach}, {"devices", devices}, {"robust", robust},
};

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        size_t known = 0;
        while (known < LENGTH(WORDS) && strcmp(WORDS[known].word, argv[i]))
            known++;
        CHECK(known < LENGTH(WORDS));
        WORDS[known].act();
    }
    puts("as it should be");
    return 0;
}
