/* Four threads write and check 160 MiB while a fifth reads the file argv[1] over and over, so that
   the page cache takes whatever memory is left. It reads without read-ahead: a disk may read
   8 MiB ahead, and Linux kills rather than waits where all the cache there is is being read. */
#include "check.h"
#include <fcntl.h>
#include <stdint.h>

#define THREADS 4
#define EACH (40 << 20)
#define ROUNDS 3

static volatile int over;

static void *work(void *number)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t *words = mmap(0, EACH, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(words != MAP_FAILED);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t seed = round * 1000 + (uint64_t)number;
        for (size_t i = 0; i < EACH / sizeof *words; i++)
            words[i] = (i + seed) * 0x9e3779b97f4a7c15;
        for (size_t i = 0; i < EACH / sizeof *words; i++)
            CHECK(words[i] == (i + seed) * 0x9e3779b97f4a7c15);
    }
    return 0;
}

static void *read_on(void *path)
{
    static char bytes[1 << 16];
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && !posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM));
    while (!over)
        for (off_t at = 0; !over && pread(fd, bytes, sizeof bytes, at) > 0; at += sizeof bytes)
            ;
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS], reader;
    CHECK(argc == 2 && agent_active());
    CHECK(!pthread_create(&reader, 0, read_on, argv[1]));
    for (size_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], 0, work, (void *)i));
    for (size_t i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], 0));
    over = 1;
    CHECK(!pthread_join(reader, 0));
    return 0;
}
