/* Records of numbers in memory that hosts have in common: by way of the host kernel, mapped, or as a
 * host of the cluster by itself, by calls. The same source for every processor.
 *
 *   records WHAT WHICH [STORE KEY]
 *
 * WHICH is 0 or 1: which host this is. WHAT: fill, check, add (both at a time), sums, refused; and of a
 * heap of numbers: allocate (who maps it), halve, free. */
#include <farpage.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 4096
#define TIMES 600
#define NUMBERS 3000
#define BLOCK_WORD 8 /* the first root of a heap */

typedef struct {
    int32_t number;
    uint16_t kinds[2];
    uint8_t bytes[8];
    double at[2];
    float weight[2];
    uint64_t added[2];
    int64_t whole;
} record;

static const char *const TYPE =
    "[[\"number\", \"<i4\"], [\"kinds\", \"<u2\", [2]], [\"bytes\", \"|u1\", [8]], "
    "[\"at\", \"<f8\", [2]], [\"weight\", \"<f4\", [2]], [\"added\", \"<u8\", [2]], "
    "[\"whole\", \"<i8\"]]";

static fp_error error;
static fp_shared *shared;

static void fail(const char *what) {
    printf("%s: %s\n", what, error.message ? error.message : "");
    exit(1);
}

static void get(size_t at, record *into) {
    record *data = fp_shared_data(shared);
    if (data) {
        *into = data[at];
    } else if (fp_shared_read(shared, at * sizeof *into, into, sizeof *into, &error)) {
        fail("read");
    }
}

/* Writes a part of a record. */
static void put(size_t at, size_t offset, const void *from, size_t bytes) {
    char *data = fp_shared_data(shared);
    if (data) {
        memcpy(data + at * sizeof(record) + offset, from, bytes);
    } else if (fp_shared_write(shared, at * sizeof(record) + offset, from, bytes, &error)) {
        fail("write");
    }
}

static record made(size_t at, int which) {
    record one = {
        .number = -(int32_t)at,
        .kinds = {(uint16_t)(at * 3), (uint16_t)(at ^ 0xff00)},
        .bytes = {1, 2, 3, 4, 5, 6, 7, (uint8_t)at},
        .at = {(double)at * 0.1, which + 1e300},
        .weight = {(float)at / 3, -0.0f},
        .whole = -5000000000LL * (int64_t)at,
    };
    return one;
}

static void fill(int which) {
    for (size_t at = 0; at < RECORDS; at++) {
        record one = made(at, which);
        put(at, 0, &one, sizeof one);
    }
}

/* What the other host has written. */
static void check(int which) {
    for (size_t at = 0; at < RECORDS; at++) {
        record one, expected = made(at, 1 - which);
        get(at, &one);
        if (memcmp(&one, &expected, sizeof one)) {
            printf("record %zu: number %d, at %g %g\n", at, one.number, one.at[0], one.at[1]);
            exit(1);
        }
    }
}

/* Both hosts write to the same pages, each to numbers of its own. */
static void add(int which) {
    for (size_t time = 0; time < TIMES; time++) {
        record one;
        size_t at = time * 37 % RECORDS;
        get(at, &one);
        one.added[which]++;
        put(at, offsetof(record, added[which]), &one.added[which], sizeof one.added[0]);
    }
}

static void sums(void) {
    uint64_t all[2] = {0, 0};
    for (size_t at = 0; at < RECORDS; at++) {
        record one;
        get(at, &one);
        all[0] += one.added[0];
        all[1] += one.added[1];
    }
    printf("%llu %llu\n", (unsigned long long)all[0], (unsigned long long)all[1]);
}

static void refused(fp_cluster *cluster) {
    uint64_t shape[1] = {4};
    fp_shared_options wanted = {.size = sizeof wanted, .shape = shape, .dimensions = 1};
    wanted.dtype = "what";
    if (fp_shared_open(cluster, "other", &wanted, &error) || error.code != FP_ARGUMENT)
        fail("a type that is none");
    wanted.dtype = "[[\"a\", \"|u1\"], [\"b\", \"<f8\"]]";
    fp_shared *packed = fp_shared_open(cluster, "packed", &wanted, &error);
    printf("%s\n", packed ? "packed records" : error.message);
    fp_shared_close(packed);
    if (fp_shared_open(cluster, "nowhere", NULL, &error) || error.code != FP_NOT_FOUND)
        fail("a name that nobody has");
    char byte = 0;
    if (fp_shared_read(shared, RECORDS * sizeof(record), &byte, 1, &error) != FP_ARGUMENT)
        fail("beyond the end");
    wanted.dtype = "f8";
    if (fp_shared_flush(shared, &error) != (cluster ? FP_UNSUPPORTED : FP_KERNEL))
        fail("flushed what has no file");
    wanted.file = "/no/such/file";
    if (fp_shared_open(cluster, "kept", &wanted, &error) ||
        error.code != (cluster ? FP_UNSUPPORTED : FP_ARGUMENT))
        fail("a file that cannot be");
    wanted.file = NULL;
    fp_shared *twice[2];
    for (int time = 0; time < 2; time++) {
        twice[time] = fp_shared_open(cluster, "twice", &wanted, &error);
        if (!twice[time])
            fail("open twice");
    }
    fp_shared_close(twice[0]);
    fp_shared *third = fp_shared_open(cluster, "twice", NULL, &error);
    if (!third)
        fail("what is still open");
    fp_shared_close(third);
    fp_shared_close(twice[1]);
    /* A host kernel hears of it in its own time. */
    if (cluster &&
        (fp_shared_open(cluster, "twice", NULL, &error) || error.code != FP_NOT_FOUND))
        fail("what nobody has open");
    if (cluster && fp_cluster_leave(cluster, 1, &error) != FP_ARGUMENT)
        fail("leaving with memory open");
}

