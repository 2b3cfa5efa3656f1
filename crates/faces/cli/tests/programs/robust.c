/* Robust locks in shared memory whose page is out when their owner ends: the next one is told. */
#include "check.h"

#define BYTES (64 << 20)

static pthread_mutex_t *mutex;
static char *memory;

static void begin(void)
{
    pthread_mutexattr_t how;
    CHECK(!pthread_mutexattr_init(&how));
    CHECK(!pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED));
    CHECK(!pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST));
    CHECK(!pthread_mutex_init(mutex, &how));
}

/* Takes the lock, and uses so much memory that its page leaves. */
static void *takes(void *nothing)
{
    CHECK(!pthread_mutex_lock(mutex));
    for (size_t i = 1 << 20; i < BYTES; i += 4096)
        memory[i]++;
    return nothing;
}

static void by_exit(void)
{
    takes(0);
    _exit(0);
}

static void by_execution(void)
{
    takes(0);
    execl("/bin/true", "true", (char *)0);
}

static void by_a_thread(void)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, takes, 0));
    CHECK(!pthread_join(thread, 0));
    _exit(0);
}

static void *waits(void *told)
{
    char byte = 1;
    takes(0);
    CHECK(write(*(int *)told, &byte, 1) == 1);
    for (;;)
        pause();
}

/* Another thread has it when the process ends. */
static void by_another(void)
{
    static int told[2];
    pthread_t thread;
    char byte;
    CHECK(!pipe(told));
    CHECK(!pthread_create(&thread, 0, waits, &told[1]));
    CHECK(read(told[0], &byte, 1) == 1);
    _exit(0);
}

int main(void)
{
    static void (*const ALL[])(void) = {by_exit, by_execution, by_a_thread, by_another};
    memory = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    mutex = (pthread_mutex_t *)memory;
    for (size_t i = 0; i < LENGTH(ALL); i++) {
        struct timespec until;
        pid_t child;
        begin();
        child = fork();
        if (!child) {
            ALL[i]();
            _exit(96);
        }
        wait_for(child, 0);
        CHECK(!clock_gettime(CLOCK_REALTIME, &until));
        until.tv_sec += HANGS;
        errno = pthread_mutex_timedlock(mutex, &until);
        CHECK(errno == EOWNERDEAD);
        CHECK(!pthread_mutex_consistent(mutex) && !pthread_mutex_unlock(mutex));
    }
    puts("as it should be");
    return 0;
}
