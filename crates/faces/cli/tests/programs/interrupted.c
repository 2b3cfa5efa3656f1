/* Signals that arrive where the stack is managed memory, most of which had been paged out: coroutines, threads with
   stacks of the program's own, and stacks for signals. */
#define BIG (8 << 20)
#define MUCH (24 << 20)
#include "away.h"
#include <sys/time.h>
#include <ucontext.h>

#define STACK (1 << 20)
#define DEEP 20000
#define TICKS 200
#define THREADS 3

static ucontext_t outside, coroutine;
static unsigned char *stack;
static void (*body)(void);
static volatile sig_atomic_t seen, nested;
static volatile unsigned long at_handler;

/* Runs on the coroutine's stack, and comes back when it waits or ends. */
static void run_body(void)
{
    body();
}

static void begin(void (*what)(void))
{
    body = what;
    CHECK(!getcontext(&coroutine));
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = STACK;
    coroutine.uc_link = &outside;
    makecontext(&coroutine, run_body, 0);
}

static void go_on(void)
{
    CHECK(!swapcontext(&outside, &coroutine));
}

/* In the coroutine: goes on when its stack has left memory, but for what it needs to come back. */
static void wait_away(void)
{
    CHECK(!swapcontext(&coroutine, &outside));
}

/* Runs it to its end, `times` times with its stack away. */
static void run_away(void (*what)(void), int times)
{
    begin(what);
    for (int i = 0; i < times; i++) {
        go_on();
        send_away(stack, STACK, 0);
    }
    go_on();
}

static int is_on(const unsigned char *at, size_t bytes, unsigned long what)
{
    return what - (unsigned long)at < bytes;
}

static void use_stack(size_t bytes)
{
    volatile char *deep = __builtin_alloca(bytes);
    for (size_t i = 0; i < bytes; i += 4096)
        deep[i] = 1;
}

/* Calls that are trapped, and that are not, with the stack ending anywhere in a page. */
static void call_at(size_t depth)
{
    volatile char *room = __builtin_alloca(depth);
    char path[64];
    room[0] = 1;
    CHECK(readlink("/proc/self/exe", path, sizeof path) > 0);
    use_memory();
}

static void calls(void)
{
    for (size_t depth = 64; depth < 6 * 4096; depth += 4096 + 512) {
        wait_away();
        call_at(depth);
    }
}

static void install(int number, void *handler, int flags)
{
    struct sigaction action = {.sa_flags = flags}, old;
    action.sa_sigaction = handler;
    CHECK(!sigaddset(&action.sa_mask, SIGUSR2));
    CHECK(!sigaction(number, &action, 0));
    CHECK(!sigaction(number, 0, &old));
    CHECK(old.sa_sigaction == handler && sigismember(&old.sa_mask, SIGUSR2) == 1);
    CHECK((old.sa_flags & ~0x04000000) == flags);
}

static int is_blocked(int number)
{
    sigset_t now;
    CHECK(!sigprocmask(SIG_BLOCK, 0, &now));
    return sigismember(&now, number);
}

static void plain(int number)
{
    char here;
    at_handler = (unsigned long)&here;
    seen = number;
    use_stack(DEEP);
    /* SIGSYS is the agent's as well, and never blocked. */
    CHECK(is_blocked(SIGUSR2) && is_blocked(number) == (number != SIGSYS));
    use_memory();
}

static void informed(int number, siginfo_t *info, void *context)
{
    ucontext_t *was = context;
    CHECK(info->si_signo == number && info->si_code == SI_TKILL && info->si_pid == getpid());
    CHECK(!sigismember(&was->uc_sigmask, SIGUSR2));
    CHECK(is_on(stack, STACK, was->uc_mcontext.gregs[REG_RSP]));
    plain(number);
}

static void nests(int number)
{
    seen = number;
    CHECK(is_blocked(number) == 0);
    if (++nested < 5)
        CHECK(!raise(number));
}

