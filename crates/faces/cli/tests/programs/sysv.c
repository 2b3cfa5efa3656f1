/* Shared memory of System V, whose meaning is the same with and without farpage run --shm. */
#include "check.h"
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define PAGE 4096
#define BYTES (10 * PAGE + 100)
#define FAILED ((char *)-1)

static struct shmid_ds about(int segment)
{
    struct shmid_ds found;
    CHECK(!shmctl(segment, IPC_STAT, &found));
    return found;
}

static int is_gone(int segment)
{
    struct shmid_ds found;
    return shmctl(segment, IPC_STAT, &found) && (errno == EINVAL || errno == EIDRM);
}

static void one_process(void)
{
    int segment = shmget(0x5e6, BYTES, IPC_CREAT | IPC_EXCL | 0600);
    CHECK(segment >= 0);
    CHECK(shmget(0x5e6, BYTES, IPC_CREAT | IPC_EXCL | 0600) < 0 && errno == EEXIST);
    CHECK(shmget(0x5e6, 0, 0) == segment && shmget(0x5e6, BYTES, IPC_CREAT | 0600) == segment);
    CHECK(shmget(0x5e6, 100 * BYTES, 0) < 0 && errno == EINVAL);
    CHECK(about(segment).shm_segsz == BYTES && about(segment).shm_nattch == 0);
    CHECK(about(segment).shm_cpid == getpid());
    char *at = shmat(segment, 0, 0), *again = shmat(segment, 0, SHM_RDONLY);
    CHECK(at != FAILED && again != FAILED && at != again);
    CHECK(about(segment).shm_nattch == 2 && about(segment).shm_lpid == getpid());
    memset(at, 5, BYTES);
    CHECK(again[0] == 5 && again[BYTES - 1] == 5 && again[BYTES] == 0);
    CHECK(mprotect(again, PAGE, PROT_READ | PROT_WRITE) && errno == EACCES);
    CHECK(!shmdt(again) && about(segment).shm_nattch == 1);
    CHECK(shmdt(again) && errno == EINVAL);
    CHECK(shmdt(at + PAGE) && errno == EINVAL);
    /* At an address of the program's choice. */
    char *room = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED && !munmap(room, 1 << 20));
    CHECK(shmat(segment, room + 5, 0) == FAILED && errno == EINVAL);
    char *fixed = shmat(segment, room + 5, SHM_RND);
    CHECK(fixed == room && fixed[1] == 5 && about(segment).shm_nattch == 2);
    CHECK(shmat(segment, room, 0) == FAILED && errno == EINVAL);
    CHECK(about(segment).shm_nattch == 2);
    int other = shmget(IPC_PRIVATE, BYTES, 0600);
    CHECK(other >= 0 && other != segment);
    CHECK(shmat(other, room, SHM_REMAP) == room && room[1] == 0);
    CHECK(about(segment).shm_nattch == 1 && about(other).shm_nattch == 1);
    CHECK(!shmctl(other, IPC_RMID, 0) && about(other).shm_perm.mode & SHM_DEST);
    room[7] = 8;
    CHECK(!munmap(room, BYTES) && is_gone(other));
    /* Removed, and still there for who has it. */
    CHECK(!shmctl(segment, IPC_RMID, 0) && at[3] == 5);
    CHECK(shmget(0x5e6, 0, 0) < 0 && errno == ENOENT);
    CHECK(!shmdt(at) && is_gone(segment));
    CHECK(shmat(segment, 0, 0) == FAILED && (errno == EINVAL || errno == EIDRM));
}

static void children(void)
{
    int segment = shmget(IPC_PRIVATE, 64 << 20, 0600);
    CHECK(segment >= 0);
    unsigned *at = shmat(segment, 0, 0);
    CHECK((char *)at != FAILED);
    size_t words = (64 << 20) / sizeof *at;
    for (size_t i = 0; i < words; i += 16)
        at[i] = (unsigned)i * 2654435761u;
    int turns = semget(IPC_PRIVATE, 1, 0600);
    CHECK(turns >= 0 && !shmctl(segment, IPC_RMID, 0));
    pid_t child = fork();
    if (!child) {
        /* It ends with its parent, also where that fails. */
        CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
        CHECK(about(segment).shm_nattch == 2);
        for (size_t i = 0; i < words; i += 16) {
            CHECK(at[i] == (unsigned)i * 2654435761u);
            at[i]++;
        }
        CHECK(!semop(turns, &(struct sembuf){0, 1, 0}, 1));
        pause();
    }
    CHECK(!semop(turns, &(struct sembuf){0, -1, 0}, 1));
    CHECK(!kill(child, SIGKILL) && waitpid(child, 0, 0) == child);
    wait_until(about(segment).shm_nattch == 1, "nobody else has it attached");
    for (size_t i = 0; i < words; i += 16)
        CHECK(at[i] == (unsigned)i * 2654435761u + 1);
    CHECK(!semctl(turns, 0, IPC_RMID));
    CHECK(!shmdt(at) && is_gone(segment));
}

int main(void)
{
    alarm(1500);
    one_process();
    children();
    puts("as it should be");
    return 0;
}
