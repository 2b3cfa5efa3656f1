/* Numbers that two hosts write at a time, each every other one, with release consistency.
 *
 *   released WHAT WHICH [STORE KEY]
 *
 * WHICH is 0 or 1: which numbers are this host's. WHAT: rounds (both at a time, by barriers), write, check,
 * refused. With STORE and KEY as a host of the cluster by itself, by calls. */
#include <farpage.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS 2048
#define ROUNDS 20

static fp_error error;
static fp_shared *shared;

static void fail(const char *what) {
    printf("%s: %s\n", what, error.message ? error.message : "");
    exit(1);
}

static uint64_t get(size_t at) {
    volatile uint64_t *data = fp_shared_data(shared);
    uint64_t number;
    if (data)
        return data[at];
    if (fp_shared_read(shared, at * sizeof number, &number, sizeof number, &error))
        fail("read");
    return number;
}

static void put(size_t at, uint64_t number) {
    volatile uint64_t *data = fp_shared_data(shared);
    if (data)
        data[at] = number;
    else if (fp_shared_write(shared, at * sizeof number, &number, sizeof number, &error))
        fail("write");
}

static void write_own(size_t which, uint64_t number) {
    for (size_t at = which; at < NUMBERS; at += 2)
        put(at, number + at);
}

static void are(size_t which, uint64_t number) {
    for (size_t at = which; at < NUMBERS; at += 2) {
        if (get(at) != number + at) {
            printf("number %zu is %llu\n", at, (unsigned long long)get(at));
            exit(1);
        }
    }
}

static void rounds(size_t which) {
    fp_barrier *barrier = fp_barrier_open("rounds", 2, 1, &error);
    if (!barrier)
        fail("barrier");
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        write_own(which, round);
        if (fp_barrier_wait(barrier, UINT64_MAX, &error))
            fail("wait");
        are(0, round);
        are(1, round);
        if (fp_barrier_wait(barrier, UINT64_MAX, &error))
            fail("wait");
    }
    fp_barrier_close(barrier);
}

static void refused(fp_cluster *cluster) {
    uint64_t shape[1] = {8};
    fp_shared_options wanted = {.size = sizeof wanted, .dtype = "u8", .shape = shape, .dimensions = 1};
    wanted.consistency = 7;
    if (fp_shared_open(cluster, "other", &wanted, &error) || error.code != FP_ARGUMENT)
        fail("a consistency that is none");
    wanted.consistency = FP_RELEASE;
    wanted.replicas = 2;
    if (fp_shared_open(cluster, "other", &wanted, &error) || error.code != FP_ARGUMENT)
        fail("two replicas");
    printf("%s\n", error.message);
    shape[0] = NUMBERS;
    wanted.consistency = FP_STRICT;
    wanted.replicas = 1;
    if (fp_shared_open(cluster, "numbers", &wanted, &error) || error.code != FP_ARGUMENT)
        fail("strict, and it is there with release");
    printf("%s\n", error.message);
    if (!cluster && (fp_mutex_at(shared, 0, &error) || error.code != FP_ARGUMENT))
        fail("a lock in it");
}

int main(int count, char **words) {
    const char *what = words[1];
    size_t which = (size_t)atoi(words[2]);
    fp_cluster *cluster = NULL;
    if (count > 4) {
        fp_join join = {.size = sizeof join, .name = "by itself"};
        cluster = fp_cluster_join(words[3], words[4], &join, &error);
        if (!cluster)
            fail("join");
    }
    uint64_t shape[1] = {NUMBERS};
    fp_shared_options wanted = {.size = sizeof wanted, .dtype = "u8", .shape = shape, .dimensions = 1,
                                .stays = 1, .consistency = FP_RELEASE};
    shared = fp_shared_open(cluster, "numbers", &wanted, &error);
    if (!shared)
        fail("open");
    if (!strcmp(what, "rounds")) {
        rounds(which);
    } else if (!strcmp(what, "write")) {
        write_own(which, 1000);
        if (fp_shared_release(shared, &error))
            fail("release");
    } else if (!strcmp(what, "check")) {
        if (fp_shared_acquire(shared, &error))
            fail("acquire");
        are(1 - which, 1000);
    } else {
        refused(cluster);
    }
    fp_shared_close(shared);
    if (fp_cluster_leave(cluster, 30, &error))
        fail("leave");
    printf("done\n");
    return 0;
}
