/* Signals and time. */
#include <linux/capability.h>
#include <net/if.h>
#include <sys/ptrace.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/timex.h>
#include <sys/user.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

static void unshare_names(struct call *c)
{
    (void)c;
    if (geteuid() == 0)
        CHECK(!unshare(CLONE_NEWUTS));
}

static void handler(int number) { (void)number; }
struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};
/* As it is when a process begins, whatever the row did before. */
static void reset_signals(struct call *c)
{
    stack_t none = {.ss_flags = SS_DISABLE};
    unsigned long empty = 1 << (SIGHUP - 1);
    (void)c;
    signal(SIGWINCH, SIG_IGN);
    CHECK(!sigaltstack(&none, 0) && !syscall(SYS_rt_sigprocmask, SIG_SETMASK, &empty, 0l, 8l));
}
ROW(rt_sigaction)
{
    struct kernel_action of = {SIG_DFL, 0, 0, 1 << 4};
    long n = PUT(c, "new", of);
    c->before = reset_signals;
    CALL(c, SYS_rt_sigaction, SIGWINCH, n, hide(c, out(c, "old", sizeof of), 16, 8), 8);
}
ROW(rt_sigaction_old)
{
    signal(SIGUSR2, SIG_IGN);
    CALL(c, SYS_rt_sigaction, SIGUSR2, 0, hide(c, out(c, "old", sizeof(struct kernel_action)), 16, 8), 8);
}
ROW(rt_sigprocmask)
{
    c->before = reset_signals;
    unsigned long set = 1 << 9;
    long n = PUT(c, "new", set);
    CALL(c, SYS_rt_sigprocmask, SIG_BLOCK, n, out(c, "old", 8), 8);
}
ROW(rt_sigprocmask_set)
{
    c->before = reset_signals;
    unsigned long set = 1 << 9;
    long n = PUT(c, "new", set);
    CALL(c, SYS_rt_sigprocmask, SIG_SETMASK, n, out(c, "old", 8), 8);
}
static void block_and_raise(struct call *c)
{
    unsigned long set = 1 << (SIGUSR1 - 1);
    (void)c;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, 0, 8);
    raise(SIGUSR1);
}
static void take_raised(struct call *c)
{
    struct timespec none = {0, 0};
    unsigned long set = 1 << (SIGUSR1 - 1);
    (void)c;
    while (syscall(SYS_rt_sigtimedwait, &set, 0, &none, 8) > 0)
        continue;
}
ROW(rt_sigpending)
{
    CALL(c, SYS_rt_sigpending, out(c, "set", 8), 8);
    c->before = block_and_raise;
    c->after = take_raised;
}
ROW(rt_sigtimedwait)
{
    unsigned long set = 1 << (SIGUSR1 - 1);
    struct timespec time = {1, 0};
    long s = PUT(c, "set", set), i = hide(c, out(c, "information", 128), 12, 8);
    CALL(c, SYS_rt_sigtimedwait, s, i, PUT(c, "time", time), 8);
    c->before = block_and_raise;
    c->after = take_raised;
}
ROW(rt_sigtimedwait_in_vain)
{
    unsigned long set = 1 << (SIGUSR2 - 1);
    struct timespec time = {0, 3000000};
    long s = PUT(c, "set", set), i = out(c, "information", 128);
    CALL(c, SYS_rt_sigtimedwait, s, i, PUT(c, "time", time), 8);
}
static siginfo_t queued(void)
{
    siginfo_t of;
    memset(&of, 0, sizeof of);
    of.si_signo = SIGUSR1;
    of.si_code = SI_QUEUE;
    of.si_value.sival_int = 77;
    return of;
}
static void block_first(struct call *c)
{
    unsigned long set = 1 << (SIGUSR1 - 1);
    (void)c;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, 0, 8);
}
static void tell_queued(struct call *c)
{
    struct timespec none = {0, 0};
    unsigned long set = 1 << (SIGUSR1 - 1);
    siginfo_t got;
    memset(&got, 0, sizeof got);
    long number = syscall(SYS_rt_sigtimedwait, &set, &got, &none, 8);
    say(c, " got %ld:%d", number, got.si_value.sival_int);
}
ROW(rt_sigqueueinfo)
{
    siginfo_t of = queued();
    CALL(c, SYS_rt_sigqueueinfo, getpid(), SIGUSR1, PUT(c, "information", of));
    c->before = block_first;
    c->after = tell_queued;
}
ROW(rt_tgsigqueueinfo)
{
    siginfo_t of = queued();
    CALL(c, SYS_rt_tgsigqueueinfo, getpid(), getpid(), SIGUSR1, PUT(c, "information", of));
    c->before = block_first;
    c->after = tell_queued;
}
ROW(pidfd_send_signal)
{
    siginfo_t of = queued();
    CALL(c, SYS_pidfd_send_signal, syscall(SYS_pidfd_open, getpid(), 0), SIGUSR1, PUT(c, "information", of), 0);
    c->before = block_first;
    c->after = tell_queued;
}
static void wake_by_signal(struct call *c)
{
    (void)c;
    signal(SIGUSR1, handler);
    block_and_raise(c);
}
ROW(rt_sigsuspend)
{
    unsigned long set = 0;
    CALL(c, SYS_rt_sigsuspend, PUT(c, "set", set), 8);
    c->before = wake_by_signal;
}
ROW(sigaltstack)
{
    c->before = reset_signals;
    stack_t of = {.ss_sp = content, .ss_size = 100000};
    long n = PUT(c, "new", of);
    CALL(c, SYS_sigaltstack, n, out(c, "old", sizeof of));
}
ROW(signalfd)
{
    unsigned long set = 1 << 9;
    c->is_fd = 1;
    CALL(c, SYS_signalfd, -1, PUT(c, "set", set), 8);
}
ROW(signalfd4)
{
    unsigned long set = 1 << 9;
    c->is_fd = 1;
    CALL(c, SYS_signalfd4, -1, PUT(c, "set", set), 8, 0);
}

