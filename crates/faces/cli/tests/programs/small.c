/* Memory that the program makes of many small mappings leaves as other memory does: at most argv[1] of the
   argv[2] MiB that it has so are in memory at the end. Children that it makes, and programs that it executes, find it so too. */
#include "away.h"

#define EACH (32 << 10)

/* Aligned to their size, as allocators make them: twice as large, and what is too much given back, of which the front is some
   always. */
static unsigned char *aligned(void)
{
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *made = mmap(0, 2 * EACH, prot, flags, -1, 0);
    CHECK(made != MAP_FAILED);
    unsigned char *at = (unsigned char *)(((size_t)made + EACH) / EACH * EACH);
    CHECK(!munmap(made, at - made));
    if (at != made + EACH)
        CHECK(!munmap(at + EACH, made + EACH - at));
    return at;
}

static size_t fill(size_t mib, unsigned char ***list)
{
    size_t count = (mib << 20) / EACH;
    unsigned char **all = malloc(count * sizeof *all);
    CHECK(all);
    for (size_t i = 0; i < count; i++) {
        all[i] = aligned();
        for (size_t at = 0; at < EACH; at += 4096)
            *(size_t *)(all[i] + at) = i * EACH + at;
        /* Among them the program makes other memory, which is managed however much there is. */
        if (i % 64 == 0)
            memset(map(256 << 10), 1, 256 << 10);
    }
    *list = all;
    return count;
}

static void check(unsigned char **all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < EACH; at += 4096)
            CHECK(*(size_t *)(all[i] + at) == i * EACH + at);
}

/* Bytes of anonymous memory in this process. */
static size_t held(void)
{
    size_t all, resident, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%zu %zu %zu", &all, &resident, &shared) == 3);
    fclose(file);
    return (resident - shared) * 4096;
}

int main(int count, char **words)
{
    unsigned char **all;
    size_t most, mib, n;
    CHECK(count == 3);
    most = strtoul(words[1], 0, 10) << 20;
    mib = strtoul(words[2], 0, 10);
    n = fill(mib, &all);
    check(all, n);
    size_t mappings = mappings_with("");
    if (mappings > n / 8) {
        fprintf(stderr, "%zu mappings for %zu that lie beside one another\n", mappings, n);
        return 1;
    }
    if (held() > most) {
        fprintf(stderr, "%zu of %zu bytes are in memory\n", held(), most);
        return 1;
    }
    /* Half of them are unmapped, and others take their places. */
    for (size_t i = 0; i < n; i += 2)
        CHECK(!munmap(all[i], EACH));
    for (size_t i = 0; i < n; i += 2) {
        all[i] = mmap(0, EACH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(all[i] != MAP_FAILED);
        for (size_t at = 0; at < EACH; at += 4096) {
            CHECK(!*(size_t *)(all[i] + at));
            *(size_t *)(all[i] + at) = i * EACH + at;
        }
    }
    check(all, n);
    pid_t child = fork();
    if (!child) {
        check(all, n);
        for (size_t i = 0; i < n; i++)
            CHECK(!munmap(all[i], EACH));
        if (mib > 16) {
            char *again[] = {words[0], words[1], "16", 0};
            execv("/proc/self/exe", again);
            _exit(96);
        }
        _exit(0);
    }
    wait_for(child, 0);
    check(all, n);
    return 0;
}
