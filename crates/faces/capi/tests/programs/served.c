/* A pager in a process of its own: eight bytes at offset n are n, until they are written to. */
#include <farpage.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (1u << 20)

static unsigned char *contents;
static int closed_calls;

static int32_t read_at(void *context, uint64_t offset, void *buffer, size_t bytes, char *text,
                       size_t text_bytes)
{
    (void)context;
    if (offset <= 40960 && offset + bytes > 40960) {
        snprintf(text, text_bytes, "byte 40960 is missing");
        return FP_CORRUPT;
    }
    memcpy(buffer, contents + offset, bytes);
    return FP_OK;
}

static int32_t write_at(void *context, uint64_t offset, const void *buffer, size_t bytes, char *text,
                        size_t text_bytes)
{
    (void)context, (void)text, (void)text_bytes;
    memcpy(contents + offset, buffer, bytes);
    uint64_t first;
    memcpy(&first, buffer, sizeof first);
    printf("written %llu %zu %llu\n", (unsigned long long)offset, bytes, (unsigned long long)first);
    fflush(stdout);
    return FP_OK;
}

static void closed(void *context)
{
    (void)context;
    closed_calls++;
}

int main(int count, char **words)
{
    fp_error error;
    fp_pager pager;
    memset(&pager, 0, sizeof pager);
    if (fp_serve_pager(NULL, 0, &error) != NULL || error.code != FP_ARGUMENT) {
        return 2;
    }
    fp_error_free(&error);
    if (fp_served_wait(NULL, 0, &error) != -1 || error.code != FP_ARGUMENT) {
        return 2;
    }
    fp_error_free(&error);
    fp_served_free(NULL);
    contents = malloc(BYTES);
    for (uint64_t at = 0; contents && at < BYTES; at += sizeof at) {
        memcpy(contents + at, &at, sizeof at);
    }
    pager.size = sizeof pager;
    pager.name = count > 1 ? words[1] : "served";
    pager.bytes = BYTES;
    pager.read_at = read_at;
    pager.write_at = write_at;
    pager.closed = closed;
    fp_served *served = fp_serve_pager(&pager, 120000, &error);
    if (served == NULL) {
        printf("refused %d %s\n", (int)error.code, error.message);
        fp_error_free(&error);
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    if (fp_served_wait(served, 1, &error) != 0) {
        return 2;
    }
    char line[16];
    if (fgets(line, sizeof line, stdin) == NULL) {
        return 2;
    }
    fp_served_free(served);
    printf("ended\n");
    return 0;
}
