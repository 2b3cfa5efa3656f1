/* Memory that Linux reaches with the address space locked, when it had been paged out: words of futexes that Linux
   changes, and what is pinned for a device (here an AF_XDP socket). */
#include "away.h"
#include <linux/if_xdp.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define ROUNDS 200

static long futex(atomic_uint *word, int operation, unsigned value, atomic_uint *other, unsigned more)
{
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, 0l, other, more);
}

static void words(void)
{
    unsigned char *at = map(1 << 20);
    memset(at, 0, 1 << 20);
    atomic_uint *word = (atomic_uint *)(at + 8192), *other = (atomic_uint *)(at + 16384);
    unsigned self = syscall(SYS_gettid);
    /* Away, and in memory again but write-protected, because it has only been read since. */
    for (int is_read = 0; is_read < 2; is_read++) {
#define AWAY                                       \
    do {                                           \
        send_away(at, 1 << 20, 0);                 \
        if (is_read)                               \
            (void)*(volatile unsigned *)word,      \
                (void)*(volatile unsigned *)other; \
    } while (0)
        AWAY;
        CHECK(!futex(word, FUTEX_LOCK_PI, 0, 0, 0));
        CHECK(*word == self);
        AWAY;
        CHECK(futex(word, FUTEX_LOCK_PI, 0, 0, 0) == -1 && errno == EDEADLK);
        AWAY;
        CHECK(!futex(word, FUTEX_UNLOCK_PI, 0, 0, 0));
        CHECK(*word == 0);
        AWAY;
        CHECK(!futex(word, FUTEX_TRYLOCK_PI, 0, 0, 0));
        CHECK(*word == self);
        *word = 0;
        AWAY;
        CHECK(futex(word, FUTEX_WAKE_OP, 1, other, FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0)) == 0);
        CHECK(*other == 5u * (is_read + 1));
    }
    CHECK(!munmap(at, 1 << 20));
}

struct shared {
    pthread_mutex_t mutex;
    long count;
};

static void *count(void *of)
{
    struct shared *shared = of;
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(!pthread_mutex_lock(&shared->mutex));
        long seen = shared->count;
        sched_yield();
        shared->count = seen + 1;
        CHECK(!pthread_mutex_unlock(&shared->mutex));
    }
    return 0;
}

/* Mutexes that pass priority on, in memory that comes and goes while threads wait for them. */
static void mutexes(void)
{
    struct shared *shared = (struct shared *)(map(1 << 20) + 4096);
    pthread_mutexattr_t kind;
    pthread_t threads[3];
    CHECK(!pthread_mutexattr_init(&kind));
    CHECK(!pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT));
    CHECK(!pthread_mutex_init(&shared->mutex, &kind));
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], 0, count, shared));
    for (int i = 0; i < 4; i++)
        press();
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_join(threads[i], 0));
    CHECK(shared->count == 3 * ROUNDS);
}

static int pin(unsigned char *at, size_t bytes)
{
    int device = socket(AF_XDP, SOCK_RAW, 0);
    CHECK(device >= 0);
    struct xdp_umem_reg area = {.addr = (unsigned long)at, .len = bytes, .chunk_size = 4096};
    unsigned char *page = map(1 << 20);
    struct xdp_umem_reg *given = (struct xdp_umem_reg *)(page + 8192);
    *given = area;
    send_away(page, 1 << 20, 0);
    int done = setsockopt(device, SOL_XDP, XDP_UMEM_REG, given, sizeof *given);
    CHECK(!munmap(page, 1 << 20));
    if (!done)
        return device;
    int why = errno;
    CHECK(!close(device));
    errno = why;
    return -1;
}

static void holds(unsigned char *at, size_t bytes, unsigned more)
{
    for (size_t i = 0; i < bytes; i += 512)
        CHECK(at[i] == (unsigned char)((i >> 9) * 7 + more));
}

static void fill(unsigned char *at, size_t bytes, unsigned more)
{
    for (size_t i = 0; i < bytes; i += 512)
        at[i] = (i >> 9) * 7 + more;
}

/* What a device has pinned stays, all else comes and goes, and it can leave when the device has given it back. */
static void device(size_t bytes)
{
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    send_away(at, bytes, bytes / 4096 / 8);
    int pinned = pin(at, bytes);
    CHECK(pinned >= 0);
    holds(at, bytes, 1);
    fill(at, bytes, 2);
    for (int i = 0; i < 4; i++) {
        press();
        CHECK(in_memory(at, bytes) == bytes / 4096 - 1);
        holds(at, bytes, 2);
    }
    CHECK(!close(pinned));
    send_away(at, bytes, bytes / 4096 / 8);
    holds(at, bytes, 2);
    /* Its new place is like any other. */
    pinned = pin(at, bytes);
    CHECK(pinned >= 0);
    press();
    CHECK(!close(pinned));
    unsigned char *moved = mremap(at, bytes, 2 * bytes, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    holds(moved, bytes, 2);
    send_away(moved, bytes, bytes / 4096 / 8);
    holds(moved, bytes, 2);
}

static void too_much(size_t bytes)
{
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    press();
    CHECK(pin(at, bytes) == -1 && errno == ENOMEM);
    holds(at, bytes, 1);
    send_away(at, bytes, bytes / 4096 / 8);
}

int main(int number, char **args)
{
    CHECK(agent_active());
    press();
    if (number == 1) {
        words();
        mutexes();
    } else if (!strcmp(args[1], "pinned")) {
        device((size_t)atoi(args[2]) << 20);
    } else {
        too_much((size_t)atoi(args[2]) << 20);
    }
    puts("ok");
}
