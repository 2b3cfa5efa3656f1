/* Ring buffers that are mapped twice, one copy behind the other, in a process and with a child; beside them memory that
 * must leave. usage: ring MIB */
#include "job.h"
#include <pthread.h>
#include <semaphore.h>

#define RECORD 312UL /* does not divide the ring */

struct ring {
    char *at;
    size_t bytes;
    sem_t *free, *full;
};

/* The same memory twice at neighbouring addresses: a record may go over the end. */
static struct ring make(size_t bytes)
{
    int fd = memfd_create("ring", MFD_CLOEXEC);
    MUST(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    char *at = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    for (int copy = 0; copy < 2; copy++)
        MUST(mmap(at + (size_t)copy * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  fd, 0) == at + (size_t)copy * bytes);
    close(fd);
    sem_t *sems = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(sems != MAP_FAILED);
    MUST(sem_init(&sems[0], 1, (unsigned)(bytes / RECORD)) == 0 && sem_init(&sems[1], 1, 0) == 0);
    return (struct ring){at, bytes, &sems[0], &sems[1]};
}

static void down(sem_t *sem)
{
    while (sem_wait(sem) != 0)
        MUST(errno == EINTR);
}

static void produce(struct ring *ring, const char *from, size_t bytes)
{
    for (size_t done = 0; done + RECORD <= bytes; done += RECORD) {
        down(ring->free);
        memcpy(ring->at + done % ring->bytes, from + done, RECORD);
        MUST(sem_post(ring->full) == 0);
    }
}

static uint64_t consume(struct ring *ring, size_t bytes)
{
    uint64_t h = 1;
    for (size_t done = 0; done + RECORD <= bytes; done += RECORD) {
        down(ring->full);
        h = digest(ring->at + done % ring->bytes, RECORD, h);
        MUST(sem_post(ring->free) == 0);
    }
    return h;
}

struct job {
    struct ring ring;
    const char *from;
    size_t bytes;
};

static void *thread(void *of)
{
    struct job *job = of;
    produce(&job->ring, job->from, job->bytes);
    return NULL;
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv), bytes = pages * PAGE;
    char *memory = map_pages(pages);
    for (size_t i = 0; i < pages; i++)
        page_fill(memory + i * PAGE, i);
    struct job job = {make(1 << 20), memory, bytes / 4};
    pthread_t producer;
    MUST(pthread_create(&producer, NULL, thread, &job) == 0);
    printf("thread %016llx\n", (unsigned long long)consume(&job.ring, job.bytes));
    MUST(pthread_join(producer, NULL) == 0);
    struct ring ring = make(256 << 10);
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        produce(&ring, memory + bytes / 2, bytes / 4);
        _exit(0);
    }
    printf("child  %016llx\n", (unsigned long long)consume(&ring, bytes / 4));
    wait_ok(child);
    for (size_t i = 0; i < pages; i++)
        page_check(memory + i * PAGE, i, "memory");
    MUST(memcmp(ring.at, ring.at + ring.bytes, ring.bytes) == 0);
    printf("checked %zu pages\n", pages);
}
