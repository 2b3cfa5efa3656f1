/* Copies of any bytes of a file, in memory. WORDS[1]: a file of 3000000 bytes, byte n of which is n % 251;
 * WORDS[2]: an URL of the same. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <fcntl.h>
#include <unistd.h>

static const size_t LARGE = 2500001;

static int is_of_file(const unsigned char *bytes, size_t offset, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != (offset + at) % 251)
            return 0;
    return 1;
}

/* An address where nothing lies: Linux gives none there of its own choice. */
static void *free_place(void)
{
    static uintptr_t next = 0x200000000000;
    next += 1 << 24;
    return (void *)next;
}

static void copies(const char *path)
{
    size_t sizes[2] = {5000, LARGE};
    fp_error error;
    for (int n = 0; n < 4; n++) {
        int find_space = n / 2;
        size_t bytes = sizes[n % 2];
        void *wanted = find_space ? NULL : free_place();
        void *address = wanted;
        int fd = open(path, O_RDONLY);
        CHECK(fp_map_fd(fd, 4097, &address, find_space, bytes, &error) == FP_OK);
        CHECK(error.code == FP_OK && error.message == NULL);
        CHECK(find_space || address == wanted);
        close(fd);
        unsigned char *copy = (unsigned char *)address;
        copy[10] ^= 0xFF;
        /* A writer waits until the copy is whole. */
        fd = open(path, O_RDWR);
        CHECK(fd >= 0 && pwrite(fd, "overwritten", 11, 4100) == 11);
        copy[10] ^= 0xFF;
        CHECK(is_of_file(copy, 4097, bytes));
        unsigned char back[11];
        for (size_t at = 0; at < 11; at++)
            back[at] = (4100 + at) % 251;
        CHECK(pwrite(fd, back, 11, 4100) == 11);
        close(fd);
        CHECK(fp_unmap(address, &error) == FP_OK);
        CHECK(fp_unmap(address, &error) == FP_ARGUMENT);
        check_error(&error, FP_ARGUMENT, "nothing was mapped");
    }
}

static void shared(const char *path)
{
    fp_error error;
    void *address = NULL;
    int fd = open(path, O_RDWR);
    CHECK(fp_map_fd_shared(fd, 777, &address, 1, 5000, &error) == FP_OK);
    unsigned char *bytes = (unsigned char *)address, byte = 0;
    bytes[1] = 252;
    CHECK(pread(fd, &byte, 1, 778) == 1 && byte == 252);
    bytes[1] = 778 % 251;
    CHECK(is_of_file(bytes, 777, 5000));
    CHECK(fp_unmap(address, NULL) == FP_OK);
    address = free_place();
    CHECK(fp_map_fd_shared(fd, 777, &address, 0, 5000, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "begins no page");
    close(fd);
}

static void url(const char *url)
{
    fp_error error;
    void *address = NULL;
    size_t bytes = 0;
    CHECK(fp_map_url(url, 99999, &address, 1, &bytes, NULL, &error) == FP_OK);
    CHECK(bytes == 3000000 - 99999 && is_of_file((unsigned char *)address, 99999, bytes));
    CHECK(fp_unmap(address, NULL) == FP_OK);
    bytes = 7;
    CHECK(fp_map_url(url, 2999993, &address, 1, &bytes, NULL, &error) == FP_OK);
    CHECK(bytes == 7 && is_of_file((unsigned char *)address, 2999993, bytes));
    CHECK(fp_unmap(address, NULL) == FP_OK);
    bytes = 8;
    CHECK(fp_map_url(url, 2999993, &address, 1, &bytes, NULL, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "not inside");
    CHECK(fp_map_url(url, 0, &address, 1, NULL, NULL, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "bytes: it is NULL");
    CHECK(fp_map_url(NULL, 0, &address, 1, &bytes, NULL, NULL) == FP_ARGUMENT);
}

static void refused(const char *path)
{
    fp_error error;
    int fd = open(path, O_RDONLY), ends[2];
    void *address = (void *)0x1001, *taken = &address;
    CHECK(fp_map_fd(fd, 0, NULL, 1, 1, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "address: it is NULL");
    CHECK(fp_map_fd(-1, 0, &address, 1, 1, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "no descriptor");
    CHECK(fp_map_fd(fd, 0, &address, 0, 1, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "multiple of 4096");
    taken = (void *)((uintptr_t)taken & ~(uintptr_t)4095);
    CHECK(fp_map_fd(fd, 0, &taken, 0, 1, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "lies at");
    CHECK(fp_map_fd(fd, 2999999, &address, 1, 2, &error) == FP_ARGUMENT);
    check_error(&error, FP_ARGUMENT, "which has 3000000");
    CHECK(fp_map_fd(fd, UINT64_MAX, &address, 1, 2, &error) == FP_ARGUMENT);
    CHECK(fp_map_fd(fd, 0, &address, 1, 0, &error) == FP_ARGUMENT);
    CHECK(pipe(ends) == 0);
    CHECK(fp_map_fd(ends[0], 0, &address, 1, 1, &error) == FP_UNSUPPORTED);
    check_error(&error, FP_UNSUPPORTED, "pipe");
    CHECK(fp_map_fd(12345, 0, &address, 1, 1, &error) == FP_UNSUPPORTED);
    close(fd);
    fd = open(path, O_WRONLY);
    CHECK(fp_map_fd(fd, 0, &address, 1, 1, &error) == FP_DENIED);
    check_error(&error, FP_DENIED, "for reading too");
    CHECK(address == (void *)0x1001);
    CHECK(fp_unmap(NULL, NULL) == FP_OK);
}

int main(int count, char **words)
{
    CHECK(count == 3);
    copies(words[1]);
    shared(words[1]);
    url(words[2]);
    refused(words[1]);
    return 0;
}
