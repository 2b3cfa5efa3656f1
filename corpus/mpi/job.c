/* Ranks of one machine, which talk through shared memory: large messages, a sum, a transposition and a window that all
 * of them share. usage: mpirun -np N job MIB */
#include "../c/job.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    size_t words = job_pages(argc, argv) * WORDS_PER_PAGE / (size_t)size / 4;
    words -= words % (size_t)size;
    uint64_t *own = malloc(words * 8), *other = malloc(words * 8);
    MUST(own && other);
    for (size_t i = 0; i < words; i++)
        own[i] = mix((uint64_t)rank << 40 | i);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    for (int round = 0; round < 4; round++)
        MPI_Sendrecv_replace(own, (int)words, MPI_UINT64_T, next, round, last, round, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
    MPI_Alltoall(own, (int)(words / (size_t)size), MPI_UINT64_T, other, (int)(words / (size_t)size),
                 MPI_UINT64_T, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, own, (int)words, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
    uint64_t sums[2] = {mix(digest(own, words * 8, 1) + (uint64_t)rank), digest(other, words * 8, 1)}, all[2];
    MPI_Win window;
    uint64_t *shared;
    MPI_Aint bytes = (MPI_Aint)(words * 8);
    MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
    MPI_Win_fence(0, window);
    for (size_t i = 0; i < words; i++)
        shared[i] = other[i] + (uint64_t)rank;
    MPI_Win_fence(0, window);
    uint64_t *theirs;
    int unit;
    MPI_Win_shared_query(window, next, &bytes, &unit, &theirs);
    uint64_t seen = digest(theirs, words * 8, 1);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    MPI_Reduce(sums, all, 2, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &seen, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks %zu words %016llx %016llx %016llx\n", size, words,
               (unsigned long long)all[0], (unsigned long long)all[1], (unsigned long long)seen);
    MPI_Finalize();
}
