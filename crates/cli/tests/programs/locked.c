/* Memory that is locked before it must be managed stays, and can leave when it is unlocked. */
#include "check.h"

#define LOCKED (1 << 20)
#define ALL (48 << 20)

static size_t in_memory(unsigned char *at)
{
    unsigned char there[LOCKED / 4096];
    size_t count = 0;
    CHECK(!mincore(at, LOCKED, there));
    for (size_t i = 0; i < sizeof there; i++)
        count += there[i] & 1;
    return count;
}

static void holds(unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        CHECK(*(size_t *)(at + i) == i * 0x9e3779b97f4a7c15);
}

static void fill(unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        *(size_t *)(at + i) = i * 0x9e3779b97f4a7c15;
}

static unsigned char *map(size_t bytes)
{
    unsigned char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at, bytes);
    return at;
}

/* Goes through `much` until some of what is not locked has left: what a pass brings in again leaves
 * first, so how many passes that takes is the pager's affair. */
static void leaves_for(unsigned char *at, unsigned char *much)
{
    do
        holds(much, ALL);
    while (in_memory(at) == LOCKED / 4096);
}

int main(void)
{
    CHECK(agent_active());
    unsigned char *locked = map(LOCKED);
    CHECK(!mlock(locked, LOCKED));
    unsigned char *much = map(ALL);
    holds(much, ALL);
    CHECK(in_memory(locked) == LOCKED / 4096);
    /* Locks are not inherited. */
    pid_t pid = fork();
    if (pid == 0) {
        fill(much, ALL);
        holds(locked, LOCKED);
        holds(much, ALL);
        _exit(5);
    }
    wait_for(pid, 5);
    CHECK(in_memory(locked) == LOCKED / 4096);
    CHECK(madvise(locked, LOCKED, MADV_DONTNEED) == -1 && errno == EINVAL);
    holds(locked, LOCKED);
    CHECK(!munlock(locked, LOCKED));
    leaves_for(locked, much);
    holds(locked, LOCKED);
    /* While it is managed. */
    CHECK(!mlock2(locked, LOCKED, 0));
    for (int i = 0; i < 2; i++)
        holds(much, ALL);
    CHECK(in_memory(locked) == LOCKED / 4096);
    CHECK(!munlockall());
    leaves_for(locked, much);
    CHECK(!madvise(locked, LOCKED, MADV_DONTNEED));
    CHECK(locked[0] == 0);
    puts("ok");
}
