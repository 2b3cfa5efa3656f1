/* Children that touch, give back, unmap and are killed while their parent's memory comes and goes:
   every kind of end that an account can have. */
#include "check.h"

#define PAGES (32 << 8)
#define ROUNDS 8
#define CHILDREN 4
#define TOUCHED 400

static unsigned char *all;
static volatile int over;

static unsigned next(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static size_t *page(size_t number)
{
    return (size_t *)(all + number * 4096);
}

/* Keeps pages moving in the parent, also while a child is young. */
static void *touch(void *unused)
{
    unsigned seed = 7;
    while (!over)
        page(next(&seed) % PAGES)[1]++;
    return unused;
}

static void check_some(unsigned seed, int count)
{
    for (int i = 0; i < count; i++) {
        size_t number = next(&seed) % PAGES;
        CHECK(page(number)[0] == number);
        page(number)[2] = seed;
    }
}

static void child(int round, int which)
{
    unsigned seed = round * CHILDREN + which;
    check_some(seed, TOUCHED);
    if (which == 1)
        CHECK(!madvise(all, PAGES * 2048L, MADV_DONTNEED));
    if (which == 2)
        CHECK(!munmap(all, PAGES * 4096L));
    while (which == 3)
        check_some(seed++, TOUCHED);
    _exit(4);
}

static void generation(int round)
{
    pid_t children[CHILDREN];
    for (int which = 0; which < CHILDREN; which++) {
        children[which] = fork();
        if (children[which] == 0)
            child(round, which);
    }
    for (int which = 0; which < CHILDREN - 1; which++)
        wait_for(children[which], 4);
    CHECK(!kill(children[CHILDREN - 1], SIGKILL));
    CHECK(waitpid(children[CHILDREN - 1], 0, 0) > 0);
}

int main(void)
{
    pthread_t toucher;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    CHECK(agent_active());
    all = mmap(0, PAGES * 4096L, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(all != MAP_FAILED);
    for (size_t number = 0; number < PAGES; number++)
        for (size_t word = 0; word < 512; word++)
            page(number)[word] = word ? (number + word) * 0x9e3779b97f4a7c15 : number;
    CHECK(!pthread_create(&toucher, 0, touch, 0));
    for (int round = 0; round < ROUNDS; round++)
        generation(round);
    over = 1;
    CHECK(!pthread_join(toucher, 0));
    check_some(1, PAGES);
    return 0;
}