static void raises(void)
{
    static const struct {
        void *handler;
        int flags;
    } ways[] = {
        {plain, 0},
        {plain, SA_ONSTACK},
        {plain, SA_RESTART},
        {informed, SA_SIGINFO},
        {informed, SA_SIGINFO | SA_ONSTACK},
    };
    for (size_t i = 0; i < LENGTH(ways); i++) {
        install(SIGUSR1, ways[i].handler, ways[i].flags);
        seen = 0;
        wait_away();
        CHECK(!raise(SIGUSR1));
        CHECK(seen == SIGUSR1 && !is_blocked(SIGUSR1) && !is_blocked(SIGUSR2));
        CHECK(is_on(stack, STACK, at_handler));
    }
    install(SIGUSR1, nests, SA_NODEFER);
    wait_away();
    CHECK(!raise(SIGUSR1));
    CHECK(nested == 5);
    /* One that is for one time. */
    struct sigaction now;
    install(SIGUSR1, plain, SA_RESETHAND);
    wait_away();
    CHECK(!raise(SIGUSR1));
    CHECK(!sigaction(SIGUSR1, 0, &now) && now.sa_handler == SIG_DFL);
    /* The agent's own is the program's as well. */
    install(SIGSYS, plain, 0);
    wait_away();
    CHECK(!raise(SIGSYS));
    CHECK(seen == SIGSYS && is_on(stack, STACK, at_handler));
}

static void spoils(int number)
{
    unsigned clean, dirty = 0x1f80;
    double spoil = number;
    __asm__ volatile("stmxcsr %0" : "=m"(clean));
    CHECK(clean == 0x1f80);
    __asm__ volatile("ldmxcsr %0" ::"m"(dirty));
    __asm__ volatile("movsd %0, %%xmm7\n movsd %0, %%xmm15\n fldl %0" ::"m"(spoil) : "xmm7", "xmm15");
    seen = number;
}

/* What a handler does to registers stays there, but for what it changes in what it was given. */
static void registers(void)
{
    unsigned mode = 0xffc0, mode_after;
    double kept[2] = {3.25, -17.5}, after[2];
    long result = SYS_tgkill;
    install(SIGUSR1, spoils, 0);
    wait_away();
    __asm__ volatile("ldmxcsr %[mode]\n movupd %[kept], %%xmm7\n movupd %[kept], %%xmm15\n"
                     "fldl %[kept]\n syscall\n fstpl %[after]\n"
                     "movsd %%xmm15, 8+%[after]\n subsd %%xmm7, %%xmm15\n"
                     "stmxcsr %[mode_after]\n"
                     : "+a"(result), [after] "=m"(after), [mode_after] "=m"(mode_after)
                     : [mode] "m"(mode), [kept] "m"(kept), "D"(getpid()), "S"(syscall(SYS_gettid)),
                       "d"(SIGUSR1)
                     : "rcx", "r11", "xmm7", "xmm15", "memory");
    unsigned usual = 0x1f80;
    __asm__ volatile("ldmxcsr %0" ::"m"(usual));
    CHECK(!result && seen == SIGUSR1 && (mode_after & 0xffc0) == 0xffc0);
    CHECK(after[0] == 3.25 && after[1] == 3.25);
}

static void repairs(int number, siginfo_t *info, void *context)
{
    ucontext_t *was = context;
    CHECK(number == SIGSEGV && info->si_addr == (void *)16);
    was->uc_mcontext.gregs[REG_RIP] += 3;
    was->uc_mcontext.gregs[REG_RBX] = 42;
    /* From now on this one is blocked. */
    sigaddset(&was->uc_sigmask, SIGWINCH);
}

static sigjmp_buf place;
static void leaves(int number)
{
    seen = number;
    siglongjmp(place, 1);
}

static void faults(void)
{
    long result;
    install(SIGSEGV, repairs, SA_SIGINFO);
    wait_away();
    __asm__ volatile("mov $16, %%eax\n .byte 0x48, 0x8b, 0x18" : "=b"(result)::"rax");
    CHECK(result == 42 && is_blocked(SIGWINCH));
    install(SIGSEGV, leaves, 0);
    seen = 0;
    wait_away();
    if (!sigsetjmp(place, 1))
        *(volatile char *)8 = 1;
    CHECK(seen == SIGSEGV && !is_blocked(SIGSEGV));
}

static unsigned char *special;

