/* Coroutines by makecontext and swapcontext, their stacks in one block that does not stay in memory. Each makes system
 * calls from its stack, and a timer's signal arrives on whichever runs. usage: contexts MIB */
#include "job.h"
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#define STACK (64UL << 10)
#define ROUNDS 6

static ucontext_t scheduler;
static volatile sig_atomic_t ticks;
static int pipe_ends[2];

struct task {
    ucontext_t context;
    uint64_t number, sum;
    int done;
};

static void on_tick(int number)
{
    (void)number;
    volatile char deep[2000];
    memset((char *)deep, 1, sizeof deep);
    ticks++;
}

static void work(unsigned low, unsigned high)
{
    struct task *task = (struct task *)((uint64_t)high << 32 | low);
    uint64_t own[1024];
    for (size_t i = 0; i < 1024; i++)
        own[i] = mix(task->number * 1024 + i);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t sent = own[round], got = 0;
        while (write(pipe_ends[1], &sent, sizeof sent) < 0)
            MUST(errno == EINTR);
        while (read(pipe_ends[0], &got, sizeof got) < 0)
            MUST(errno == EINTR);
        MUST(got == sent);
        task->sum = digest(own, sizeof own, task->sum);
        MUST(swapcontext(&task->context, &scheduler) == 0);
    }
    task->done = 1;
}

int main(int argc, char **argv)
{
    size_t tasks = job_pages(argc, argv) * PAGE / STACK;
    char *stacks = malloc(tasks * STACK);
    struct task *task = calloc(tasks, sizeof *task);
    MUST(stacks && task && pipe(pipe_ends) == 0);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 2000}, {0, 2000}};
    for (size_t i = 0; i < tasks; i++) {
        /* Written all over, so that it is more than its last pages that must leave. */
        for (size_t page = 0; page < STACK / PAGE; page++)
            page_fill(stacks + i * STACK + page * PAGE, i * (STACK / PAGE) + page);
        MUST(getcontext(&task[i].context) == 0);
        task[i].number = i;
        task[i].context.uc_stack.ss_sp = stacks + i * STACK;
        task[i].context.uc_stack.ss_size = STACK;
        task[i].context.uc_link = &scheduler;
        uint64_t at = (uint64_t)&task[i];
        makecontext(&task[i].context, (void (*)(void))work, 2, (unsigned)at, (unsigned)(at >> 32));
    }
    MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
    uint64_t state = 1, switches = 0;
    for (size_t left = tasks; left > 0;) {
        size_t i = rng(&state) % tasks;
        while (task[i].done)
            i = (i + 1) % tasks;
        MUST(swapcontext(&scheduler, &task[i].context) == 0);
        switches++;
        left -= (size_t)task[i].done;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < tasks; i++) {
        sum = mix(sum ^ task[i].sum);
        page_check(stacks + i * STACK, i * (STACK / PAGE), "the end of a stack");
    }
    printf("%zu coroutines %llu switches %016llx %d\n", tasks, (unsigned long long)switches,
           (unsigned long long)sum, ticks > 0);
}
