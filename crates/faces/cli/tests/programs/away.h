/* Memory that is sent away, for programs that look what becomes of it. */
#include "check.h"
#include <linux/futex.h>

/* Memory of which more is used than may be in memory. */
#ifndef MUCH
#define MUCH (40 << 20)
#endif
static unsigned char *much;

static inline unsigned char *map(size_t bytes)
{
    unsigned char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Pages of it that are in memory, but for the first, which this call may bring in. */
static inline size_t in_memory(unsigned char *at, size_t bytes)
{
    static unsigned char there[(64 << 20) / 4096];
    size_t count = 0;
    CHECK(bytes / 4096 <= sizeof there);
    CHECK(!mincore(at, bytes, there));
    for (size_t i = 1; i < bytes / 4096; i++)
        count += there[i] & 1;
    return count;
}

static inline void press(void)
{
    if (!much)
        much = map(MUCH);
    for (size_t i = 0; i < MUCH; i += 4096)
        much[i]++;
}

/* Uses the next MiB of it, and begins again behind the last. */
static inline void press_a_mib(void)
{
    static size_t next;
    for (size_t end = next + (1 << 20); next < end; next += 4096)
        much[next]++;
    next %= MUCH;
}

/* Uses other memory until at most `left` pages of this are in memory, and the first, and then what was only set
   aside has left as well. What the last call named may stay until the next of its kind. */
static inline void send_away(unsigned char *at, size_t bytes, size_t left)
{
    time_t began = seconds();
    if (!much)
        press();
    *(unsigned *)much = 0;
    CHECK(write(-1, much, 1) == -1 && errno == EBADF);
    CHECK(!syscall(SYS_futex, much, FUTEX_TRYLOCK_PI_PRIVATE, 0, 0l, 0l, 0));
    do {
        CHECK(seconds() - began < HANGS);
        press_a_mib();
    } while (in_memory(at, bytes) > left);
    for (int mib = 0; mib < 4; mib++)
        press_a_mib();
}
