/* Memory registered with CUDA's driver, for copies at full speed, and found again by Farpage's cache.
 *
 *     cc examples/c/cuda.c $(pkg-config --cflags --libs farpage) -ldl -o cuda && ./cuda
 *
 * Copies 256 MiB to the first GPU and back, of plain memory, of memory that CUDA allocated, and of shared memory that
 * is locked and registered; prints GB/s of each, medians of 5. Says so, and ends with 77, where there is no CUDA. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <farpage.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 16 << 20, PIECES = 16, RUNS = 5, NO_CUDA = 77, CUDA_ERROR_OUT_OF_MEMORY = 2 };

/* The part of CUDA's driver that this uses, by its stable names. */
typedef unsigned long long device_address;
static int (*init)(unsigned);
static int (*device_get)(int *, int);
static int (*context_retain)(void **, int);
static int (*context_set)(void *);
static int (*allocate)(device_address *, size_t);
static int (*host_allocate)(void **, size_t, unsigned);
static int (*host_register)(void *, size_t, unsigned);
static int (*host_unregister)(void *);
static int (*to_device)(device_address, const void *, size_t);
static int (*from_device)(void *, device_address, size_t);

static void ends(const char *what, const char *why)
{
    fprintf(stderr, "cuda: cannot %s: %s\n", what, why);
    exit(1);
}

static void check(const char *what, int result)
{
    char why[40];
    snprintf(why, sizeof why, "CUDA says %d", result);
    if (result != 0)
        ends(what, why);
}

static void no_cuda(const char *why)
{
    printf("skipped: no CUDA here: %s\n", why);
    exit(NO_CUDA);
}

static void find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        no_cuda(dlerror());
    memcpy(function, &found, sizeof found);
}

/* What Farpage's cache registers with. */
static long added;

static int add(void *context, void *address, size_t bytes, uint64_t *token)
{
    (void)context;
    int result = host_register(address, bytes, 0);
    if (result != 0)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? ENOMEM : EIO;
    added++;
    *token = 0;
    return 0;
}

static void remove_one(void *context, void *address, size_t bytes, uint64_t token)
{
    (void)context, (void)bytes, (void)token;
    host_unregister(address);
}

static double seconds(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static int later(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Copies all pieces there and back, each registered when there is a cache, and compares. */
static void measure(const char *what, char *memory, device_address device, fp_regs *cache)
{
    double rates[2][RUNS];
    fp_registered registered;
    fp_error error;
    for (int run = 0; run < RUNS; run++) {
        for (int way = 0; way < 2; way++) {
            for (int piece = 0; piece < PIECES && way == 0; piece++)
                memset(memory + (size_t)piece * PIECE, run * PIECES + piece + 1, PIECE);
            double start = seconds();
            for (int piece = 0; piece < PIECES; piece++) {
                size_t at = (size_t)piece * PIECE;
                if (cache != NULL && fp_reg_get(cache, memory + at, PIECE, &registered, &error) != FP_OK)
                    ends("register", error.message);
                if (way == 0)
                    check("copy to the GPU", to_device(device + at, memory + at, PIECE));
                else
                    check("copy from the GPU", from_device(memory + at, device + at, PIECE));
                if (cache != NULL)
                    fp_reg_put(cache, &registered);
            }
            rates[way][run] = (double)PIECE * PIECES / (seconds() - start) / 1e9;
            if (way == 0)
                memset(memory, 0, (size_t)PIECE * PIECES);
        }
        for (size_t at = 0; at < (size_t)PIECE * PIECES; at += 511)
            if (memory[at] != (char)(run * PIECES + (int)(at / PIECE) + 1))
                ends("compare", "what came back is not what was copied");
    }
    for (int way = 0; way < 2; way++)
        qsort(rates[way], RUNS, sizeof rates[way][0], later);
    printf("%s to %.1f from %.1f GB/s\n", what, rates[0][RUNS / 2], rates[1][RUNS / 2]);
}

int main(void)
{
    size_t bytes = (size_t)PIECE * PIECES;
    fp_reg with = {sizeof with, NULL, add, remove_one};
    fp_error error;
    uint64_t locked;
    int device;
    void *context, *of_cuda;
    device_address there;

    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        no_cuda(dlerror());
    find(library, "cuInit", &init);
    find(library, "cuDeviceGet", &device_get);
    find(library, "cuDevicePrimaryCtxRetain", &context_retain);
    find(library, "cuCtxSetCurrent", &context_set);
    find(library, "cuMemAlloc_v2", &allocate);
    find(library, "cuMemHostAlloc", &host_allocate);
    find(library, "cuMemHostRegister_v2", &host_register);
    find(library, "cuMemHostUnregister", &host_unregister);
    find(library, "cuMemcpyHtoD_v2", &to_device);
    find(library, "cuMemcpyDtoH_v2", &from_device);
    if (init(0) != 0 || device_get(&device, 0) != 0)
        no_cuda("its driver finds no GPU");
    check("use the GPU", context_retain(&context, device));
    check("use the GPU", context_set(context));
    check("allocate memory of the GPU", allocate(&there, bytes));
    check("allocate memory by CUDA", host_allocate(&of_cuda, bytes, 0));

    void *plain = malloc(bytes);
    int file = memfd_create("copied", MFD_CLOEXEC);
    if (plain == NULL || file < 0 || ftruncate(file, (off_t)bytes) != 0)
        ends("have memory", strerror(errno));
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED)
        ends("map memory", strerror(errno));
    if (fp_lock_area(shared, bytes, FP_PINNED, &locked, &error) != FP_OK)
        ends("lock memory", error.message);
    fp_regs *cache = fp_reg_cache(&with, 0, 0, &error);
    if (cache == NULL)
        ends("have a cache", error.message);
    measure("plain", (char *)plain, there, NULL);
    measure("cuMemHostAlloc", (char *)of_cuda, there, NULL);
    measure("farpage", (char *)shared, there, cache);
    printf("registered %ld times\n", added);
    fp_reg_cache_free(cache);
    fp_unlock_area(locked, NULL);
    return 0;
}
