/* malloc in shared memory: four processes make lists of numbers, a fifth takes them apart.
 *
 * ./heap */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <farpage.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 16 << 20, PROCESSES = 4, NUMBERS = 10000 };

/* Processes map the memory at different addresses: what lies in it is linked by offsets. */
struct item {
    uint64_t next;
    uint64_t number;
};

static void fail(const char *what, fp_error *error)
{
    fprintf(stderr, "heap: %s: %s\n", what, error->message);
    exit(1);
}

static fp_heap *open_heap(int file, char **memory)
{
    fp_error error;
    *memory = (char *)mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    fp_heap *heap = fp_heap_open(*memory == MAP_FAILED ? NULL : *memory, BYTES, &error);
    if (heap == NULL)
        fail("open", &error);
    return heap;
}

static void push(int file, uint64_t first)
{
    fp_error error;
    char *memory;
    fp_heap *heap = open_heap(file, &memory);
    uint64_t *top = fp_heap_root(heap, 0, &error);
    for (uint64_t number = first; number < first + NUMBERS; number++) {
        struct item *item = (struct item *)fp_heap_alloc(heap, 0, sizeof *item, &error);
        if (item == NULL)
            fail("alloc", &error);
        item->number = number;
        item->next = __atomic_load_n(top, __ATOMIC_RELAXED);
        uint64_t own = (uint64_t)((char *)item - memory);
        while (!__atomic_compare_exchange_n(top, &item->next, own, 0, __ATOMIC_RELEASE,
                                            __ATOMIC_RELAXED))
            ;
    }
    fp_heap_close(heap);
}

int main(void)
{
    fp_error error;
    fp_heap_usage usage;
    char *memory;
    uint64_t sum = 0, count = 0;
    int file = memfd_create("heap", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, BYTES) != 0) {
        perror("heap");
        return 1;
    }
    for (uint64_t process = 0; process < PROCESSES; process++) {
        if (fork() == 0) {
            push(file, process * NUMBERS);
            _exit(0);
        }
    }
    while (wait(NULL) > 0)
        ;
    fp_heap *heap = open_heap(file, &memory);
    uint64_t *top = fp_heap_root(heap, 0, &error);
    for (uint64_t at = __atomic_load_n(top, __ATOMIC_ACQUIRE); at != 0; count++) {
        struct item *item = (struct item *)(memory + at);
        sum += item->number;
        at = item->next;
        if (fp_heap_free(heap, item, &error) != FP_OK)
            fail("free", &error);
    }
    fp_heap_usage_of(heap, &usage, &error);
    printf("%" PRIu64 " numbers, sum %" PRIu64 ", %" PRIu64 " blocks left\n", count, sum,
           usage.blocks);
    fp_heap_close(heap);
    return 0;
}
