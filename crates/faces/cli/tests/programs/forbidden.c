/* Programs that forbid themselves what the agent would do in their threads. argv[1]: which. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/time.h>

#define MUCH (40 << 20)
#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(what) BPF_STMT(BPF_RET | BPF_K, what)

/* Linux's own numbers, which headers may not have yet. */
#define POPULATE_READ 22
#define POPULATE_WRITE 23

static long install(unsigned flags, struct sock_filter *code, int length)
{
    struct sock_fprog program = { length, code };
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

/* All threads are answered so when they make the call. */
static long forbid(int call, unsigned answer)
{
    struct sock_filter code[] = {
        NUMBER,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        ANSWER(answer),
        ANSWER(SECCOMP_RET_ALLOW),
    };
    return install(SECCOMP_FILTER_FLAG_TSYNC, code, LENGTH(code));
}

static volatile int last;
static void on_trap(int number, siginfo_t *info, void *context)
{
    (void)number;
    last = info->si_syscall;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

static volatile int begin, calls[2], answers[2];
static void *other(void *none)
{
    while (!begin)
        sched_yield();
    for (int i = 0; i < 2; i++)
        if (calls[i])
            answers[i] = syscall(calls[i], -1, 0, 0, 0) == -1 ? errno : 0;
    return none;
}

static long sum(const char *from, size_t bytes)
{
    long all = 0;
    for (size_t at = 0; at < bytes; at += 4096)
        all += from[at];
    return all;
}

static void ended_well(pid_t pid, int call)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (status)
        fprintf(stderr, "call %d: status %#x\n", call, status);
    CHECK(status == 0);
}

/* A filter for all threads, of which each is under it when the call returns, whatever it forbids. */
static void everywhere(void)
{
    static const int all[] = {
        SYS_openat, SYS_getdents64, SYS_close, SYS_rt_tgsigqueueinfo, SYS_getpid, SYS_gettid, SYS_prctl,
    };
    for (unsigned i = 0; i < 2 * LENGTH(all); i++) {
        int call = all[i / 2];
        pid_t pid = fork();
        if (pid) {
            ended_well(pid, call);
            continue;
        }
        /* So much memory makes the agent start threads. */
        char *much = malloc(MUCH);
        CHECK(much);
        memset(much, 1, MUCH);
        pthread_t thread;
        CHECK(!pthread_create(&thread, 0, other, 0));
        struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER };
        CHECK(!sigaction(SIGSYS, &action, 0) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        CHECK(!forbid(call, i % 2 ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO | EPERM));
        /* Another beside it: neither undoes the other. */
        CHECK(call == SYS_prctl || !forbid(SYS_getppid, SECCOMP_RET_ERRNO | EXDEV));
        calls[0] = call;
        calls[1] = call == SYS_prctl ? 0 : SYS_getppid;
        begin = 1;
        CHECK(!pthread_join(thread, 0));
        CHECK(answers[0] == EPERM && (!calls[1] || answers[1] == EXDEV));
        CHECK(i % 2 == 0 || last == call);
        CHECK(sum(much, MUCH) == MUCH / 4096);
        _exit(0);
    }
    /* What Linux refuses is in no thread. */
    char *much = malloc(MUCH);
    memset(much, 1, MUCH);
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, other, 0) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    struct sock_filter wrong[] = { { 0xffff, 0, 0, 0 } };
    CHECK(install(SECCOMP_FILTER_FLAG_TSYNC, wrong, 1) == -1 && errno == EINVAL);
    struct sock_filter none[] = { ANSWER(SECCOMP_RET_ERRNO | EPERM) };
    CHECK(install(SECCOMP_FILTER_FLAG_TSYNC | 1 << 30, none, 1) == -1 && errno == EINVAL);
    calls[0] = SYS_getppid;
    begin = 1;
    CHECK(!pthread_join(thread, 0) && answers[0] == 0);
    CHECK(sum(much, MUCH) == MUCH / 4096);
}

