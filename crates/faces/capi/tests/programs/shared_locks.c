/* Shared memory that is locked through the host kernel, and lent. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

static int says(fp_error *error, int code, const char *what)
{
    int right = error->code == code && strstr(error->message, what) != NULL;
    if (!right)
        fprintf(stderr, "%d: %s\n", error->code, error->message ? error->message : "");
    fp_error_free(error);
    return right;
}

int main(void)
{
    uint64_t pinned, borrowed, segment, frames[PAGES], again[PAGES];
    size_t count = PAGES;
    int status, number, file = memfd_create("grid", MFD_CLOEXEC);
    fp_error error;
    pid_t child;

    CHECK(ftruncate(file, PAGES * PAGE) == 0);
    CHECK(fp_lock_shared(file, 0, PAGES * PAGE, FP_PINNED, &pinned, &error) == FP_OK);
    CHECK(fp_lend_lock(pinned, "ring", &error) == FP_OK);
    CHECK(fp_borrow_lock("ring", &borrowed, &error) == FP_OK && borrowed != pinned);
    if (geteuid() == 0) {
        CHECK(fp_get_pages(pinned, frames, &count, &error) == FP_OK && count == PAGES);
        CHECK(fp_unlock_area(pinned, &error) == FP_OK);
        CHECK(fp_get_pages(borrowed, again, &count, &error) == FP_OK);
        CHECK(memcmp(frames, again, sizeof frames) == 0);
    }
    child = fork();
    if (child == 0) {
        uint64_t own;
        CHECK(fp_get_pages(borrowed, again, &count, &error) == FP_KERNEL);
        CHECK(says(&error, FP_KERNEL, "a child of fork has nothing locked"));
        CHECK(fp_borrow_lock("ring", &own, &error) == FP_OK);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(fp_lend_lock(borrowed, "a/b", &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "no name of a lent lock"));
    CHECK(fp_unlock_area(borrowed, &error) == FP_OK);

    number = shmget(IPC_PRIVATE, PAGES * PAGE, IPC_CREAT | 0600);
    CHECK(number >= 0);
    CHECK(fp_lock_segment(number, PAGE, PAGE, 0, &segment, &error) == FP_OK);
    CHECK(shmctl(number, IPC_RMID, NULL) == 0);
    CHECK(fp_unlock_area(segment, &error) == FP_OK);

    CHECK(fp_lock_segment(-1, 0, PAGE, 0, &segment, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "segment: -1 is no number"));
    CHECK(fp_lock_shared(-1, 0, PAGE, 0, &pinned, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "fd: -1 is no descriptor"));
    CHECK(fp_lock_shared(file, 0, 2 * PAGES * PAGE, 0, &pinned, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "it has 262144 bytes"));
    CHECK(fp_lock_shared(0, 0, PAGE, 0, &pinned, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "it is no shared memory"));
    CHECK(fp_borrow_lock("none", &borrowed, &error) == FP_NOT_FOUND);
    CHECK(says(&error, FP_NOT_FOUND, "farpage locks shows"));
    puts("done");
    return 0;
}
