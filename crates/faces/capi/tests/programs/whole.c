/* Files, pagers, arrays and forks, as they should be. WORDS[1]: an empty folder. */
#define _DEFAULT_SOURCE
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB ((uint64_t)1 << 20)

/* A pager that keeps what is written, and fails where it is told to. */
struct store {
    unsigned char *bytes;
    uint64_t size, fails_at;
    int reads, syncs, closed, unreachable;
};

static int32_t store_read(void *context, uint64_t offset, void *buffer, size_t bytes, char *text,
                          size_t text_bytes)
{
    struct store *store = (struct store *)context;
    __atomic_add_fetch(&store->reads, 1, __ATOMIC_RELAXED);
    if (__atomic_fetch_sub(&store->unreachable, 1, __ATOMIC_RELAXED) > 0)
        return FP_UNREACHABLE;
    if (offset <= store->fails_at && store->fails_at < offset + bytes) {
        snprintf(text, text_bytes, "tape %d is torn", 7);
        return FP_CALLBACK;
    }
    memcpy(buffer, store->bytes + offset, bytes);
    return FP_OK;
}

static int32_t store_write(void *context, uint64_t offset, const void *buffer, size_t bytes,
                           char *text, size_t text_bytes)
{
    struct store *store = (struct store *)context;
    (void)text, (void)text_bytes;
    memcpy(store->bytes + offset, buffer, bytes);
    return FP_OK;
}

static int32_t store_sync(void *context, char *text, size_t text_bytes)
{
    (void)text, (void)text_bytes;
    ((struct store *)context)->syncs++;
    return FP_OK;
}

static void store_closed(void *context)
{
    __atomic_fetch_add(&((struct store *)context)->closed, 1, __ATOMIC_RELEASE);
}

static fp_pager pager_of(struct store *store)
{
    fp_pager pager;
    memset(&pager, 0, sizeof pager);
    pager.size = sizeof pager;
    pager.context = store;
    pager.name = "store";
    pager.version = "1";
    pager.bytes = store->size;
    pager.read_at = store_read;
    pager.write_at = store_write;
    pager.sync = store_sync;
    pager.closed = store_closed;
    return pager;
}

static struct store store_of(uint64_t size)
{
    struct store store;
    memset(&store, 0, sizeof store);
    store.size = size;
    store.fails_at = UINT64_MAX;
    store.bytes = (unsigned char *)malloc(size);
    CHECK(store.bytes != NULL);
    for (uint64_t at = 0; at < size; at++)
        store.bytes[at] = (unsigned char)(at / 4096 + at % 7);
    return store;
}