/* A lock, a semaphore and a barrier in a block, beside what they would guard. */
static void locks_in(fp_heap *heap, fp_shared *memory) {
    char *place = fp_heap_alloc(heap, 0, 512, &error);
    if (!place)
        fail("alloc for locks");
    memset(place, 0, 512);
    uint64_t at = (uint64_t)(place - (char *)fp_shared_data(memory));
    if (fp_mutex_at(memory, at + 8, &error) || error.code != FP_ARGUMENT)
        fail("a place that is none");
    fp_mutex *mutex = fp_mutex_at(memory, at, &error);
    fp_semaphore *semaphore = fp_semaphore_at(memory, at + 64, 2, &error);
    fp_barrier *barrier = fp_barrier_at(memory, at + 192, 1, &error);
    if (!mutex || !semaphore || !barrier)
        fail("locks in a block");
    if (fp_semaphore_at(memory, at, 2, &error) || error.code != FP_CHANGED)
        fail("where a lock lies");
    if (fp_mutex_lock(mutex, 0, &error) || fp_semaphore_take(semaphore, 0, &error) ||
        fp_barrier_wait(barrier, UINT64_MAX, &error) || fp_semaphore_give(semaphore, &error) ||
        fp_mutex_unlock(mutex, &error))
        fail("locks");
    fp_mutex_close(mutex);
    fp_semaphore_close(semaphore);
    fp_barrier_close(barrier);
    if (fp_heap_free(heap, place, &error))
        fail("free");
}

/* A block of numbers that one host allocates, another changes and the first one frees: its offset is in
 * the heap's first root. */
static void block(const char *what, fp_cluster *cluster) {
    uint64_t shape[1] = {1 << 17};
    fp_shared_options wanted = {.size = sizeof wanted, .dtype = "f8", .shape = shape,
                                .dimensions = 1, .stays = 1, .heap = 1};
    fp_shared *memory = fp_shared_open(cluster, "heap of numbers", &wanted, &error);
    if (!memory)
        fail("heap");
    double numbers[NUMBERS];
    uint64_t offset;
    if (!strcmp(what, "halve")) {
        if (fp_heap_open_shared(memory, &error))
            fail("a heap by calls");
        printf("%s\n", error.message);
        if (fp_shared_read(memory, BLOCK_WORD * 8, &offset, sizeof offset, &error) ||
            fp_shared_read(memory, offset, numbers, sizeof numbers, &error))
            fail("read");
        for (int at = 0; at < NUMBERS; at++)
            numbers[at] /= 2;
        if (fp_shared_write(memory, offset, numbers, sizeof numbers, &error))
            fail("write");
        fp_shared_close(memory);
        return;
    }
    fp_heap *heap = fp_heap_open_shared(memory, &error);
    if (!heap)
        fail("open the heap");
    char *data = fp_shared_data(memory);
    uint64_t *root = fp_heap_root(heap, 0, &error);
    if (!strcmp(what, "allocate")) {
        double *made = fp_heap_alloc(heap, 0, sizeof numbers, &error);
        if (!made)
            fail("alloc");
        for (int at = 0; at < NUMBERS; at++)
            made[at] = at * 0.1;
        *root = (uint64_t)((char *)made - data);
        locks_in(heap, memory);
    } else {
        double *found = (double *)(data + *root);
        int wrong = 0;
        for (int at = 0; at < NUMBERS; at++)
            wrong += found[at] != at * 0.1 / 2;
        printf("%d wrong\n", wrong);
        if (fp_heap_free(heap, found, &error))
            fail("free");
    }
    fp_heap_close(heap);
    fp_shared_close(memory);
}

/* Numbers that are flushed to a file. */
static void keep(const char *path) {
    uint64_t shape[1] = {NUMBERS};
    fp_shared_options wanted = {.size = sizeof wanted, .dtype = "f8", .shape = shape,
                                .dimensions = 1, .file = path};
    fp_shared *memory = fp_shared_open(NULL, "kept", &wanted, &error);
    if (!memory)
        fail("kept");
    double *numbers = fp_shared_data(memory), there[NUMBERS];
    for (int at = 0; at < NUMBERS; at++)
        numbers[at] = at * 0.1;
    if (fp_shared_flush(memory, &error))
        fail("flush");
    FILE *file = fopen(path, "rb");
    if (!file || fread(there, sizeof there, 1, file) != 1 || memcmp(there, numbers, sizeof there))
        fail("the file");
    fclose(file);
    fp_shared_close(memory);
}

int main(int count, char **words) {
    const char *what = words[1];
    int which = atoi(words[2]);
    fp_cluster *cluster = NULL;
    if (count > 4) {
        fp_join join = {.size = sizeof join, .name = "by itself"};
        cluster = fp_cluster_join(words[3], words[4], &join, &error);
        if (!cluster)
            fail("join");
    }
    uint64_t shape[1] = {RECORDS};
    fp_shared_options wanted = {.size = sizeof wanted, .dtype = TYPE, .shape = shape,
                                .dimensions = 1, .stays = 1};
    shared = fp_shared_open(cluster, "records", &wanted, &error);
    if (!shared)
        fail("open");
    if (!strcmp(what, "fill"))
        fill(which);
    else if (!strcmp(what, "check"))
        check(which);
    else if (!strcmp(what, "add"))
        add(which);
    else if (!strcmp(what, "sums"))
        sums();
    else if (!strcmp(what, "refused"))
        refused(cluster);
    else if (!strcmp(what, "keep"))
        keep(getenv("KEPT"));
    else
        block(what, cluster);
    fp_shared_close(shared);
    if (fp_cluster_leave(cluster, 30, &error))
        fail("leave");
    printf("done\n");
    return 0;
}