static void on_special(int number, siginfo_t *info, void *context)
{
    ucontext_t *was = context;
    stack_t now, other = {.ss_sp = stack, .ss_size = STACK};
    (void)info;
    CHECK(is_on(special, STACK, (unsigned long)&now));
    CHECK(was->uc_stack.ss_sp == special && was->uc_stack.ss_size == STACK);
    CHECK(!sigaltstack(0, &now) && now.ss_sp == special && now.ss_flags == SS_ONSTACK);
    CHECK(sigaltstack(&other, 0) == -1 && errno == EPERM);
    use_stack(DEEP);
    if (!nested++)
        CHECK(!raise(number));
    seen = number;
}

static void on_disarmed(int number, siginfo_t *info, void *context)
{
    stack_t now, other = {.ss_sp = stack, .ss_size = STACK};
    (void)info, (void)context;
    CHECK(is_on(special, STACK, (unsigned long)&now));
    CHECK(!sigaltstack(0, &now) && now.ss_flags == SS_DISABLE);
    CHECK(!sigaltstack(&other, 0));
    seen = number;
}

/* A stack for signals, which is away as well. */
static void special_stacks(void)
{
    stack_t now, none = {.ss_flags = SS_DISABLE}, small = {.ss_sp = special, .ss_size = 1000},
                 wrong = {.ss_sp = special, .ss_flags = 77, .ss_size = STACK},
                 good = {.ss_sp = special, .ss_size = STACK},
                 disarmed = {.ss_sp = special, .ss_size = STACK, .ss_flags = 1u << 31};
    CHECK(!sigaltstack(0, &now) && now.ss_flags == SS_DISABLE);
    CHECK(sigaltstack(&small, 0) == -1 && errno == ENOMEM);
    CHECK(sigaltstack(&wrong, 0) == -1 && errno == EINVAL);
    CHECK(sigaltstack((stack_t *)8, 0) == -1 && errno == EFAULT);
    CHECK(!sigaltstack(&good, &now) && now.ss_flags == SS_DISABLE);
    CHECK(!sigaltstack(0, &now) && now.ss_flags == 0 && now.ss_sp == special && now.ss_size == STACK);
    install(SIGUSR1, on_special, SA_SIGINFO | SA_ONSTACK | SA_NODEFER);
    wait_away();
    seen = nested = 0;
    CHECK(!raise(SIGUSR1));
    CHECK(seen == SIGUSR1 && nested == 2);
    /* Handlers that do not ask for it do not get it. */
    install(SIGUSR1, plain, 0);
    CHECK(!raise(SIGUSR1) && is_on(stack, STACK, at_handler));
    pid_t child = fork();
    if (child == 0) {
        install(SIGUSR1, plain, SA_ONSTACK);
        CHECK(!raise(SIGUSR1) && is_on(special, STACK, at_handler));
        _exit(6);
    }
    wait_for(child, 6);
    CHECK(!sigaltstack(&disarmed, 0));
    install(SIGUSR1, on_disarmed, SA_SIGINFO | SA_ONSTACK);
    wait_away();
    seen = 0;
    CHECK(!raise(SIGUSR1) && seen == SIGUSR1);
    CHECK(!sigaltstack(&none, &now) && now.ss_sp == special && (unsigned)now.ss_flags == 1u << 31);
    CHECK(!sigaltstack(0, &now) && now.ss_flags == SS_DISABLE && now.ss_size == 0);
}

/* Children, from a stack that is away; the last is this program. */
static char *self;
static void children(void)
{
    char *args[] = {self, "child", 0}, *env[] = {0};
    install(SIGUSR1, plain, SA_ONSTACK);
    wait_away();
    pid_t child = fork();
    if (child == 0) {
        CHECK(!raise(SIGUSR1) && seen == SIGUSR1);
        call_at(5000);
        execve(self, args, env);
        _exit(1);
    }
    wait_for(child, 8);
    wait_away();
    CHECK(!posix_spawn(&child, self, 0, 0, args, env));
    wait_for(child, 8);
    wait_away();
    child = vfork();
    if (child == 0) {
        execve(self, args, env);
        _exit(1);
    }
    wait_for(child, 8);
    /* One that ends as a thread does leaves its parent what is its parent's. */
    child = vfork();
    if (child == 0)
        syscall(SYS_exit, 9);
    wait_for(child, 9);
    CHECK(!raise(SIGUSR1));
}

