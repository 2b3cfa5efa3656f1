/* Children do not get the shared memory that their parent has left out (`MADV_DONTFORK`), and all of the
 * rest. */
#include "check.h"

#define BYTES (4 << 20)
#define PAGE 4096

static int is_mapped(char *at)
{
    unsigned char there;
    return !mincore(at, PAGE, &there);
}

/* In a child, and in a child of that. */
static void children(char *at, int first, int next)
{
    pid_t child = fork();
    if (!child) {
        for (int depth = 0; depth < 2; depth++) {
            CHECK(is_mapped(at) == first && is_mapped(at + PAGE) == next);
            if (first)
                CHECK(at[0] == 1 && at[BYTES - 1] == 3);
            if (depth == 0 && (child = fork())) {
                wait_for(child, 0);
                break;
            }
        }
        if (first)
            at[BYTES / 2]++;
        _exit(0);
    }
    wait_for(child, 0);
}

static void left_out(char *at)
{
    CHECK(at != MAP_FAILED);
    at[0] = 1;
    at[PAGE] = 2;
    at[BYTES - 1] = 3;
    CHECK(!madvise(at + PAGE, 2 * PAGE, MADV_DONTFORK));
    children(at, 1, 0);
    CHECK(!mprotect(at, 2 * PAGE, PROT_READ));
    children(at, 1, 0);
    CHECK(!mprotect(at, 2 * PAGE, PROT_READ | PROT_WRITE));
    CHECK(madvise(at + 1, BYTES, MADV_DOFORK) == -1 && errno == EINVAL);
    CHECK(!madvise(at, BYTES, MADV_DONTFORK));
    children(at, 0, 0);
    CHECK(!madvise(at, BYTES, MADV_DOFORK));
    children(at, 1, 1);
    CHECK(at[PAGE] == 2 && at[BYTES / 2] == 6);
    CHECK(!munmap(at, BYTES));
}

int main(void)
{
    int fd = memfd_create("left out", 0);
    CHECK(!ftruncate(fd, BYTES));
    left_out(mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    left_out(mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    puts("as it should be");
    return 0;
}
