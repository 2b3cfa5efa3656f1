/* A table of squares of 8 GiB that is computed where somebody looks.
 *
 * cc computed.c $(pkg-config --cflags --libs farpage) && ./a.out */
#include <farpage.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NUMBERS ((uint64_t)1 << 30)

/* Fills `buffer` with the squares from `offset` on: whole pages, so whole numbers. */
static int32_t squares(void *context, uint64_t offset, void *buffer, size_t bytes, char *text,
                       size_t text_bytes)
{
    uint64_t *number = (uint64_t *)buffer;
    uint64_t first = offset / sizeof *number;
    (void)context;
    (void)text;
    (void)text_bytes;
    for (size_t i = 0; i < bytes / sizeof *number; i++)
        number[i] = (first + i) * (first + i);
    return FP_OK;
}

int main(void)
{
    fp_error error;
    fp_options options;
    fp_pager pager;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.ram_bytes = 16 << 20;
    memset(&pager, 0, sizeof pager);
    pager.size = sizeof pager;
    pager.name = "squares";
    pager.bytes = NUMBERS * sizeof(uint64_t);
    pager.read_at = squares;

    fp_memory *memory = fp_open_pager(&pager, &options, &error);
    if (memory == NULL) {
        fprintf(stderr, "%s\n", error.message);
        fp_error_free(&error);
        return 1;
    }
    const uint64_t *square = (const uint64_t *)fp_data(memory);
    for (uint64_t n = 1; n < NUMBERS; n *= 10)
        printf("%" PRIu64 " * %" PRIu64 " = %" PRIu64 "\n", n, n, square[n]);

    fp_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    fp_stat(memory, &stats, NULL);
    fprintf(stderr, "%" PRIu64 " of %" PRIu64 " bytes are in memory\n", stats.resident_bytes,
            stats.bytes);
    fp_close(memory);
    return 0;
}
