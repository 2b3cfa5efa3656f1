/* Makes one of each thing that outlives its maker, and leaves it. */
#include "check.h"
#include <mqueue.h>
#include <semaphore.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define NAME "/farpage-left"
#define BYTES (1 << 20)

static void make(int wait)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%d", NAME, wait ? 0 : getpid());
    int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, BYTES));
    char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 1, BYTES);
    sem_t *semaphore = sem_open(NAME, O_CREAT, 0600, 2);
    CHECK(semaphore != SEM_FAILED);
    mqd_t queue = mq_open(NAME, O_CREAT | O_RDWR, 0600, 0);
    CHECK(queue >= 0);
    int segment = shmget(0x7a6e, BYTES, IPC_CREAT | 0600);
    CHECK(segment >= 0);
    char *attached = shmat(segment, 0, 0);
    CHECK(attached != (char *)-1);
    memset(attached, 1, BYTES);
    CHECK(semget(0x7a6e, 1, IPC_CREAT | 0600) >= 0);
    CHECK(msgget(0x7a6e, IPC_CREAT | 0600) >= 0);
    puts("made");
    fflush(stdout);
    while (wait)
        pause();
}

/* Processes that have all of it, and are killed one after another. */
static void killed(void)
{
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        int ends[2];
        char byte;
        CHECK(!pipe(ends));
        if (!(children[i] = fork())) {
            CHECK(dup2(ends[1], 1) == 1);
            make(1);
        }
        CHECK(read(ends[0], &byte, 1) == 1 && write(1, "made\n", 5) == 5);
    }
    for (int i = 0; i < 2; i++)
        CHECK(!kill(children[i], SIGKILL) && waitpid(children[i], 0, 0) == children[i]);
    raise(SIGKILL);
}

/* Makes, maps, hands on and removes names, for ever: whatever it maps says what it should. */
static void work(unsigned seed)
{
    size_t bytes = 64 << 12;
    for (unsigned turn = 0;; turn++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%d-%u", NAME, getpid(), turn);
        int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        CHECK(fd >= 0 && !ftruncate(fd, bytes));
        unsigned *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        int segment = shmget(IPC_PRIVATE, bytes, 0600);
        CHECK(segment >= 0);
        unsigned *other = shmat(segment, 0, 0);
        CHECK((char *)other != (char *)-1);
        int memory = memfd_create("work", 0);
        CHECK(memory >= 0 && !ftruncate(memory, 1 << 20));
        unsigned *third = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        CHECK(third != MAP_FAILED);
        for (unsigned i = 0; i < bytes / 4; i += 512)
            at[i] = seed + i, other[i] = seed - i, third[i] = seed ^ i;
        pid_t child = fork();
        for (unsigned i = 0; i < bytes / 4; i += 512)
            CHECK(at[i] == seed + i && other[i] == seed - i && third[i] == (seed ^ i));
        if (!child)
            _exit(0);
        wait_for(child, 0);
        CHECK(!munmap(at, bytes) && !shm_unlink(name) && !close(fd));
        CHECK(!shmdt(other) && !shmctl(segment, IPC_RMID, 0));
        CHECK(!munmap(third, 1 << 20) && !close(memory));
    }
}

/* Kills workers at random, `times` times. */
static void random_kills(int times)
{
    enum { WORKERS = 4 };
    pid_t workers[WORKERS] = {0};
    srand(times);
    for (int i = 0; i < times + WORKERS; i++) {
        int which = i < WORKERS ? i : rand() % WORKERS;
        if (workers[which]) {
            int status;
            /* At any time: nothing is waited for. */
            pass_us(rand() % 20000);
            CHECK(!kill(workers[which], SIGKILL));
            CHECK(waitpid(workers[which], &status, 0) == workers[which]);
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        }
        if (!(workers[which] = fork()))
            work(i * 1000003u);
    }
    for (int i = 0; i < WORKERS; i++)
        CHECK(!kill(workers[i], SIGKILL) && waitpid(workers[i], 0, 0) == workers[i]);
}

/* Processes that are killed with memory that has no name any more. */
static void often(int times)
{
    size_t bytes = 24 << 20;
    for (int i = 0; i < times; i++) {
        pid_t child = fork();
        if (!child) {
            int fd = shm_open(NAME, O_CREAT | O_EXCL | O_RDWR, 0600);
            CHECK(fd >= 0 && !ftruncate(fd, bytes));
            char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(at != MAP_FAILED && !shm_unlink(NAME));
            for (size_t done = 0; done < bytes; done += 4096)
                CHECK(getrandom(at + done, 4096, 0) == 4096);
            raise(SIGKILL);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
}

/* One process that makes and unlinks more than there is room for, without a pause. */
static void alone(int times)
{
    size_t bytes = 4 << 20;
    for (int i = 0; i < times; i++) {
        int fd = shm_open(NAME, O_CREAT | O_EXCL | O_RDWR, 0600);
        CHECK(fd >= 0 && !ftruncate(fd, bytes));
        char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED && !shm_unlink(NAME) && !close(fd));
        for (size_t done = 0; done < bytes; done += 4096)
            CHECK(getrandom(at + done, 4096, 0) == 4096);
        CHECK(!munmap(at, bytes));
    }
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "map")) {
        int fd = shm_open(NAME "-0", O_RDWR, 0);
        CHECK(fd >= 0);
        void *at = mmap(0, BYTES, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(at == MAP_FAILED && errno == EBUSY);
        puts("refused");
    } else if (!strcmp(what, "often")) {
        often(atoi(words[2]));
    } else if (!strcmp(what, "alone")) {
        alone(atoi(words[2]));
    } else if (!strcmp(what, "random")) {
        random_kills(atoi(words[2]));
    } else if (!strcmp(what, "killed")) {
        killed();
    } else {
        make(!strcmp(what, "wait"));
    }
    return 0;
}
