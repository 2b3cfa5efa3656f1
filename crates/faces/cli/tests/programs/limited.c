/* A program whose limits are set (ulimit) by who started it: they hold for it, and memory that is paged out comes back.
   Argument: "files BYTES", the limit on files; or "stack", without a limit. It says what it found. */
#include "check.h"
#include <sys/resource.h>

#define MIB (1 << 20)
#define BYTES (24 * MIB)

static void presses(void)
{
    unsigned long *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    unsigned long seed = 1;
    for (size_t i = 0; i < BYTES / sizeof *at; i++)
        at[i] = seed = seed * 6364136223846793005 + 1;
    seed = 1;
    for (size_t i = 0; i < BYTES / sizeof *at; i++)
        CHECK(at[i] == (seed = seed * 6364136223846793005 + 1));
    CHECK(!munmap(at, BYTES));
}

static volatile sig_atomic_t too_long;

static void on_too_long(int number)
{
    (void)number;
    too_long++;
}

static void files(rlim_t most)
{
    struct rlimit limit;
    char name[] = "/tmp/farpage-limited-XXXXXX", page[4096] = {0};
    CHECK(!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur == most);
    CHECK(signal(SIGXFSZ, on_too_long) != SIG_ERR);
    presses();
    CHECK(!too_long);
    int fd = mkstemp(name);
    CHECK(fd >= 0 && !unlink(name));
    CHECK(pwrite(fd, page, 4096, most - 4096) == 4096);
    CHECK(pwrite(fd, page, 1, most) == -1 && errno == EFBIG && too_long == 1);
    CHECK(!close(fd));
}

static int deep(int left)
{
    volatile char room[1024];
    room[0] = left;
    return left ? deep(left - 1) + room[0] : room[0];
}

static void *thread(void *nothing)
{
    (void)nothing;
    deep(100);
    return 0;
}

static void stack(void)
{
    struct rlimit limit;
    pthread_attr_t attributes;
    pthread_t threads[8];
    size_t size;
    CHECK(!getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur == RLIM_INFINITY);
    CHECK(!pthread_attr_init(&attributes) && !pthread_attr_getstacksize(&attributes, &size));
    for (int i = 0; i < 8; i++)
        CHECK(!pthread_create(&threads[i], 0, thread, 0));
    for (int i = 0; i < 8; i++)
        CHECK(!pthread_join(threads[i], 0));
    /* 20 MiB of stack: more than there usually may be. */
    deep(20000);
    presses();
    printf("stacks of %zu\n", size);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    if (!strcmp(argv[1], "files"))
        files(strtoul(argv[2], 0, 10));
    else
        stack();
    fflush(stdout);
    if (argc == 3 && strcmp(argv[1], "files"))
        return 0;
    if (strcmp(argv[1], "files")) {
        /* What it executes is as it is itself. */
        pid_t child = fork();
        if (!child) {
            execl(argv[0], argv[0], argv[1], "again", (char *)0);
            _exit(97);
        }
        wait_for(child, 0);
        child = vfork();
        if (!child) {
            execl("/bin/true", "true", (char *)0);
            _exit(97);
        }
        wait_for(child, 0);
        child = vfork();
        if (!child) {
            execl("/no/such/program", "program", (char *)0);
            _exit(7);
        }
        wait_for(child, 7);
        struct rlimit limit;
        CHECK(!getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur == RLIM_INFINITY);
    }
    return 0;
}