/* It may come a moment after fp_close has returned. */
static void wait_until_closed(struct store *store)
{
    while (__atomic_load_n(&store->closed, __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    CHECK(store->closed == 1);
}

static void told(void *context, uint64_t bytes)
{
    *(uint64_t *)context = bytes;
}

static void a_pager_is_read_written_and_closed(void)
{
    fp_error error;
    struct store store = store_of(8 * MIB + 100);
    fp_pager pager = pager_of(&store);
    fp_options options = no_options();
    uint64_t came = 0;
    options.mode = FP_WRITE;
    options.ram_bytes = 8 * MIB;
    fp_memory *memory = fp_open_pager(&pager, &options, &error);
    check_error(&error, FP_OK, NULL);
    CHECK(fp_size(memory) == 8 * MIB + 100 && fp_is_writable(memory));
    CHECK(fp_prefetch(memory, 0, 2 * MIB, told, &came, &error) == 2 * MIB);
    check_error(&error, FP_OK, NULL);
    CHECK(came == 2 * MIB);
    fp_range ranges[2];
    CHECK(fp_residency(memory, ranges, 2, NULL) >= 1);
    CHECK(ranges[0].start == 0 && ranges[0].end >= 2 * MIB);
    unsigned char *data = (unsigned char *)fp_data(memory);
    CHECK(data[5 * MIB + 3] == store.bytes[5 * MIB + 3]);
    data[5 * MIB + 3] = 200;
    CHECK(fp_write(memory, 8 * MIB + 98, "ab", 2, NULL) == FP_OK);
    CHECK(fp_flush(memory, NULL) == FP_OK);
    CHECK(store.bytes[5 * MIB + 3] == 200 && store.syncs == 1);
    CHECK(store.bytes[8 * MIB + 99] == 'b');
    CHECK(fp_pin(memory, 0, MIB, NULL) == FP_OK);
    CHECK(fp_pin(memory, 0, 8 * MIB, &error) == FP_KERNEL);
    check_error(&error, FP_KERNEL, "half of the budget");
    CHECK(fp_unpin(memory, 0, MIB, NULL) == FP_OK);
    CHECK(fp_discard(memory, 0, fp_size(memory), NULL) == FP_OK);
    fp_stats stats;
    stats.size = sizeof stats;
    CHECK(fp_stat(memory, &stats, NULL) == FP_OK);
    CHECK(stats.resident_bytes == 0 && stats.bytes == fp_size(memory));
    CHECK(stats.read_bytes > 2 * MIB && stats.written_bytes > 0 && stats.failures == 0);
    fp_close(memory);
    wait_until_closed(&store);
    free(store.bytes);
}

static void what_fails_is_an_error_in_the_callbacks_words(uint32_t reach)
{
    fp_error error;
    char bytes[100];
    struct store store = store_of(4 * MIB);
    fp_pager pager = pager_of(&store);
    pager.reach = reach;
    store.fails_at = 3 * MIB + 5;
    store.unreachable = reach == FP_FAR ? 2 : 0;
    fp_memory *memory = fp_open_pager(&pager, NULL, &error);
    check_error(&error, FP_OK, NULL);
    CHECK(fp_read(memory, 50, bytes, 100, &error) == FP_OK);
    check_error(&error, FP_OK, NULL);
    CHECK(memcmp(bytes, store.bytes + 50, 100) == 0);
    CHECK(fp_read(memory, 3 * MIB, bytes, 100, &error) == FP_CALLBACK);
    check_error(&error, FP_CALLBACK, "tape 7 is torn");
    CHECK(fp_prefetch(memory, 3 * MIB, 100, NULL, NULL, &error) < 100);
    check_error(&error, FP_CALLBACK, "tape 7 is torn");
    store.fails_at = UINT64_MAX;
    CHECK(fp_read(memory, 3 * MIB, bytes, 100, NULL) == FP_OK);
    CHECK(memcmp(bytes, store.bytes + 3 * MIB, 100) == 0);
    fp_close(memory);
    free(store.bytes);
}

static void raw_numbers_are_made_written_and_read_again(const char *folder)
{
    fp_error error;
    char path[4096];
    const int64_t shape[2] = {1000, 300}, open_shape[2] = {-1, 300};
    fp_options options = no_options();
    options.mode = FP_CREATE;
    snprintf(path, sizeof path, "%s/numbers", folder);
    fp_arrays *made = fp_load_raw(path, "f64", shape, 2, &options, &error);
    check_error(&error, FP_OK, NULL);
    double *number = (double *)fp_array_at(made, 0)->data;
    for (int i = 0; i < 300000; i++)
        number[i] = i;
    CHECK(fp_flush(fp_arrays_memory(made), NULL) == FP_OK);
    fp_arrays_close(made);
    fp_arrays *again = fp_load_raw(path, "<f8", open_shape, 2, NULL, &error);
    check_error(&error, FP_OK, NULL);
    const fp_array *array = fp_array_named(again, "");
    CHECK(array != NULL && array == fp_array_at(again, 0) && fp_array_at(again, 1) == NULL);
    CHECK(array->dimensions == 2 && array->shape[0] == 1000 && array->shape[1] == 300);
    CHECK(array->strides[0] == 2400 && array->strides[1] == 8);
    CHECK(array->is_number && !array->big_endian && array->element_bytes == 8);
    CHECK(strcmp(array->dtype, "f64") == 0 && array->bytes == 2400000);
    for (int i = 0; i < 300000; i++)
        CHECK(((const double *)array->data)[i] == i);
    CHECK(fp_array_named(again, "other") == NULL);
    fp_arrays_close(again);
}

static void parts_are_one_memory_and_are_written_in_place(const char *folder)
{
    fp_error error;
    char numbers[4096], tail[4096], text[16] = "";
    const fp_part parts[3] = {{numbers, 8 * 5000, 8 * 1001}, {tail, 0, 0}, {numbers, 0, 8}};
    fp_options options = no_options();
    snprintf(numbers, sizeof numbers, "%s/numbers", folder);
    snprintf(tail, sizeof tail, "%s/tail", folder);
    FILE *file = fopen(tail, "w");
    CHECK(file != NULL && fputs("tail", file) >= 0 && fclose(file) == 0);
    options.mode = FP_WRITE;
    fp_memory *memory = fp_open_parts(parts, 3, &options, &error);
    check_error(&error, FP_OK, NULL);
    CHECK(fp_size(memory) == 8 * 1002 + 4 && fp_is_writable(memory));
    CHECK(((const double *)fp_data(memory))[1000] == 6000);
    CHECK(fp_read(memory, 8 * 1001, text, 4, NULL) == FP_OK && strcmp(text, "tail") == 0);
    CHECK(fp_write(memory, 8 * 1001 + 1, "in", 2, NULL) == FP_OK);
    CHECK(fp_flush(memory, NULL) == FP_OK);
    fp_close(memory);
    file = fopen(tail, "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL && fclose(file) == 0);
    CHECK(strcmp(text, "tinl") == 0);
}

static void a_child_reads_the_same_memory(const char *folder)
{
    fp_error error;
    char path[4096];
    struct store store = store_of(4 * MIB);
    fp_pager pager = pager_of(&store);
    fp_options options = no_options();
    fp_memory *computed = fp_open_pager(&pager, NULL, &error);
    check_error(&error, FP_OK, NULL);
    snprintf(path, sizeof path, "%s/numbers", folder);
    options.mode = FP_COPY;
    fp_memory *copy = fp_open(path, &options, &error);
    check_error(&error, FP_OK, NULL);
    unsigned char *data = (unsigned char *)fp_data(computed);
    double *number = (double *)fp_data(copy);
    CHECK(data[0] == store.bytes[0]);
    number[5] = 0.5;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(1500);
        for (uint64_t at = 0; at < 4 * MIB; at += 1000)
            CHECK(data[at] == store.bytes[at]);
        CHECK(number[5] == 0.5 && number[299999] == 299999);
        number[6] = 1.5;
        fp_close(computed);
        fp_close(copy);
        CHECK(store.closed == 0);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(number[6] == 6);
    fp_close(computed);
    fp_close(copy);
    wait_until_closed(&store);
    free(store.bytes);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    a_pager_is_read_written_and_closed();
    what_fails_is_an_error_in_the_callbacks_words(FP_NEAR);
    what_fails_is_an_error_in_the_callbacks_words(FP_FAR);
    raw_numbers_are_made_written_and_read_again(words[1]);
    parts_are_one_memory_and_are_written_in_place(words[1]);
    a_child_reads_the_same_memory(words[1]);
    return 0;
}
