/* Registrations: found again, until their memory goes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"
#include <errno.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 16 };

static int says(fp_error *error, int code, const char *what)
{
    int right = error->code == code && strstr(error->message, what) != NULL;
    if (!right)
        fprintf(stderr, "%d: %s\n", error->code, error->message ? error->message : "");
    fp_error_free(error);
    return right;
}

static char *mapped(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    return (char *)mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
}

/* A device with room for two. */
struct device {
    int registered, added;
};

static int add(void *context, void *address, size_t bytes, uint64_t *token)
{
    struct device *device = (struct device *)context;
    if (address == NULL || bytes % PAGE != 0)
        return EINVAL;
    if (device->registered == 2)
        return ENOSPC;
    device->registered++;
    *token = 100 + device->added++;
    return 0;
}

static void remove_one(void *context, void *address, size_t bytes, uint64_t token)
{
    struct device *device = (struct device *)context;
    (void)address, (void)bytes, (void)token;
    device->registered--;
}

/* A ring with a sparse table of buffers, or -1. */
static int ring_of(unsigned buffers)
{
    struct io_uring_params parameters;
    struct io_uring_rsrc_register table;
    memset(&parameters, 0, sizeof parameters);
    memset(&table, 0, sizeof table);
    int ring = (int)syscall(SYS_io_uring_setup, 1, &parameters);
    table.nr = buffers;
    table.flags = 1; /* sparse */
    if (ring >= 0 && syscall(SYS_io_uring_register, ring, 15, &table, sizeof table) != 0)
        return -1;
    return ring;
}

int main(void)
{
    struct device device = {0, 0};
    fp_reg with = {sizeof with, &device, add, remove_one};
    fp_registered one, two, again;
    fp_error error;
    char *memory = mapped();

    fp_regs *cache = fp_reg_cache(&with, 0, 0, &error);
    CHECK(cache != NULL);
    CHECK(fp_reg_get(cache, memory + 5, PAGE, &one, &error) == FP_OK);
    CHECK(one.token == 100 && one.address == memory && one.bytes == 2 * PAGE);
    CHECK(fp_reg_get(cache, memory + PAGE, 1, &again, NULL) == FP_OK && again.token == 100);
    CHECK(device.added == 1 && !fp_reg_is_gone(cache, &one));
    fp_reg_put(cache, &again);
    CHECK(fp_reg_get(cache, memory + 4 * PAGE, PAGE, &two, NULL) == FP_OK && two.token == 101);
    CHECK(fp_reg_get(cache, memory + 8 * PAGE, PAGE, &again, &error) == FP_CALLBACK);
    CHECK(says(&error, FP_CALLBACK, "could not register 4 KiB"));
    fp_reg_put(cache, &two);
    CHECK(fp_reg_get(cache, memory + 8 * PAGE, PAGE, &two, NULL) == FP_OK && two.token == 102);
    fp_reg_put(cache, &two);
    CHECK(munmap(memory, PAGES * PAGE) == 0 && fp_reg_is_gone(cache, &one));
    fp_reg_put(cache, &one);
    memory = mapped();
    CHECK(fp_reg_get(cache, memory, PAGE, &one, NULL) == FP_OK && one.token == 103);
    fp_reg_forget(cache, memory, 1);
    CHECK(fp_reg_is_gone(cache, &one));
    fp_reg_put(cache, &one);
    CHECK(fp_reg_get(cache, memory, 0, &one, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "without pages"));
    CHECK(fp_reg_get(NULL, memory, 1, &one, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "cache: it is NULL"));
    fp_reg_cache_free(cache);
    CHECK(device.registered == 0);
    with.size = 1;
    CHECK(fp_reg_cache(&with, 0, 0, &error) == NULL && says(&error, FP_ARGUMENT, "sizeof(fp_reg)"));

    device.added = 0;
    with.size = sizeof with;
    cache = fp_reg_cache(&with, 0, 0, &error);
    /* Two that overlap, the other way round, and one apart. */
    fp_area areas[] = {{memory + PAGE + 9, PAGE}, {memory, PAGE + 10}, {memory + 8 * PAGE, 1}};
    fp_registered all[3];
    CHECK(fp_reg_get_all(cache, areas, 3, all, &error) == FP_OK && device.registered == 2);
    CHECK(all[0].token == all[1].token && all[0].token != all[2].token);
    CHECK(all[1].address == memory && all[1].bytes == 3 * PAGE);
    CHECK(all[2].address == memory + 8 * PAGE && all[2].bytes == PAGE);
    /* The second does not fit, so the first is not had either: nothing of it is in the way. */
    fp_area more[] = {{memory, PAGE}, {memory + 12 * PAGE, PAGE}};
    CHECK(fp_reg_get_all(cache, more, 2, &one, &error) == FP_CALLBACK);
    CHECK(says(&error, FP_CALLBACK, "could not register 4 KiB"));
    for (int at = 0; at < 3; at++)
        fp_reg_put(cache, &all[at]);
    CHECK(fp_reg_get(cache, memory + 12 * PAGE, PAGE, &one, NULL) == FP_OK);
    CHECK(fp_reg_get(cache, memory + 14 * PAGE, PAGE, &two, NULL) == FP_OK && device.added == 4);
    fp_reg_put(cache, &one);
    fp_reg_put(cache, &two);
    CHECK(fp_reg_get_all(cache, NULL, 0, NULL, &error) == FP_OK);
    CHECK(fp_reg_get_all(cache, areas, 3, NULL, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "one is NULL"));
    CHECK(fp_reg_get_all(NULL, areas, 3, all, &error) == FP_ARGUMENT);
    CHECK(says(&error, FP_ARGUMENT, "cache: it is NULL"));
    fp_reg_cache_free(cache);
    CHECK(device.registered == 0);

    cache = fp_reg_cache(NULL, 4 * PAGE, 0, &error);
    CHECK(cache != NULL && fp_reg_get(cache, memory, 4 * PAGE, &one, &error) == FP_OK);
    CHECK(fp_reg_get(cache, memory + 8 * PAGE, PAGE, &two, &error) == FP_KERNEL);
    CHECK(says(&error, FP_KERNEL, "have 16384 bytes of 16384"));
    fp_reg_put(cache, &one);
    fp_reg_cache_free(cache);

    int ring = ring_of(2);
    CHECK(ring >= 0);
    cache = fp_reg_cache_of_ring(ring, 2, 0, &error);
    CHECK(cache != NULL && fp_reg_get(cache, memory, PAGE, &one, &error) == FP_OK);
    CHECK(fp_reg_get(cache, memory + 4 * PAGE, PAGE, &two, &error) == FP_OK);
    CHECK(one.token < 2 && two.token < 2 && one.token != two.token);
    fp_reg_put(cache, &one);
    fp_reg_put(cache, &two);
    fp_reg_cache_free(cache);
    CHECK(fp_reg_cache_of_ring(-1, 2, 0, &error) == NULL && says(&error, FP_ARGUMENT, "ring:"));
    puts("done");
    return 0;
}