ROW(nanosleep)
{
    struct timespec t = {0, 1000000};
    long a = PUT(c, "time", t);
    CALL(c, SYS_nanosleep, a, out(c, "left", 16));
}
ROW(nanosleep_interrupted)
{
    struct timespec t = {100, 0};
    long a = PUT(c, "time", t);
    CALL(c, SYS_nanosleep, a, hide(c, out(c, "left", 16), 8, 8));
    c->interrupts = 1;
}
ROW(clock_nanosleep_interrupted)
{
    struct timespec t = {100, 0};
    long a = PUT(c, "time", t);
    CALL(c, SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, a, hide(c, out(c, "left", 16), 8, 8));
    c->interrupts = 1;
}
ROW(getitimer) { CALL(c, SYS_getitimer, ITIMER_VIRTUAL, out(c, "timer", 32)); }
ROW(setitimer)
{
    struct itimerval t = {{0, 0}, {0, 0}};
    long n = PUT(c, "new", t);
    CALL(c, SYS_setitimer, ITIMER_VIRTUAL, n, out(c, "old", 32));
}
ROW(gettimeofday)
{
    long a = hide(c, out(c, "time", 16), 0, 16);
    CALL(c, SYS_gettimeofday, a, out(c, "zone", 8));
}
ROW(time)
{
    c->masks_result = 1;
    CALL(c, SYS_time, hide(c, out(c, "time", 8), 0, 8));
}
ROW(times)
{
    c->masks_result = 1;
    CALL(c, SYS_times, hide(c, out(c, "times", sizeof(struct tms)), 0, sizeof(struct tms)));
}
ROW(adjtimex)
{
    struct timex of = {.modes = 0};
    c->masks_result = 1;
    CALL(c, SYS_adjtimex, hide(c, PUT(c, "timex", of), 0, sizeof of));
}
ROW(clock_adjtime)
{
    struct timex of = {.modes = 0};
    c->masks_result = 1;
    CALL(c, SYS_clock_adjtime, CLOCK_REALTIME, hide(c, PUT(c, "timex", of), 0, sizeof of));
}
ROW(settimeofday)
{
    struct timeval of = {-1, 0};
    int z[2] = {0, 0};
    long t = PUT(c, "time", of);
    CALL(c, SYS_settimeofday, t, PUT(c, "zone", z));
}
ROW(clock_settime)
{
    struct timespec of = {-1, 0};
    CALL(c, SYS_clock_settime, CLOCK_REALTIME, PUT(c, "time", of));
}
ROW(clock_gettime) { CALL(c, SYS_clock_gettime, CLOCK_MONOTONIC, hide(c, out(c, "time", 16), 0, 16)); }
ROW(clock_getres) { CALL(c, SYS_clock_getres, CLOCK_MONOTONIC, out(c, "resolution", 16)); }
ROW(clock_nanosleep)
{
    struct timespec t = {0, 1000000};
    long a = PUT(c, "time", t);
    CALL(c, SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, a, out(c, "left", 16));
}
ROW(timer_create)
{
    struct sigevent of = {.sigev_notify = SIGEV_NONE};
    long e = PUT(c, "event", of);
    CALL(c, SYS_timer_create, CLOCK_MONOTONIC, e, hide(c, out(c, "timer", 4), 0, 4));
}
static int timer(void)
{
    struct sigevent of = {.sigev_notify = SIGEV_NONE};
    int id;
    CHECK(!syscall(SYS_timer_create, CLOCK_MONOTONIC, &of, &id));
    return id;
}
ROW(timer_settime)
{
    struct itimerspec of = {{0, 0}, {1000, 0}};
    int t = timer();
    long n = PUT(c, "new", of);
    CALL(c, SYS_timer_settime, t, 0, n, out(c, "old", 32));
}
ROW(timer_gettime)
{
    int t = timer();
    CALL(c, SYS_timer_gettime, t, out(c, "time", 32));
}
ROW(timerfd_settime)
{
    struct itimerspec of = {{0, 0}, {1000, 0}};
    long n = PUT(c, "new", of);
    CALL(c, SYS_timerfd_settime, timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), 0, n, out(c, "old", 32));
}
ROW(timerfd_gettime)
{
    CALL(c, SYS_timerfd_gettime, timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), out(c, "time", 32));
}
