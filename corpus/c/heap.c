/* The heap: malloc, realloc and free of all sizes through brk and mmap, then sbrk by hand. */
#include "job.h"

enum { SLOTS = 4096 };
static struct slot {
    char *at;
    size_t len;
    unsigned char with;
} slots[SLOTS];

static void check(const struct slot *s)
{
    for (size_t i = 0; i < s->len; i += 509)
        if ((unsigned char)s->at[i] != (unsigned char)(s->with + i / 509))
            DIE("heap byte %zu of %zu", i, s->len);
}

static void write_all(struct slot *s, unsigned char with)
{
    s->with = with;
    memset(s->at, with, s->len);
    for (size_t i = 0; i < s->len; i += 509)
        s->at[i] = (char)(with + i / 509);
}

static void use_sbrk(size_t bytes)
{
    char *base = sbrk((intptr_t)bytes);
    MUST(base != (char *)-1);
    for (size_t i = 0; i + 8 <= bytes; i += PAGE)
        memcpy(base + i, &i, sizeof i);
    for (size_t i = 0; i + 8 <= bytes; i += PAGE)
        MUST(memcmp(base + i, &i, sizeof i) == 0);
    MUST(sbrk(-(intptr_t)bytes) != (char *)-1);
    base = sbrk((intptr_t)bytes); /* memory given back comes again as zeros */
    for (size_t i = 0; i < bytes; i += PAGE)
        MUST(base[i] == 0 || i < PAGE);
    MUST(sbrk(-(intptr_t)bytes) != (char *)-1);
}

int main(int argc, char **argv)
{
    size_t budget = job_pages(argc, argv) * PAGE, live = 0, peak = 0, steps = 0;
    uint64_t seed = 99;
    while (steps++ < 60000) {
        struct slot *s = &slots[rng(&seed) % SLOTS];
        uint64_t r = rng(&seed);
        size_t len = 1 + rng(&seed) % (r % 16 == 0 ? 1 << 20 : r % 4 == 0 ? 1 << 15 : 2000);
        if (s->at)
            check(s);
        live -= s->len;
        if (s->at && (r >> 20) % 3 == 0) {
            s->at = realloc(s->at, len);
        } else {
            free(s->at);
            s->at = NULL;
            s->len = 0;
            if (live + len > budget)
                continue;
            s->at = malloc(len);
        }
        MUST(s->at != NULL);
        s->len = len;
        write_all(s, (unsigned char)r);
        live += len;
        peak = live > peak ? live : peak;
    }
    use_sbrk(budget / 4);
    uint64_t sum = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].at)
            check(&slots[i]);
        sum = mix(sum ^ slots[i].len ^ slots[i].with);
    }
    printf("peak %zu live %zu %016llx\n", peak, live, (unsigned long long)sum);
    return 0;
}
