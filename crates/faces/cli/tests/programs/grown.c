/* What lies beyond the end of a file raises SIGBUS until the file has grown. */
#include "check.h"

#define BYTES (4 << 20)

static sigjmp_buf back;

static void on_bus(int number)
{
    siglongjmp(back, number);
}

static int raises(volatile char *at)
{
    if (sigsetjmp(back, 1))
        return 1;
    *at = 1;
    return 0;
}

static void grown(int fd)
{
    char *at, *other;
    CHECK(!ftruncate(fd, BYTES / 4));
    at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    other = mmap(0, BYTES / 2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, BYTES / 2);
    CHECK(at != MAP_FAILED && other != MAP_FAILED);
    at[0] = 7;
    CHECK(raises(at + BYTES / 2) && raises(other) && raises(at + BYTES - 1));
    CHECK(!ftruncate(fd, BYTES / 2 + 4096));
    CHECK(!raises(at + BYTES / 2) && !raises(other) && raises(at + BYTES - 1));
    CHECK(pwrite(fd, "w", 1, BYTES - 1) == 1);
    CHECK(at[BYTES - 1] == 'w' && !raises(at + BYTES - 1));
    CHECK(!ftruncate(fd, 4096));
    CHECK(raises(at + 8192) && raises(other));
    CHECK(!fallocate(fd, 0, 0, BYTES));
    CHECK(!raises(at + 8192) && !raises(other) && at[BYTES - 1] == 0 && at[0] == 7);
    CHECK(!munmap(at, BYTES) && !munmap(other, BYTES / 2));
    close(fd);
}

int main(void)
{
    const char *name = own_name("/dev/shm/grown");
    int fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(!unlink(name));
    signal(SIGBUS, on_bus);
    grown(memfd_create("grown", 0));
    grown(fd);
    puts("as it should be");
    return 0;
}