static volatile sig_atomic_t ticks;
static void tick(int number)
{
    (void)number;
    ticks++;
    use_stack(DEEP);
}

/* Signals at any time, while all comes and goes. */
static void ticking(void)
{
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    static double sum;
    install(SIGALRM, tick, SA_RESTART);
    ticks = 0;
    CHECK(!setitimer(ITIMER_REAL, &often, 0));
    time_t began = seconds();
    for (size_t round = 0; ticks < TICKS; round++) {
        CHECK(seconds() - began < HANGS);
        volatile double *deep = __builtin_alloca(round % 7 * 4096 + 64);
        deep[0] = sum = 0;
        for (size_t i = 0; i < MUCH; i += 4096) {
            much[i]++;
            sum += (double)i / 4096;
        }
        CHECK(sum == (double)(MUCH / 4096) * (MUCH / 4096 - 1) / 2);
        call_at(round % 5 * 1000 + 64);
    }
    CHECK(!setitimer(ITIMER_REAL, &never, 0));
}

static int pipe_ends[2], answers[2];

static void calls_away(int number)
{
    static unsigned char *page;
    if (!page)
        page = map(1 << 20);
    CHECK(readlink("/proc/self/exe", (char *)page + 8192, 50) > 0);
    seen = number;
}

/* On a stack that the program has made: it waits, with all of it away, is interrupted, and ends. */
static void *thread(void *buffer)
{
    stack_t now;
    CHECK(!sigaltstack(0, &now) && now.ss_flags == SS_DISABLE);
    call_at(3000);
    CHECK(write(answers[1], "b", 1) == 1);
    CHECK(read(pipe_ends[0], buffer, 65536) == 5 && !memcmp(buffer, "hello", 5));
    call_at(3000);
    return buffer;
}

static void with_own_stacks(void)
{
    pthread_attr_t attributes;
    unsigned char *buffer = map(1 << 20);
    CHECK(!pipe(pipe_ends) && !pipe(answers));
    install(SIGUSR1, calls_away, SA_RESTART);
    CHECK(!pthread_attr_init(&attributes));
    CHECK(!pthread_attr_setstack(&attributes, stack, STACK));
    for (int i = 0; i < THREADS; i++) {
        pthread_t made;
        void *result;
        char answer;
        /* What Linux has been told of for a thread stays: at the top, what the C library has of it. */
        send_away(stack, STACK, 8);
        seen = 0;
        CHECK(!pthread_create(&made, &attributes, thread, buffer));
        CHECK(read(answers[0], &answer, 1) == 1);
        send_away(stack, STACK, 8);
        send_away(buffer, 1 << 20, 16);
        CHECK(!pthread_kill(made, SIGUSR1));
        wait_until(seen, "the handler");
        send_away(buffer, 1 << 20, 16);
        CHECK(write(pipe_ends[1], "hello", 5) == 5);
        CHECK(!pthread_join(made, &result) && result == buffer);
    }
}

static void *raises_and_ends(void *unused)
{
    for (int i = 0; i < 10; i++)
        CHECK(!raise(SIGUSR1));
    return unused;
}

/* Threads come and go, with stacks of Linux's, and leave nothing. */
static void many_threads(void)
{
    install(SIGUSR1, tick, SA_ONSTACK);
    for (int i = 0; i < 50; i++) {
        pthread_t made[4];
        for (int j = 0; j < 4; j++)
            CHECK(!pthread_create(&made[j], 0, raises_and_ends, 0));
        for (int j = 0; j < 4; j++)
            CHECK(!pthread_join(made[j], 0));
    }
}

int main(int count, char **args)
{
    CHECK(agent_active());
    if (count > 1) {
        struct sigaction now;
        CHECK(!sigaction(SIGUSR1, 0, &now) && now.sa_handler == SIG_DFL);
        install(SIGUSR1, plain, SA_ONSTACK);
        CHECK(!raise(SIGUSR1));
        return 8;
    }
    self = args[0];
    stack = map(STACK);
    special = map(STACK);
    press();
    run_away(calls, 6);
    run_away(raises, 8);
    run_away(registers, 1);
    run_away(faults, 2);
    run_away(special_stacks, 2);
    run_away(children, 3);
    begin(ticking);
    go_on();
    with_own_stacks();
    many_threads();
    puts("ok");
}
