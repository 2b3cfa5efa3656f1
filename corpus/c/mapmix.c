/* Random mmap, munmap, mremap, mprotect, madvise and fork on large mappings, against a model of
 * what every page must hold. The seed is fixed, so the output is too. */
#include "job.h"

enum { MAPS = 12, STEPS = 400 };

struct map {
    char *at;
    size_t pages;
    uint64_t *tag; /* 0: the page is zero */
    int whole;     /* one mapping to Linux: only such a one can be resized or moved */
};

static struct map maps[MAPS];
static uint64_t seed = 7, next_tag = 1;
static size_t max_pages;

static void check(const struct map *m, const char *who)
{
    for (size_t i = 0; i < m->pages; i++) {
        if (m->tag[i])
            page_check(m->at + i * PAGE, m->tag[i], who);
        else
            page_check_zero(m->at + i * PAGE, who);
    }
}

static void fill(struct map *m, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        page_fill(m->at + i * PAGE, m->tag[i] = next_tag++);
}

static void fresh(struct map *m)
{
    m->pages = 1 + rng(&seed) % max_pages;
    m->at = map_pages(m->pages);
    m->whole = 1;
    m->tag = calloc(m->pages, sizeof *m->tag);
    MUST(m->tag != NULL);
    if (rng(&seed) % 2)
        madvise(m->at, m->pages * PAGE, MADV_HUGEPAGE);
    fill(m, 0, m->pages / (1 + rng(&seed) % 3));
}

static void drop(struct map *m)
{
    check(m, "before munmap");
    MUST(munmap(m->at, m->pages * PAGE) == 0);
    free(m->tag);
    m->at = NULL;
}

static void resize(struct map *m, size_t pages)
{
    if (!m->whole)
        return;
    char *at = mremap(m->at, m->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    MUST(at != MAP_FAILED);
    m->at = at;
    m->tag = realloc(m->tag, pages * sizeof *m->tag);
    MUST(m->tag != NULL);
    for (size_t i = m->pages; i < pages; i++)
        m->tag[i] = 0;
    m->pages = pages;
}

/* Moves a mapping onto a place of its own choosing, over another mapping that is there. */
static void move_fixed(struct map *m)
{
    if (!m->whole)
        return;
    char *goal = map_pages(m->pages);
    page_fill(goal, 1);
    MUST(mremap(m->at, m->pages * PAGE, m->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, goal) ==
         goal);
    m->at = goal;
}

static void punch(struct map *m, size_t first, size_t n)
{
    int kind = rng(&seed) % 3;
    m->whole = m->whole && kind == 0;
    switch (kind) {
    case 0:
        MUST(madvise(m->at + first * PAGE, n * PAGE, MADV_DONTNEED) == 0);
        break;
    case 1: /* unmap a hole and map it again at the same place */
        MUST(munmap(m->at + first * PAGE, n * PAGE) == 0);
        MUST(mmap(m->at + first * PAGE, n * PAGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
             m->at + first * PAGE);
        break;
    case 2:
        MUST(mmap(m->at + first * PAGE, n * PAGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == m->at + first * PAGE);
        break;
    }
    for (size_t i = first; i < first + n; i++)
        m->tag[i] = 0;
}

static void protect(struct map *m, size_t first, size_t n)
{
    MUST(mprotect(m->at + first * PAGE, n * PAGE, PROT_READ) == 0);
    check(m, "read-only");
    MUST(mprotect(m->at + first * PAGE, n * PAGE, PROT_NONE) == 0);
    MUST(mprotect(m->at + first * PAGE, n * PAGE, PROT_READ | PROT_WRITE) == 0);
}

/* MADV_FREE: until it is written again a page may hold its old contents or zeros. */
static void lazily_free(struct map *m, size_t first, size_t n)
{
    MUST(madvise(m->at + first * PAGE, n * PAGE, MADV_FREE) == 0);
    fill(m, first, n);
}

static void advise(struct map *m, size_t first, size_t n)
{
    static const int kinds[] = {MADV_WILLNEED, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL,
                                20 /* COLD */, 21 /* PAGEOUT */, MADV_NOHUGEPAGE, MADV_HUGEPAGE,
                                23 /* POPULATE_WRITE */};
    int kind = kinds[rng(&seed) % (sizeof kinds / sizeof *kinds)];
    madvise(m->at + first * PAGE, n * PAGE, kind);
    m->whole = 0;
}

static void forked(struct map *m, size_t first, size_t n)
{
    int kind = rng(&seed) % 3, wipe = kind == 1, leave = kind == 2;
    m->whole = m->whole && kind == 0;
    if (wipe)
        MUST(madvise(m->at + first * PAGE, n * PAGE, MADV_WIPEONFORK) == 0);
    if (leave)
        MUST(madvise(m->at + first * PAGE, n * PAGE, MADV_DONTFORK) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        for (size_t i = first; kind != 0 && i < first + n; i++)
            m->tag[i] = 0;
        if (leave) /* nothing is there: a new mapping has the place to itself */
            MUST(mmap(m->at + first * PAGE, n * PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
                 m->at + first * PAGE);
        for (int k = 0; k < MAPS; k++)
            if (maps[k].at)
                check(&maps[k], "child");
        fill(m, first, n);
        check(m, "child after its writes");
        _exit(0);
    }
    wait_ok(pid);
    if (wipe)
        MUST(madvise(m->at + first * PAGE, n * PAGE, MADV_KEEPONFORK) == 0);
    if (leave)
        MUST(madvise(m->at + first * PAGE, n * PAGE, MADV_DOFORK) == 0);
}

static void step(void)
{
    struct map *m = &maps[rng(&seed) % MAPS];
    if (m->at == NULL) {
        fresh(m);
        return;
    }
    size_t first = rng(&seed) % m->pages, n = 1 + rng(&seed) % (m->pages - first);
    switch (rng(&seed) % 11) {
    case 0:
        drop(m);
        return;
    case 1:
        resize(m, 1 + rng(&seed) % (2 * max_pages));
        break;
    case 2:
        resize(m, first + 1);
        break;
    case 3:
        move_fixed(m);
        break;
    case 4:
        punch(m, first, n);
        break;
    case 5:
        protect(m, first, n);
        break;
    case 6:
        lazily_free(m, first, n);
        break;
    case 7:
        forked(m, first, n);
        break;
    case 8:
        advise(m, first, n);
        break;
    default:
        fill(m, first, n);
        break;
    }
    check(m, "after the step");
}

int main(int argc, char **argv)
{
    max_pages = job_pages(argc, argv) / MAPS + 1;
    for (int s = 0; s < STEPS; s++)
        step();
    for (int k = 0; k < MAPS; k++) {
        if (maps[k].at == NULL)
            continue;
        check(&maps[k], "at the end");
        printf("map %d pages %zu %016llx\n", k, maps[k].pages,
               (unsigned long long)digest(maps[k].at, maps[k].pages * PAGE, 0));
    }
    return 0;
}
