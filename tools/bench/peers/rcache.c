/* UCX's cache of registrations: hits, as the bench of locked memory measures those of others.
 * Prints lines: hit ucx REGIONS THREADS NS. */
#include "times.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucm/api/ucm.h>
#include <ucs/memory/rcache.h>

enum { COUNT = 2000000 };

static ucs_rcache_t *cache;
static char *memory;
static size_t regions;
static pthread_barrier_t begins;

static ucs_status_t mem_reg(void *context, ucs_rcache_t *rcache, void *arg,
                            ucs_rcache_region_t *region, uint16_t flags)
{
    (void)context, (void)rcache, (void)arg, (void)region, (void)flags;
    return UCS_OK;
}

static void mem_dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region)
{
    (void)context, (void)rcache, (void)region;
}

static void dump(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region, char *text,
                 size_t most)
{
    (void)context, (void)rcache, (void)region, (void)most;
    *text = 0;
}

static void get_and_put(size_t region)
{
    ucs_rcache_region_t *found;
    void *at = memory + 2 * PAGE * region;
    if (ucs_rcache_get(cache, at, PAGE, PROT_READ | PROT_WRITE, NULL, &found) != UCS_OK)
        exit(1);
    ucs_rcache_region_put(cache, found);
}

static void *hits(void *result)
{
    uint64_t next = (uint64_t)*(double *)result;
    pthread_barrier_wait(&begins);
    uint64_t start = now_ns();
    for (int turn = 0; turn < COUNT; turn++) {
        next = next * 6364136223846793005u + 1;
        get_and_put((next >> 32) * regions >> 32);
    }
    *(double *)result = (double)(now_ns() - start) / COUNT;
    return NULL;
}

int main(int count, char **arguments)
{
    static const size_t sizes[] = {1, 10000, 100000};
    int runs = count > 1 ? atoi(arguments[1]) : 5;
    ucs_rcache_ops_t ops = {mem_reg, mem_dereg, dump};
    ucs_rcache_params_t params;
    memset(&params, 0, sizeof params);
    params.region_struct_size = sizeof(ucs_rcache_region_t);
    params.alignment = 64;
    params.max_alignment = PAGE;
    params.ucm_events = UCM_EVENT_VM_UNMAPPED;
    params.ucm_event_priority = 1000;
    params.ops = &ops;
    params.max_regions = -1ul;
    params.max_size = -1ul;
    for (int run = 0; run < runs; run++) {
        for (int size = 0; size < 3; size++) {
            regions = sizes[size];
            if (ucs_rcache_create(&params, "peer", NULL, &cache) != UCS_OK)
                return 1;
            memory = mmap(NULL, 2 * PAGE * regions, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t region = 0; region < regions; region++)
                get_and_put(region);
            for (int threads = 1; threads <= 2; threads++) {
                pthread_t other;
                double ns[2] = {1, 2};
                pthread_barrier_init(&begins, NULL, threads);
                if (threads == 2)
                    pthread_create(&other, NULL, hits, &ns[1]);
                hits(&ns[0]);
                if (threads == 2)
                    pthread_join(other, NULL);
                printf("hit ucx %zu %d %.2f\n", regions, threads,
                       threads == 2 ? (ns[0] + ns[1]) / 2 : ns[0]);
            }
            ucs_rcache_destroy(cache);
            munmap(memory, 2 * PAGE * regions);
        }
    }
    return 0;
}
