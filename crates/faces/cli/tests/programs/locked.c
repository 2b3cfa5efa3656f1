/* Memory that is locked before it must be managed stays, and can leave when it is unlocked. */
#include "away.h"

#define LOCKED (1 << 20)

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

static unsigned char *map_filled(size_t bytes)
{
    unsigned char *at = map(bytes);
    fill(at, bytes);
    return at;
}

static int is_in_memory(unsigned char *at)
{
    return in_memory(at, LOCKED) == LOCKED / 4096 - 1;
}

/* Goes through `much` until some of what is not locked has left: what a pass brings in again leaves
 * first, so how many passes that takes is the pager's affair. */
static void leaves_for(unsigned char *at)
{
    do
        holds(much, MUCH);
    while (is_in_memory(at));
}

int main(void)
{
    CHECK(agent_active());
    unsigned char *locked = map_filled(LOCKED);
    CHECK(!mlock(locked, LOCKED));
    much = map_filled(MUCH);
    holds(much, MUCH);
    CHECK(is_in_memory(locked));
    /* Locks are not inherited. */
    pid_t pid = fork();
    if (pid == 0) {
        fill(much, MUCH);
        holds(locked, LOCKED);
        holds(much, MUCH);
        _exit(5);
    }
    wait_for(pid, 5);
    CHECK(is_in_memory(locked));
    CHECK(madvise(locked, LOCKED, MADV_DONTNEED) == -1 && errno == EINVAL);
    holds(locked, LOCKED);
    CHECK(!munlock(locked, LOCKED));
    leaves_for(locked);
    holds(locked, LOCKED);
    /* While it is managed. */
    CHECK(!mlock2(locked, LOCKED, 0));
    for (int i = 0; i < 2; i++)
        holds(much, MUCH);
    CHECK(is_in_memory(locked));
    CHECK(!munlockall());
    leaves_for(locked);
    CHECK(!madvise(locked, LOCKED, MADV_DONTNEED));
    CHECK(locked[0] == 0);
    puts("ok");
}
