/* GNU Pth: threads of user space, which it switches itself, with their stacks from malloc; events, signals and a pipe.
 * usage: job MIB */
#include "../c/job.h"
#include <pth.h>
#include <signal.h>
#include <sys/time.h>

#define STACK (256UL << 10)

static int ends[2];
static volatile sig_atomic_t ticks;

static void on_tick(int number)
{
    (void)number;
    ticks++;
}

static uint64_t deep(uint64_t n, uint64_t seed)
{
    uint64_t own[512];
    for (size_t i = 0; i < 512; i++)
        own[i] = mix(seed + n * 512 + i);
    if (n % 8 == 0)
        pth_yield(NULL);
    uint64_t below = n > 0 ? deep(n - 1, seed) : 0;
    return digest(own, sizeof own, below);
}

static void *work(void *of)
{
    uint64_t number = (uint64_t)of, got;
    uint64_t sum = deep(48, number << 20);
    MUST(pth_write(ends[1], &sum, sizeof sum) == sizeof sum);
    pth_nap(pth_time(0, 1000));
    MUST(pth_read(ends[0], &got, sizeof got) == sizeof got);
    return (void *)(sum ^ deep(48, number << 20));
}

int main(int argc, char **argv)
{
    size_t count = job_pages(argc, argv) * PAGE / STACK;
    MUST(pth_init() && pipe(ends) == 0);
    MUST(signal(SIGALRM, on_tick) != SIG_ERR);
    struct itimerval every = {{0, 5000}, {0, 5000}};
    MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
    pth_t *threads = calloc(count, sizeof *threads);
    pth_attr_t attributes = pth_attr_new();
    MUST(threads && attributes);
    pth_attr_set(attributes, PTH_ATTR_STACK_SIZE, (unsigned)STACK);
    pth_attr_set(attributes, PTH_ATTR_JOINABLE, TRUE);
    for (size_t i = 0; i < count; i++)
        MUST((threads[i] = pth_spawn(attributes, work, (void *)i)) != NULL);
    uint64_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        void *result = NULL;
        MUST(pth_join(threads[i], &result));
        wrong += result != NULL;
    }
    printf("%zu threads, %llu wrong, %d\n", count, (unsigned long long)wrong, ticks > 0);
    return wrong != 0;
}
