/* One-sided messages of MPI between two hosts: rank 0 has the memory, rank 1 reads and writes
   it. */
#include <mpi.h>

#include "times.h"

enum { HOME, OTHER, DONE = 7 };

static MPI_Win window;

static void get(char *page, size_t at, int bytes)
{
    MPI_Get(page, bytes, MPI_BYTE, HOME, (MPI_Aint)at, bytes, MPI_BYTE, window);
    MPI_Win_flush(HOME, window);
}

static void put(char *page, size_t at, int bytes)
{
    MPI_Put(page, bytes, MPI_BYTE, HOME, (MPI_Aint)at, bytes, MPI_BYTE, window);
    MPI_Win_flush(HOME, window);
}

typedef void one(char *page, size_t at, int bytes);

static void each(const char *what, one *one, size_t count, int bytes)
{
    uint64_t *times = malloc(count * sizeof *times);
    char *page = malloc((size_t)bytes);
    memset(page, 7, (size_t)bytes);
    for (size_t at = 0; at < count; at++) {
        uint64_t began = now_ns();
        one(page, at * (size_t)bytes, bytes);
        times[at] = now_ns() - began;
    }
    print_times(what, times, count);
    free(page);
    free(times);
}

/* Both hosts at once, to one word. */
static void adds(void)
{
    int64_t step = 1, before;
    uint64_t began = now_ns();
    for (int count = 0; count < ADDS; count++) {
        MPI_Fetch_and_op(&step, &before, MPI_INT64_T, HOME, 0, MPI_SUM, window);
        MPI_Win_flush(HOME, window);
    }
    uint64_t mean = (now_ns() - began) / ADDS;
    print_times("add", &mean, 1);
}

static void home_computes(void)
{
    int is_done = 0;
    while (!is_done) {
        compute();
        MPI_Iprobe(OTHER, DONE, MPI_COMM_WORLD, &is_done, MPI_STATUS_IGNORE);
    }
    MPI_Recv(NULL, 0, MPI_BYTE, OTHER, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int count, char **words)
{
    struct told told_us = told(count, words);
    int rank;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    char *memory;
    size_t bytes = rank == HOME ? told_us.pages * PAGE : 0;
    MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    if (rank == HOME)
        memset(memory, 0, bytes);
    MPI_Win_lock_all(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == OTHER) {
        /* Connected before it counts. */
        char page[PAGE];
        get(page, 0, PAGE);
        put(page, 0, PAGE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    size_t pages = told_us.computes ? COMPUTED : told_us.pages;
    if (rank == HOME && told_us.computes)
        home_computes();
    if (rank == OTHER) {
        each("read", get, pages, PAGE);
        each("write", put, pages, PAGE);
        if (told_us.computes)
            MPI_Send(NULL, 0, MPI_BYTE, HOME, DONE, MPI_COMM_WORLD);
        else
            each("read-64K", get, pages / 16, LARGE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!told_us.computes)
        adds();
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Finalize();
}
