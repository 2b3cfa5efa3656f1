/* Many threads wait for a message, each with a page of its own for it, while other memory pages out. */
#include "check.h"
#include <sys/socket.h>

#define THREADS 700
#define PAGE 4096
#define MEMORY (64 << 20)

static char *pages;
static int ends[THREADS][2];

static void *waits(void *number)
{
    int i = (int)(long)number;
    char *page = pages + i * PAGE;
    CHECK(recv(ends[i][1], page, PAGE, 0) == 1 && *page == (char)i);
    return 0;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_attr_t small;
    pages = mmap(0, THREADS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long *memory = mmap(0, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && memory != MAP_FAILED);
    CHECK(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 64 << 10));
    struct rlimit files;
    CHECK(!getrlimit(RLIMIT_NOFILE, &files));
    files.rlim_cur = files.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &files));
    for (long i = 0; i < THREADS; i++) {
        CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends[i]));
        CHECK(!pthread_create(&threads[i], &small, waits, (void *)i));
    }
    for (int turn = 0; turn < 3; turn++)
        for (size_t i = 0; i < MEMORY / sizeof *memory; i++)
            memory[i] = memory[i] * 6364136223846793005 + i + 1;
    for (int i = 0; i < THREADS; i++) {
        char byte = i;
        CHECK(send(ends[i][0], &byte, 1, 0) == 1);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], 0));
    puts("as it should be");
    return 0;
}
