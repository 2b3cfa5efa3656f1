/* An array that is summed from front to back, again and again. usage: rounds MIB */
#include "job.h"

int main(int argc, char **argv)
{
    enum { ROUNDS = 20 };
    size_t pages = job_pages(argc, argv), words = pages * WORDS_PER_PAGE;
    uint64_t *array = malloc(pages * PAGE), sum = 0;
    MUST(array);
    for (size_t page = 0; page < pages; page++)
        page_fill(array + page * WORDS_PER_PAGE, page);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < words; i++)
            sum = sum * 31 + array[i];
        printf("round %d %lx\n", round, sum);
    }
    return 0;
}
