/* What children get of memory and descriptors, and when their parent goes on. The argument says how
   much memory is used beside, MiB: enough of it, and memory is managed. */
#define BIG (8 << 20)
#include "check.h"

#define PART (4 << 20)

static unsigned char *part(unsigned char value)
{
    unsigned char *at = mmap(0, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memset(at, value, PART);
    return at;
}

static void holds(unsigned char *at, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i += 512)
        CHECK(at[i] == value);
}

static int is_mapped(void *at)
{
    unsigned char there[PART / 4096];
    return mincore(at, PART, there) == 0;
}

static unsigned char *much;
static size_t much_bytes;

static void child_of_advice(unsigned char *parts[3])
{
    holds(parts[0], PART, 0);
    CHECK(!is_mapped(parts[1]));
    holds(parts[2], PART, 3);
    holds(much, much_bytes, 9);
    memset(parts[0], 4, PART);
    memset(much, 10, much_bytes);
    use_memory();
    holds(parts[0], PART, 4);
    holds(much, much_bytes, 10);
    _exit(5);
}

static void advice(unsigned char *parts[3])
{
    pid_t pid = fork();
    if (pid == 0)
        child_of_advice(parts);
    wait_for(pid, 5);
    for (int i = 0; i < 3; i++)
        holds(parts[i], PART, i + 1);
}

static void advice_is_taken_back(unsigned char *parts[3])
{
    CHECK(!madvise(parts[0], PART, MADV_KEEPONFORK));
    CHECK(!madvise(parts[1], PART, MADV_DOFORK));
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 3; i++)
            holds(parts[i], PART, i + 1);
        _exit(5);
    }
    wait_for(pid, 5);
}

static void waiting(const char *self)
{
    volatile int *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        for (int i = 0; i < 4; i++)
            use_memory();
        *shared = 1;
        _exit(5);
    }
    CHECK(*shared == 1);
    wait_for(pid, 5);
    /* Until it executes a program, and not until its own child ends. */
    int ends[2];
    CHECK(!pipe(ends));
    pid = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        if (fork() == 0) {
            char byte;
            close(ends[1]);
            CHECK(read(ends[0], &byte, 1) == 1);
            use_memory();
            _exit(0);
        }
        *shared = 2;
        execl(self, self, (char *)0);
        _exit(99);
    }
    CHECK(*shared == 2);
    CHECK(write(ends[1], "x", 1) == 1);
    wait_for(pid, 7);
}

static void uses_memory_in_child(long flags)
{
    pid_t pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        holds(much, much_bytes, 9);
        memset(much, 11, much_bytes);
        use_memory();
        holds(much, much_bytes, 11);
        _exit(5);
    }
    wait_for(pid, 5);
    holds(much, much_bytes, 9);
    memset(much, 9, much_bytes);
    holds(much, much_bytes, 9);
}

int main(int argc, char **argv)
{
    CHECK(agent_active());
    if (argc < 2)
        return 7;
    unsigned char *parts[3] = {part(1), part(2), part(3)};
    CHECK(!madvise(parts[0], PART, MADV_WIPEONFORK));
    CHECK(!madvise(parts[1], PART, MADV_DONTFORK));
    advice(parts);
    much_bytes = strtoul(argv[1], 0, 10) << 20;
    much = malloc(much_bytes);
    memset(much, 9, much_bytes);
    advice(parts);
    advice_is_taken_back(parts);
    CHECK(!madvise(parts[0], PART, MADV_WIPEONFORK));
    CHECK(!madvise(parts[1], PART, MADV_DONTFORK));
    advice(parts);
    parts[0] = mremap(parts[0], PART, 2 * PART, MREMAP_MAYMOVE);
    CHECK(parts[0] != MAP_FAILED);
    advice(parts);
    waiting(argv[0]);
    uses_memory_in_child(0);
    uses_memory_in_child(CLONE_FILES);
    /* Descriptor numbers run out, and Farpage's lie beyond the limit. */
    struct rlimit low = { 64, 64 };
    struct rlimit before;
    CHECK(!getrlimit(RLIMIT_NOFILE, &before));
    struct rlimit full = { before.rlim_cur, before.rlim_max };
    low.rlim_max = before.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &low));
    uses_memory_in_child(0);
    while (dup(0) >= 0)
        ;
    CHECK(errno == EMFILE);
    uses_memory_in_child(0);
    CHECK(!setrlimit(RLIMIT_NOFILE, &full));
    uses_memory_in_child(0);
    for (int fd = 40; fd < 64; fd++)
        close(fd);
    low.rlim_max = 64;
    CHECK(!setrlimit(RLIMIT_NOFILE, &low));
    uses_memory_in_child(0);
    puts("ok");
}
