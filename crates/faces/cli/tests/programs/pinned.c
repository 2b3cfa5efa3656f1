/* Pages of memory of the cluster that are kept at a host.
 *
 *   pinned WHAT [STORE KEY]
 *
 * WHAT: holds (page 1, to be written, until its input ends; for each line it says what fp_lock_check says), waits (for
 * pages 0 to 3), refused. With STORE and KEY as a host of the cluster by itself, by calls. */
#define _POSIX_C_SOURCE 200809L
#include <farpage.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 16

static fp_error error;
static fp_shared *shared;
static uint64_t handle;

static void fail(const char *what) {
    printf("%s: %d %s\n", what, error.code, error.message ? error.message : "");
    exit(1);
}

static void says(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

/* A call that has to fail so. */
static void fails(const char *call, int32_t code, int32_t wanted, const char *said) {
    if (code != wanted || error.code != wanted || !strstr(error.message, said))
        fail(call);
    fp_error_free(&error);
}

static void holds(void) {
    char line[80];
    volatile char *data = fp_shared_data(shared);
    if (fp_shared_lock(shared, PAGE, 1, 1, UINT64_MAX, &handle, &error))
        fail("lock");
    data[PAGE] = 7;
    says("holds");
    while (fgets(line, sizeof line, stdin)) {
        switch (fp_lock_check(handle, &error)) {
        case FP_OK:
            says("kept");
            break;
        case FP_STALE:
            says(error.message);
            break;
        default:
            fail("check");
        }
        fp_error_free(&error);
    }
    if (fp_unlock_area(handle, &error))
        fail("unlock");
}

static void waits(void) {
    volatile char *data = fp_shared_data(shared);
    for (uint64_t limit = 0; limit < 600; limit += 300) {
        int32_t code = fp_shared_lock(shared, 0, 4 * PAGE, 0, limit, &handle, &error);
        fails("lock in time", code, FP_TIMED_OUT, "pages of 'pages' have not come in time");
    }
    says("waits");
    if (fp_shared_lock(shared, 0, 4 * PAGE, 0, UINT64_MAX, &handle, &error))
        fail("lock");
    if (data[PAGE] != 7)
        fail("another value");
    if (fp_unlock_area(handle, &error))
        fail("unlock");
}

static void refused(void) {
    uint64_t read, frames[1];
    size_t count = 1;
    fails("outside", fp_shared_lock(shared, PAGES * PAGE, PAGE, 0, 0, &handle, &error), FP_ARGUMENT, "65536 bytes only");
    fails("nothing", fp_shared_lock(shared, 0, 0, 0, 0, &handle, &error), FP_ARGUMENT, "give a byte at least");
    fails("nowhere", fp_shared_lock(shared, 0, PAGE, 0, UINT64_MAX, NULL, &error), FP_ARGUMENT, "it is NULL");
    fails("none", fp_shared_lock(NULL, 0, PAGE, 0, 0, &handle, &error), FP_ARGUMENT, "NULL");
    if (fp_shared_lock(shared, 9 * PAGE, 2 * PAGE, 0, UINT64_MAX, &read, &error))
        fail("lock to read");
    fails("exchange", fp_shared_lock(shared, 8 * PAGE, 4 * PAGE, 1, UINT64_MAX, &handle, &error), FP_ARGUMENT, "not exchanged");
    fails("frames", fp_get_pages(read, frames, &count, &error), FP_UNSUPPORTED, "fp_lock_area with FP_PINNED");
    fails("lend", fp_lend_lock(read, "pages", &error), FP_ARGUMENT, "is not lent");
    pid_t child = fork();
    if (child == 0) {
        fails("in a child", fp_shared_lock(shared, 0, PAGE, 0, 100, &handle, &error), FP_ARGUMENT, "this child of fork");
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the child");
    if (fp_lock_check(read, &error) || fp_unlock_area(read, &error))
        fail("check and unlock");
    fails("check", fp_lock_check(read, &error), FP_ARGUMENT, "no locked area");
}

int main(int count, char **words) {
    const char *what = words[1];
    fp_cluster *cluster = NULL;
    if (count == 4) {
        fp_join join = {.size = sizeof join, .name = "by itself"};
        cluster = fp_cluster_join(words[2], words[3], &join, &error);
        if (!cluster)
            fail("join");
    }
    uint64_t shape[1] = {PAGES * PAGE};
    fp_shared_options wanted = {.size = sizeof wanted, .dtype = "u1", .shape = shape, .dimensions = 1, .stays = 1};
    shared = fp_shared_open(cluster, "pages", &wanted, &error);
    if (!shared)
        fail("open");
    if (cluster)
        fails("by calls", fp_shared_lock(shared, 0, PAGE, 0, 0, &handle, &error), FP_UNSUPPORTED, "farpage up");
    else if (!strcmp(what, "holds"))
        holds();
    else if (!strcmp(what, "waits"))
        waits();
    else
        refused();
    fp_shared_close(shared);
    if (fp_cluster_leave(cluster, 30, &error))
        fail("leave");
    says("done");
    return 0;
}
