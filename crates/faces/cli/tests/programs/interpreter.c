/* Stands for an interpreter of programs for another machine: says whose program it was given, after it has written to
   64 MiB and checked them. */
#include "check.h"
#include <stdint.h>

#define WORDS ((64 << 20) / 8)

int main(int count, char **words)
{
    CHECK(count == 3);
    uint64_t *all = malloc(WORDS * 8);
    CHECK(all);
    for (int round = 0; round < 2; round++) {
        uint64_t seed = 7;
        for (size_t at = 0; at < WORDS; at++) {
            seed = seed * 6364136223846793005 + 1442695040888963407;
            if (round == 0)
                all[at] = seed;
            CHECK(all[at] == seed);
        }
    }
    printf("%s %s\n", strrchr(words[1], '/'), words[2]);
    return 0;
}
