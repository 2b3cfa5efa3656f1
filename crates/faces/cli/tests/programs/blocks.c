/* Many blocks, each a mapping of its own that is no multiple of any large page, live at a time: for Linux by itself they are
   one mapping. Threads need mappings afterwards. */
#include "check.h"
#include <pthread.h>

/* With two mappings for each this is too much. */
#define BLOCKS 33000
#define BYTES 200000
#define LAST (BYTES / sizeof **block - 1)
/* Of so many blocks one has its last word used as well: most of them fill one page only. */
#define WHOLE 16

static unsigned *block[BLOCKS];

static void *nothing(void *what)
{
    return what;
}

int main(void)
{
    pthread_t thread;
    for (unsigned i = 0; i < BLOCKS; i++) {
        block[i] = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(block[i] != MAP_FAILED);
        block[i][0] = i;
        if (i % WHOLE == 0)
            block[i][LAST] = ~i;
    }
    CHECK(!pthread_create(&thread, 0, nothing, 0) && !pthread_join(thread, 0));
    for (unsigned i = 0; i < BLOCKS; i++)
        CHECK(block[i][0] == i && !block[i][1] && (i % WHOLE || block[i][LAST] == ~i));
    /* Those beside one that is gone stay, and the next one finds its place. */
    for (unsigned i = WHOLE; i < BLOCKS; i += 60 * WHOLE + 1) {
        CHECK(!munmap(block[i], BYTES));
        block[i] = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(block[i] != MAP_FAILED && !block[i][0] && !block[i][LAST]);
        block[i][0] = i;
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        CHECK(block[i][0] == i && !munmap(block[i], BYTES));
    puts("as it should be");
    return 0;
}
