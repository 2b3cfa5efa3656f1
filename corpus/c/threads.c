/* Many threads read and add atomically at random places of one large array, two of them over the
 * same stripe at once: no increment may be lost, whatever is paged out meanwhile. */
#include "job.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 6, ROUNDS = 3 };
static _Atomic uint64_t *words;
static size_t word_count;

static void *worker(void *arg)
{
    uint64_t state = (uint64_t)(size_t)arg * 1000003;
    for (size_t i = 0; i < word_count / 1024 * ROUNDS; i++) {
        size_t at = rng(&state) % word_count;
        atomic_fetch_add_explicit(&words[at], 1, memory_order_relaxed);
    }
    for (size_t i = 0; i < word_count; i += WORDS_PER_PAGE) /* everybody touches every page */
        atomic_fetch_add_explicit(&words[i + 1], 1, memory_order_relaxed);
    return NULL;
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv);
    words = map_pages(pages);
    word_count = pages * WORDS_PER_PAGE;
    for (size_t i = 0; i < word_count; i++)
        atomic_store_explicit(&words[i], mix(i), memory_order_relaxed);
    pthread_t threads[THREADS];
    for (size_t t = 0; t < THREADS; t++)
        MUST(pthread_create(&threads[t], NULL, worker, (void *)(t + 1)) == 0);
    for (size_t t = 0; t < THREADS; t++)
        MUST(pthread_join(threads[t], NULL) == 0);
    uint64_t added = 0;
    for (size_t i = 0; i < word_count; i++)
        added += atomic_load_explicit(&words[i], memory_order_relaxed) - mix(i);
    printf("added %llu of %llu\n", (unsigned long long)added,
           (unsigned long long)(THREADS * (word_count / 1024 * ROUNDS + pages)));
    printf("memory %016llx\n", (unsigned long long)digest((void *)words, pages * PAGE, 0));
    return 0;
}
