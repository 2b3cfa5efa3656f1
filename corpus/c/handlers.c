/* A program with its own SIGSEGV, SIGBUS and SIGSYS handlers, an alternate stack in large memory,
 * its own seccomp trap, and times when it blocks every signal. */
#include "job.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

static volatile sig_atomic_t segv_count, bus_count, sys_count;
static char *segv_at, *bus_at;

static void on_segv(int sig, siginfo_t *info, void *ctx)
{
    (void)sig, (void)ctx;
    char *page = (char *)((uintptr_t)info->si_addr & ~(PAGE - 1));
    if (page != segv_at || mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0)
        _exit(4);
    segv_count++;
}

static void on_bus(int sig, siginfo_t *info, void *ctx)
{
    (void)sig, (void)ctx;
    char *page = (char *)((uintptr_t)info->si_addr & ~(PAGE - 1));
    if (page != bus_at || mmap(page, PAGE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page)
        _exit(5);
    bus_count++;
}

static void on_sys(int sig, siginfo_t *info, void *ctx)
{
    (void)sig;
    if (info->si_code != 1 /* SYS_SECCOMP */ || info->si_syscall != SYS_getppid)
        _exit(6);
    ((ucontext_t *)ctx)->uc_mcontext.gregs[REG_RAX] = 4242;
    sys_count++;
}

static void install(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction act = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags}, old;
    sigfillset(&act.sa_mask);
    MUST(sigaction(sig, &act, NULL) == 0);
    MUST(sigaction(sig, NULL, &old) == 0);
    MUST(old.sa_sigaction == handler);
}

static void trap_getppid(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = 4, .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0);
}

static void sweep(char *mem, size_t pages, uint64_t gen)
{
    for (size_t i = 0; i < pages; i++) {
        page_check(mem + i * PAGE, i + gen * 7, "sweep");
        page_fill(mem + i * PAGE, i + (gen + 1) * 7);
    }
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv);
    char *mem = map_pages(pages);
    for (size_t i = 0; i < pages; i++)
        page_fill(mem + i * PAGE, i);
    stack_t alt = {.ss_sp = map_pages(256), .ss_size = 256 * PAGE};
    MUST(sigaltstack(&alt, NULL) == 0);
    install(SIGSEGV, on_segv, SA_ONSTACK);
    install(SIGBUS, on_bus, SA_ONSTACK);
    install(SIGSYS, on_sys, 0);
    sweep(mem, pages, 0);

    segv_at = mem + pages / 2 * PAGE; /* a page of the large mapping, contents kept */
    MUST(mprotect(segv_at, PAGE, PROT_NONE) == 0);
    ((volatile char *)segv_at)[17]++;
    ((volatile char *)segv_at)[17]--;
    sweep(mem, pages, 1);

    int fd = open("truncated", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0 && ftruncate(fd, (off_t)PAGE) == 0);
    bus_at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(bus_at != MAP_FAILED && ftruncate(fd, 0) == 0);
    ((volatile char *)bus_at)[5] = 1;
    close(fd);
    sweep(mem, pages, 2);

    sigset_t all, old, got;
    sigfillset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, &old) == 0);
    MUST(sigprocmask(SIG_SETMASK, NULL, &got) == 0);
    sweep(mem, pages, 3);
    MUST(sigismember(&got, SIGUSR1) == 1 && sigismember(&got, SIGSEGV) == 1);
    char *more = map_pages(pages / 4 + 1); /* a call that must work with every signal blocked */
    page_fill(more, 4);
    MUST(munmap(more, (pages / 4 + 1) * PAGE) == 0);
    MUST(sigprocmask(SIG_SETMASK, &old, NULL) == 0);

    trap_getppid();
    long trapped = syscall(SYS_getppid);
    sweep(mem, pages, 4);
    printf("segv %d bus %d sys %d trapped %ld\n", (int)segv_count, (int)bus_count, (int)sys_count,
           trapped);
    printf("memory %016llx\n", (unsigned long long)digest(mem, pages * PAGE, 0));
    return 0;
}
