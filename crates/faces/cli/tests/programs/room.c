/* One thread writes to argv[1] MiB and checks them, while another says every 10 ms, and at which millisecond, that
   it goes on: it needs no page that it does not have. */
#include "check.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static volatile int over;

static void *work(void *mib)
{
    size_t words = ((size_t)mib << 20) / 8;
    uint64_t *all = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    for (int round = 0; round < 2; round++) {
        uint64_t seed = 7;
        for (size_t at = 0; at < words; at++) {
            seed = seed * 6364136223846793005 + 1442695040888963407;
            if (round == 0)
                all[at] = seed;
            CHECK(all[at] == seed);
        }
    }
    over = 1;
    return 0;
}

int main(int count, char **words)
{
    pthread_t thread;
    CHECK(count == 2);
    CHECK(!pthread_create(&thread, 0, work, (void *)strtoul(words[1], 0, 10)));
    while (!over) {
        struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
        nanosleep(&pause, 0);
        struct timespec now;
        char text[32];
        CHECK(!clock_gettime(CLOCK_MONOTONIC, &now));
        int length = sprintf(text, "%lld\n", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
        CHECK(write(1, text, length) == length);
    }
    CHECK(!pthread_join(thread, 0));
    CHECK(write(1, "right\n", 6) == 6);
    return 0;
}
