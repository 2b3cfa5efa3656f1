/* Adds up the bytes of a file or an URL, read where they are touched.
 *
 * ./sum ADDRESS [CACHE-FOLDER] */
#include <farpage.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int fails(fp_error *error)
{
    fprintf(stderr, "sum: error %d: %s\n", (int)error->code, error->message);
    fp_error_free(error);
    return 1;
}

int main(int count, char **words)
{
    fp_error error;
    fp_options options;
    unsigned char buffer[65536];
    uint64_t sum = 0, size, at;
    if (count < 2) {
        fprintf(stderr, "usage: sum ADDRESS [CACHE-FOLDER]\n");
        return 2;
    }
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.deadline_ms = 5000;
    options.cache = count > 2 ? words[2] : NULL;
    fp_memory *memory = fp_open(words[1], &options, &error);
    if (memory == NULL)
        return fails(&error);
    size = fp_size(memory);
    /* The first half as memory. A byte that cannot be had ends the program with SIGBUS. */
    const unsigned char *byte = (const unsigned char *)fp_data(memory);
    for (at = 0; at < size / 2; at++)
        sum += byte[at];
    /* The second by copies, which fail with an error instead. */
    while (at < size) {
        size_t part = size - at < sizeof buffer ? (size_t)(size - at) : sizeof buffer;
        if (fp_read(memory, at, buffer, part, &error) != FP_OK) {
            fp_close(memory);
            return fails(&error);
        }
        for (size_t i = 0; i < part; i++)
            sum += buffer[i];
        at += part;
    }
    printf("%" PRIu64 " bytes, sum %" PRIu64 "\n", size, sum);
    fp_close(memory);
    return 0;
}
