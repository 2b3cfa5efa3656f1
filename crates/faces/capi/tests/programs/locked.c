/* Locked areas: what is locked, counted and told. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

/* KiB that Linux has locked of this process. */
static long locked_kib(void)
{
    char line[200];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmLck: %ld", &kib);
    fclose(status);
    return kib;
}

static int says(fp_error *error, int code, const char *what)
{
    int right = error->code == code && strstr(error->message, what) != NULL;
    if (!right)
        fprintf(stderr, "%d: %s\n", error->code, error->message ? error->message : "");
    fp_error_free(error);
    return right;
}

static char *mapped(size_t pages)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    return (char *)mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
}

int main(void)
{
    char *memory = mapped(PAGES);
    uint64_t all, inner, pinned, frames[PAGES], again[PAGES];
    struct fp_block blocks[PAGES];
    size_t count;
    fp_error error;
    long before = locked_kib();

    CHECK(fp_lock_area(memory, PAGES * PAGE, 0, &all, &error) == FP_OK && all != 0);
    CHECK(locked_kib() == before + 4 * PAGES);
    CHECK(fp_lock_area(memory + 5 * PAGE + 7, PAGE, 0, &inner, NULL) == FP_OK && inner != all);
    CHECK(fp_unlock_area(all, &error) == FP_OK && locked_kib() == before + 8);
    CHECK(fp_lock_area(memory, PAGES * PAGE, FP_PINNED, &pinned, NULL) == FP_OK);

    CHECK(fp_lock_check(inner, &error) == FP_OK);
    CHECK(fp_lock_check(pinned, NULL) == (geteuid() == 0 ? FP_OK : FP_DENIED));

    count = PAGES;
    if (geteuid() == 0) {
        CHECK(fp_get_pages(pinned, frames, &count, &error) == FP_OK && count == PAGES);
        memset(memory, 1, PAGES * PAGE);
        CHECK(fp_get_pages(pinned, again, &count, &error) == FP_OK);
        CHECK(memcmp(frames, again, sizeof frames) == 0);
        CHECK(fp_get_blocks(pinned, 1, blocks, &count, &error) == FP_OK && count == PAGES);
        CHECK(blocks[3].first == frames[3] && blocks[3].frames == 1);
        count = 5;
        fp_get_pages(pinned, frames, &count, &error);
        CHECK(count == PAGES && says(&error, FP_ARGUMENT, "there is room for 5, and there are 64"));
    } else {
        fp_get_pages(pinned, frames, &count, &error);
        CHECK(says(&error, FP_DENIED, "CAP_SYS_ADMIN"));
    }

    fp_get_blocks(pinned, 0, blocks, &count, &error);
    CHECK(says(&error, FP_ARGUMENT, "give 1 or more"));
    fp_lock_area(memory, PAGE, 6, &all, &error);
    CHECK(says(&error, FP_ARGUMENT, "flags: 0x6 is not known; give 0 or FP_PINNED"));
    fp_lock_area(memory, 0, 0, &all, &error);
    CHECK(says(&error, FP_ARGUMENT, "give a byte at least"));
    fp_lock_area(memory, PAGE, 0, NULL, &error);
    CHECK(says(&error, FP_ARGUMENT, "handle: it is NULL"));
    char *holed = mapped(3);
    munmap(holed + PAGE, PAGE);
    fp_lock_area(holed, 3 * PAGE, 0, &all, &error);
    CHECK(says(&error, FP_ARGUMENT, "nothing is mapped there"));

    char *gone = mapped(3);
    CHECK(fp_lock_area(gone, 3 * PAGE, 0, &all, NULL) == FP_OK);
    munmap(gone + PAGE, PAGE);
    CHECK(fp_lock_check(all, &error) == FP_STALE);
    CHECK(says(&error, FP_STALE, "nothing is mapped there any more"));
    CHECK(fp_unlock_area(all, NULL) == FP_OK);
    fp_lock_check(all, &error);
    CHECK(says(&error, FP_ARGUMENT, "no locked area has the number"));

    CHECK(fp_unlock_area(inner, NULL) == FP_OK);
    fp_unlock_area(inner, &error);
    CHECK(says(&error, FP_ARGUMENT, "that was not given back"));
    fp_lock_cleanup();
    CHECK(locked_kib() == before);
    fp_unlock_area(pinned, &error);
    CHECK(says(&error, FP_ARGUMENT, "no locked area has the number"));
    puts("done");
    return 0;
}
