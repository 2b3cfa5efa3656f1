/* SIGSYS stays the agent's behind the program's back; everything else is as it was. */
#include "check.h"
#include <setjmp.h>

static volatile sig_atomic_t seen, code_seen;
static void on_signal(int number)
{
    seen = number;
    use_memory();
}
static void on_info(int number, siginfo_t *info, void *context)
{
    (void)context;
    seen = number;
    code_seen = info->si_code;
    use_memory();
}
static sigjmp_buf place;
static void on_fault(int number)
{
    seen = number;
    use_memory();
    siglongjmp(place, 1);
}

static void handle(int number, void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler }, old;
    sigfillset(&action.sa_mask);
    CHECK(!sigaction(number, &action, 0));
    CHECK(!sigaction(number, 0, &old));
    CHECK(old.sa_handler == handler && sigismember(&old.sa_mask, SIGINT) == 1);
}

static void waits_with_masks(void)
{
    sigset_t all_but_usr1, blocked;
    sigfillset(&all_but_usr1);
    sigdelset(&all_but_usr1, SIGUSR1);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    handle(SIGUSR1, on_signal);
    CHECK(!sigprocmask(SIG_BLOCK, &blocked, 0));
    struct timespec limit = { 5, 0 };
    int epoll = epoll_create1(0);
    struct epoll_event event;
    for (int way = 0; way < 4; way++) {
        seen = 0;
        raise(SIGUSR1);
        CHECK(!seen);
        int result = -2;
        errno = 0;
        if (way == 0)
            result = sigsuspend(&all_but_usr1);
        if (way == 1)
            result = ppoll(0, 0, &limit, &all_but_usr1);
        if (way == 2)
            result = pselect(0, 0, 0, 0, &limit, &all_but_usr1);
        if (way == 3)
            result = epoll_pwait(epoll, &event, 1, 5000, &all_but_usr1);
        CHECK(result == -1 && errno == EINTR && seen == SIGUSR1);
        use_memory();
    }
    struct timespec none = { 0, 0 };
    CHECK(ppoll(0, 0, &none, &all_but_usr1) == 0);
    CHECK(syscall(SYS_ppoll, 0, 0, &none, (void *)8, 8) == -1 && errno == EFAULT);
    CHECK(!sigprocmask(SIG_UNBLOCK, &blocked, 0));
}

static void masks(void)
{
    sigset_t all, old;
    sigfillset(&all);
    CHECK(!sigprocmask(SIG_SETMASK, &all, &old));
    use_memory();
    CHECK(!sigprocmask(SIG_SETMASK, &old, &all));
    CHECK(sigismember(&all, SIGTERM) == 1 && sigismember(&all, SIGKILL) == 0);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, 8, 0, 8) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_rt_sigprocmask, 77, &all, 0, 8) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, 0, 4) == -1 && errno == EINVAL);
}

static void faults(void)
{
    char *page = mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    handle(SIGSEGV, on_fault);
    if (!sigsetjmp(place, 1))
        *page = 1;
    CHECK(seen == SIGSEGV);
    handle(SIGBUS, on_fault);
    char name[] = "/tmp/signals-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    char *beyond = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!sigsetjmp(place, 1))
        *beyond = 1;
    CHECK(seen == SIGBUS);
}

int main(void)
{
    masks();
    waits_with_masks();
    faults();
    /* The program's own SIGSYS. */
    struct sigaction action = { .sa_sigaction = on_info, .sa_flags = SA_SIGINFO }, old;
    CHECK(!sigaction(SIGSYS, &action, &old) && old.sa_handler == SIG_DFL);
    CHECK(!sigaction(SIGSYS, 0, &old) && old.sa_sigaction == on_info);
    seen = 0;
    kill(getpid(), SIGSYS);
    CHECK(seen == SIGSYS && code_seen == SI_USER);
    use_memory();
    signal(SIGSYS, SIG_IGN);
    raise(SIGSYS);
    use_memory();
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSYS, SIG_DFL);
        raise(SIGSYS);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    /* A handler on a small stack of its own. */
    stack_t stack = { .ss_sp = malloc(16384), .ss_size = 16384 };
    CHECK(!sigaltstack(&stack, 0));
    struct sigaction on_stack = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
    CHECK(!sigaction(SIGUSR2, &on_stack, 0));
    raise(SIGUSR2);
    CHECK(seen == SIGUSR2);
    CHECK(agent_active());
    puts("ok");
}
