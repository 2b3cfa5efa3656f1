/* Processes of MPI on one host: messages longer than what may be in RAM, collectives, and a window
 * that all of them have. Says what came of it, which is the same each time. */
#include "check.h"
#include <mpi.h>

#define RANKS_MAX 8

static unsigned long sum(const unsigned long *at, size_t words)
{
    unsigned long sum = 0;
    for (size_t i = 0; i < words; i++)
        sum = sum * 31 + at[i];
    return sum;
}

static void fill(unsigned long *at, size_t words, unsigned long seed)
{
    for (size_t i = 0; i < words; i++)
        at[i] = (seed + i) * 0x9E3779B97F4A7C15ul;
}

/* Each hands what it has to the next, all the way round. */
static unsigned long ring(int rank, int ranks, size_t words)
{
    unsigned long *own = malloc(8 * words), *next = malloc(8 * words), *expected = malloc(8 * words);
    CHECK(own && next && expected);
    fill(own, words, rank);
    for (int turn = 1; turn <= ranks; turn++) {
        int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
        MPI_Sendrecv(own, words, MPI_UNSIGNED_LONG, to, 1, next, words, MPI_UNSIGNED_LONG, from, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        unsigned long *was = own;
        own = next, next = was;
        fill(expected, words, (rank + ranks * turn - turn) % ranks);
        CHECK(!memcmp(own, expected, 8 * words));
    }
    unsigned long got = sum(own, words);
    free(own), free(next), free(expected);
    return got;
}

static unsigned long collectives(int rank, int ranks, size_t words)
{
    unsigned long *own = malloc(8 * words), *all = malloc(8 * words);
    CHECK(own && all);
    fill(own, words, rank);
    MPI_Allreduce(own, all, words, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    unsigned long got = sum(all, words);
    MPI_Alltoall(own, words / ranks, MPI_UNSIGNED_LONG, all, words / ranks, MPI_UNSIGNED_LONG,
                 MPI_COMM_WORLD);
    got = got * 31 + sum(all, words / ranks * ranks);
    if (rank == 1 % ranks)
        fill(own, words, 77);
    MPI_Bcast(own, words, MPI_UNSIGNED_LONG, 1 % ranks, MPI_COMM_WORLD);
    got = got * 31 + sum(own, words);
    for (int i = 0; i < 200; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Bcast(&got, 0, MPI_UNSIGNED_LONG, i % ranks, MPI_COMM_WORLD);
    }
    free(own), free(all);
    return got;
}

/* Each writes its part of one memory and reads the next one's. */
static unsigned long window(int rank, int ranks, size_t words)
{
    MPI_Win window;
    unsigned long *own;
    MPI_Win_allocate_shared(8 * words, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &own, &window);
    MPI_Win_fence(0, window);
    fill(own, words, rank * 1000);
    MPI_Win_fence(0, window);
    MPI_Aint bytes;
    int unit;
    unsigned long *theirs;
    MPI_Win_shared_query(window, (rank + 1) % ranks, &bytes, &unit, &theirs);
    CHECK(bytes == (MPI_Aint)(8 * words) && unit == 8);
    unsigned long got = sum(theirs, words);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    return got;
}

int main(int count, char **words)
{
    int rank, ranks;
    unsigned long all[RANKS_MAX][3];
    CHECK(count > 1 && !MPI_Init(&count, &words));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks <= RANKS_MAX);
    size_t size = strtoul(words[1], 0, 10) << 17;
    unsigned long own[3] = {
        ring(rank, ranks, size), collectives(rank, ranks, size), window(rank, ranks, size)};
    MPI_Gather(own, 3, MPI_UNSIGNED_LONG, all, 3, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < ranks; i++)
        printf("%d %lx %lx %lx\n", i, all[i][0], all[i][1], all[i][2]);
    MPI_Finalize();
    return 0;
}
