/* Whatever is given, there is an error and no crash. WORDS[1]: a file of 100000 bytes. */
#include "check.h"

static int32_t read_at(void *context, uint64_t offset, void *buffer, size_t bytes, char *text,
                       size_t text_bytes)
{
    (void)context, (void)offset, (void)buffer, (void)bytes, (void)text, (void)text_bytes;
    return FP_OK;
}

static void of_null(void)
{
    fp_error error;
    fp_range range;
    fp_stats stats;
    char byte = 0;
    CHECK(fp_open(NULL, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "address");
    CHECK(fp_open_parts(NULL, 1, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "parts: it is NULL");
    CHECK(fp_open_parts(NULL, 0, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "there are none");
    CHECK(fp_load(NULL, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "address");
    CHECK(fp_load_raw(NULL, "f32", NULL, 0, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "address");
    CHECK(fp_open_pager(NULL, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "pager");
    CHECK(fp_read(NULL, 0, &byte, 1, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "memory");
    CHECK(fp_write(NULL, 0, &byte, 1, NULL) == FP_ARGUMENT);
    CHECK(fp_prefetch(NULL, 0, 1, NULL, NULL, &error) == 0);
    check_error(&error, FP_ARGUMENT, "memory");
    CHECK(fp_discard(NULL, 0, 1, NULL) == FP_ARGUMENT);
    CHECK(fp_pin(NULL, 0, 1, NULL) == FP_ARGUMENT);
    CHECK(fp_unpin(NULL, 0, 1, NULL) == FP_ARGUMENT);
    CHECK(fp_flush(NULL, NULL) == FP_ARGUMENT);
    CHECK(fp_stat(NULL, &stats, NULL) == FP_ARGUMENT);
    CHECK(fp_residency(NULL, &range, 1, &error) == 0);
    check_error(&error, FP_ARGUMENT, "memory");
    CHECK(fp_data(NULL) == NULL && fp_size(NULL) == 0 && fp_is_writable(NULL) == 0);
    CHECK(fp_array_count(NULL) == 0 && fp_array_at(NULL, 0) == NULL);
    CHECK(fp_array_named(NULL, "x") == NULL && fp_arrays_memory(NULL) == NULL);
    CHECK(fp_arrays_kind(NULL) == NULL);
    fp_close(NULL);
    fp_arrays_close(NULL);
    fp_error_free(NULL);
}

static void of_options(const char *path)
{
    fp_error error;
    fp_options options = no_options();
    options.mode = 77;
    CHECK(fp_open(path, &options, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "mode");
    options = no_options();
    options.size = 3;
    CHECK(fp_open(path, &options, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "sizeof");
    options = no_options();
    options.ram_bytes = 1;
    CHECK(fp_open(path, &options, &error) == NULL);
    check_error(&error, FP_KERNEL, "budget");
    options = no_options();
    options.header_count = 2;
    CHECK(fp_open(path, &options, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "headers");
    /* A program of before there were headers: what lies behind is not looked at. */
    options.size = offsetof(fp_options, headers);
    fp_memory *memory = fp_open(path, &options, &error);
    check_error(&error, FP_OK, NULL);
    fp_close(memory);
    CHECK(fp_open("/nowhere/at/all", NULL, &error) == NULL);
    check_error(&error, FP_NOT_FOUND, "/nowhere/at/all");
    CHECK(fp_open("\xff\xfe", NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "UTF-8");
    CHECK(fp_open("gopher://x/y", NULL, NULL) == NULL);
    CHECK(fp_load(path, NULL, &error) == NULL);
    check_error(&error, FP_FORMAT, "give its dtype");
    CHECK(fp_load_raw(path, "f99", NULL, 0, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "f99");
    CHECK(fp_load_raw(path, "f32", NULL, 2, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "shape");
}

static void of_pagers(void)
{
    fp_error error;
    fp_pager pager;
    memset(&pager, 0, sizeof pager);
    CHECK(fp_open_pager(&pager, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "sizeof");
    pager.size = sizeof pager;
    CHECK(fp_open_pager(&pager, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "read_at");
    pager.read_at = read_at;
    CHECK(fp_open_pager(&pager, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "name");
    pager.name = "x";
    pager.reach = 9;
    CHECK(fp_open_pager(&pager, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "reach");
}

static void of_parts(const char *path)
{
    fp_error error;
    fp_options options = no_options();
    fp_part parts[2] = {{path, 0, 0}, {NULL, 0, 0}};
    CHECK(fp_open_parts(parts, 2, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "parts");
    parts[1].address = "/nowhere/at/all";
    CHECK(fp_open_parts(parts, 2, NULL, &error) == NULL);
    check_error(&error, FP_NOT_FOUND, "/nowhere/at/all");
    parts[1].address = path;
    parts[1].offset = 99999;
    parts[1].bytes = 2;
    CHECK(fp_open_parts(parts, 2, NULL, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "bytes 99999 to 100001 are not inside");
    parts[1].bytes = 1;
    options.mode = FP_WRITE;
    CHECK(fp_open_parts(parts, 2, &options, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "two have the same bytes");
    options.file_bytes = 100001;
    CHECK(fp_open_parts(parts + 1, 1, &options, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "parts do not grow");
    options = no_options();
    options.mode = FP_CREATE;
    options.file_bytes = 5;
    CHECK(fp_open_parts(parts, 2, &options, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "make each file by itself");
}

static void of_ranges(const char *path)
{
    fp_error error;
    char bytes[10];
    fp_memory *memory = fp_open(path, NULL, &error);
    check_error(&error, FP_OK, NULL);
    CHECK(fp_size(memory) == 100000);
    CHECK(fp_read(memory, 99995, bytes, 10, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "not inside");
    CHECK(fp_read(memory, UINT64_MAX, bytes, 10, NULL) == FP_ARGUMENT);
    CHECK(fp_read(memory, 0, NULL, 10, NULL) == FP_ARGUMENT);
    CHECK(fp_read(memory, 0, NULL, 0, NULL) == FP_OK);
    CHECK(fp_write(memory, 0, bytes, 1, &error) == FP_READ_ONLY);
    check_error(&error, FP_READ_ONLY, "open it for writing");
    CHECK(fp_pin(memory, UINT64_MAX, UINT64_MAX, NULL) == FP_ARGUMENT);
    CHECK(fp_stat(memory, NULL, NULL) == FP_ARGUMENT);
    CHECK(fp_residency(memory, NULL, 5, &error) == 0);
    check_error(&error, FP_ARGUMENT, "ranges");
    fp_close(memory);
}

static void refuse_heaps(void)
{
    static char memory[1 << 19] __attribute__((aligned(4096)));
    fp_error error;
    fp_heap_usage usage;
    CHECK(fp_heap_open(NULL, 1 << 20, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "a multiple of 4096");
    CHECK(fp_heap_open(memory + 8, 1 << 18, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "a multiple of 4096");
    CHECK(fp_heap_open(memory, 4096, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "too few for a heap");
    fp_heap *heap = fp_heap_open(memory, sizeof memory, &error);
    check_error(&error, FP_OK, NULL);
    char *block = (char *)fp_heap_alloc(heap, 3, 100, &error);
    CHECK(block != NULL && fp_heap_size(heap, block, &error) >= 100);
    CHECK(fp_heap_size(heap, block + 1, &error) == 0);
    check_error(&error, FP_ARGUMENT, "is no allocated block");
    CHECK(fp_heap_alloc(heap, 0, sizeof memory, &error) == NULL);
    check_error(&error, FP_KERNEL, "free some, or make it larger");
    CHECK(fp_heap_free(heap, memory - 16, &error) == FP_ARGUMENT);
    CHECK(fp_heap_free(heap, block, &error) == FP_OK);
    CHECK(fp_heap_free(heap, block, &error) == FP_ARGUMENT);
    CHECK(fp_heap_free(heap, NULL, &error) == FP_OK);
    CHECK(fp_heap_root(heap, 16, &error) == NULL);
    check_error(&error, FP_ARGUMENT, "16 roots");
    CHECK(fp_heap_usage_of(heap, NULL, &error) == FP_ARGUMENT);
    CHECK(fp_heap_usage_of(heap, &usage, &error) == FP_OK && usage.blocks == 0);
    fp_heap_close(heap);
    fp_heap_close(NULL);
    memory[0] = 1;
    CHECK(fp_heap_open(memory, sizeof memory, &error) == NULL);
    check_error(&error, FP_UNSUPPORTED, "give it zeroed");
}

int main(int count, char **words)
{
    CHECK(count == 2);
    of_null();
    of_options(words[1]);
    of_pagers();
    of_parts(words[1]);
    of_ranges(words[1]);
    CHECK(strcmp(fp_version(), "0.1.0") == 0);
    refuse_heaps();
    return 0;
}