/* No ioctl: new memory is not managed, and nothing of what was is lost. */
static void without_ioctl(void)
{
    size_t old = 4 << 20, new = 24 << 20;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *grows = malloc(old), *replaced = mmap(0, old, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *moved = mmap(0, old, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *read_only = mmap(0, old, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *to = mmap(0, new, PROT_NONE, flags, -1, 0);
    CHECK(grows && replaced != MAP_FAILED && moved != MAP_FAILED && to != MAP_FAILED);
    memset(grows, 1, old), memset(replaced, 2, old), memset(moved, 3, old), memset(read_only, 5, old);
    CHECK(!mprotect(read_only, old, PROT_READ));
    struct sock_filter code[] = {
        NUMBER,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        ANSWER(SECCOMP_RET_KILL_PROCESS),
        ANSWER(SECCOMP_RET_ALLOW),
    };
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !install(0, code, LENGTH(code)));
    grows = realloc(grows, new);
    CHECK(grows && sum(grows, old) == (long)old / 4096);
    memset(grows + old, 1, new - old);
    CHECK(sum(grows, new) == (long)new / 4096);
    CHECK(mremap(moved, old, new, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(mremap(moved, old, new, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    CHECK(sum(to, old) == 3 * (long)old / 4096 && sum(to + old, new - old) == 0);
    to[new - 1] = 1;
    read_only = mremap(read_only, old, new, MREMAP_MAYMOVE);
    CHECK(read_only != MAP_FAILED && sum(read_only, old) == 5 * (long)old / 4096);
    int both[2];
    CHECK(!pipe(both) && syscall(SYS_read, both[0], read_only, 0) == 0);
    CHECK(write(both[1], "x", 1) == 1 && read(both[0], read_only, 1) == -1 && errno == EFAULT);
    CHECK(mmap(replaced, old / 2, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) == replaced);
    CHECK(sum(replaced, old / 2) == 0 && sum(replaced + old / 2, old / 2) == (long)old / 4096);
    memset(replaced, 4, old);
    CHECK(sum(replaced, old) == 4 * (long)old / 4096);
    char *fresh = malloc(MUCH);
    memset(fresh, 1, MUCH);
    CHECK(sum(fresh, MUCH) == MUCH / 4096);
    free(fresh), free(grows);
    CHECK(!munmap(to, new) && !munmap(replaced, old));
}

/* Limits are asked for under a filter, into memory that leaves. */
static void limits(void)
{
    char *much = malloc(MUCH);
    memset(much, 1, MUCH);
    struct sock_filter code[] = { ANSWER(SECCOMP_RET_ALLOW) };
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !install(0, code, LENGTH(code)));
    for (int resource = RLIMIT_CPU; resource <= RLIMIT_RTTIME; resource++) {
        struct rlimit *there = (void *)(much + 4096 * (resource + 1)), here;
        CHECK(!getrlimit(resource, there) && !getrlimit(resource, &here));
        CHECK(!memcmp(there, &here, sizeof here));
    }
    struct rlimit *limit = (void *)(much + MUCH / 2);
    CHECK(!getrlimit(RLIMIT_NOFILE, limit) && !setrlimit(RLIMIT_NOFILE, limit));
    CHECK(syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, 8, 0) == -1 && errno == EFAULT);
}

#define DEEP (256 << 10)
static void on_trap_deep(int number, siginfo_t *info, void *context)
{
    volatile char much[DEEP];
    for (int at = DEEP - 1; at > 0; at -= 4096)
        much[at] = 1;
    CHECK(much[DEEP - 1] == 1);
    on_trap(number, info, context);
}

/* A thread with a small stack for signals, and a handler that is not to run on it. */
static void *traps(void *none)
{
    static char small[32 << 10];
    stack_t stack = { .ss_sp = small, .ss_size = sizeof small }, now;
    CHECK(!sigaltstack(&stack, 0));
    for (int i = 0; i < 3; i++) {
        last = 0;
        CHECK(syscall(SYS_getppid) == -1 && errno == EPERM && last == SYS_getppid);
        CHECK(!sigaltstack(0, &now) && now.ss_sp == small && now.ss_flags == 0);
        use_memory();
    }
    return none;
}

static void deep(void)
{
    struct sigaction action = { .sa_sigaction = on_trap_deep, .sa_flags = SA_SIGINFO | SA_NODEFER };
    CHECK(!sigaction(SIGSYS, &action, 0) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!forbid(SYS_getppid, SECCOMP_RET_TRAP));
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, traps, 0) && !pthread_join(thread, 0));
}

/* More is populated than the budget has. */
static void populate(void)
{
    size_t bytes = 80 << 20;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *all = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(all != MAP_FAILED);
    memset(all, 1, bytes);
    for (int advice = POPULATE_READ; advice <= POPULATE_WRITE; advice++)
        for (size_t part = 4096; part <= bytes; part *= 16)
            CHECK(!madvise(all, part, advice));
    CHECK(!madvise(all, bytes, POPULATE_READ) && !madvise(all, bytes, POPULATE_WRITE));
    CHECK(sum(all, bytes) == (long)bytes / 4096);
    CHECK(!mprotect(all + bytes / 2, 4096, PROT_READ));
    CHECK(!madvise(all, bytes, POPULATE_READ));
    CHECK(madvise(all, bytes, POPULATE_WRITE) == -1 && errno == EINVAL);
    CHECK(!munmap(all + bytes / 4, 4096));
    CHECK(madvise(all, bytes, POPULATE_READ) == -1 && errno == ENOMEM);
}

static volatile int over;
/* What it asks Linux for it gets, whatever signals come meanwhile. */
static void *maps(void *none)
{
    size_t bytes = 256 << 10;
    while (!over) {
        char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED && (size_t)at % 4096 == 0);
        CHECK(munmap(at, bytes) == 0);
    }
    return none;
}

/* Filters for all threads, while others make calls that matter. */
static void meanwhile(void)
{
    char *much = malloc(MUCH);
    CHECK(much);
    memset(much, 1, MUCH);
    pthread_t threads[2];
    for (unsigned i = 0; i < LENGTH(threads); i++)
        CHECK(!pthread_create(&threads[i], 0, maps, 0));
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    for (int i = 0; i < 60; i++)
        CHECK(!forbid(SYS_getppid, SECCOMP_RET_ERRNO | EPERM));
    over = 1;
    for (unsigned i = 0; i < LENGTH(threads); i++)
        CHECK(!pthread_join(threads[i], 0));
    CHECK(sum(much, MUCH) == MUCH / 4096);
}

static pthread_t first;
static void *when_the_first_has_ended(void *none)
{
    CHECK(pthread_join(first, 0) == 0);
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!forbid(SYS_getppid, SECCOMP_RET_ERRNO | EPERM));
    CHECK(syscall(SYS_getppid) == -1 && errno == EPERM);
    exit(5);
    return none;
}

/* The first thread has ended, and Linux lists it still. */
static void outlived(void)
{
    char *much = malloc(MUCH);
    CHECK(much);
    memset(much, 1, MUCH);
    pthread_t thread;
    first = pthread_self();
    CHECK(!pthread_create(&thread, 0, when_the_first_has_ended, 0));
    pthread_exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && agent_active());
    switch (argv[1][0]) {
    case 'e': everywhere(); break;
    case 'w': without_ioctl(); break;
    case 'l': limits(); break;
    case 'p': populate(); break;
    case 'd': deep(); break;
    case 'm': meanwhile(); break;
    case 'o': outlived(); break;
    default: CHECK(!"there is no such part");
    }
    return 5;
}
