/* Files that are read and written by other threads while they are mapped for the first time. */
#include "check.h"

enum { PAGE = 4096, PAGES = 256, BYTES = PAGES * PAGE, ROUNDS = 40 };

static int file;
static volatile int written, is_over;

static void fill(char *page, int number)
{
    memset(page, 1 + number % 255, PAGE);
}

static void *writes(void *none)
{
    char page[PAGE];
    for (int i = 0; i < PAGES; i++) {
        fill(page, i);
        CHECK(pwrite(file, page, PAGE, i * PAGE) == PAGE);
        written = i + 1;
    }
    return none;
}

static void *reads(void *none)
{
    char page[PAGE], seen[PAGE];
    while (!is_over) {
        int last = written - 1;
        if (last < 0)
            continue;
        fill(page, last);
        CHECK(pread(file, seen, PAGE, last * PAGE) == PAGE && !memcmp(page, seen, PAGE));
    }
    return none;
}

static void map_after(int fd, int pages)
{
    pthread_t writer, reader;
    char page[PAGE];
    file = fd, written = is_over = 0;
    CHECK(!ftruncate(fd, BYTES));
    CHECK(!pthread_create(&writer, 0, writes, 0) && !pthread_create(&reader, 0, reads, 0));
    while (written < pages)
        ;
    char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    CHECK(!pthread_join(writer, 0));
    is_over = 1;
    CHECK(!pthread_join(reader, 0));
    for (int i = 0; i < PAGES; i++) {
        fill(page, i);
        CHECK(!memcmp(at + i * PAGE, page, PAGE));
    }
    CHECK(!munmap(at, BYTES) && !close(fd));
}

int main(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        int fd = memfd_create("first-mapped", 0);
        CHECK(fd >= 0);
        map_after(fd, i * 7 % PAGES);
        const char *name = own_name("/farpage-first-mapped");
        fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        CHECK(fd >= 0 && !shm_unlink(name));
        map_after(fd, i * 7 % PAGES);
    }
    puts("as it should be");
    return 0;
}
