/* Locks, semaphores and barriers between processes: what dies, and what is refused. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <farpage.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMES 1000

static volatile long *count;

static fp_mutex *mutex_of(const char *name)
{
    fp_error error;
    fp_mutex *mutex = fp_mutex_open(name, 1, &error);
    if (mutex == NULL) {
        fprintf(stderr, "%s\n", error.message);
        _exit(3);
    }
    return mutex;
}

static void counts(void)
{
    fp_mutex *mutex = mutex_of("count");
    for (int i = 0; i < TIMES; i++) {
        CHECK(fp_mutex_lock(mutex, UINT64_MAX, NULL) == FP_OK);
        *count = *count + 1;
        CHECK(fp_mutex_unlock(mutex, NULL) == FP_OK);
    }
    fp_mutex_close(mutex);
}

static void one_at_a_time(void)
{
    pid_t child = fork();
    counts();
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(*count == 2 * TIMES);
}

static void a_killed_holder(void)
{
    int there[2];
    CHECK(pipe(there) == 0);
    pid_t child = fork();
    if (child == 0) {
        fp_mutex *mutex = mutex_of("left");
        fp_semaphore *places = fp_semaphore_open("places", 1, 1, NULL);
        CHECK(fp_mutex_lock(mutex, UINT64_MAX, NULL) == FP_OK);
        CHECK(fp_semaphore_take(places, UINT64_MAX, NULL) == FP_OK);
        CHECK(write(there[1], "x", 1) == 1);
        pause();
    }
    char x;
    CHECK(read(there[0], &x, 1) == 1);
    fp_mutex *mutex = mutex_of("left");
    fp_semaphore *places = fp_semaphore_open("places", 1, 1, NULL);
    CHECK(fp_mutex_lock(mutex, 0, NULL) == FP_TIMED_OUT);
    CHECK(fp_semaphore_take(places, 1, NULL) == FP_TIMED_OUT);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    fp_error error;
    CHECK(fp_mutex_lock(mutex, UINT64_MAX, &error) == FP_HOLDER_DIED);
    CHECK(strstr(error.message, "half changed") != NULL);
    fp_error_free(&error);
    CHECK(fp_semaphore_take(places, UINT64_MAX, NULL) == FP_OK);
    CHECK(fp_mutex_consistent(mutex, NULL) == FP_OK);
    CHECK(fp_condition_notify(mutex, NULL) == FP_OK);
    CHECK(fp_condition_wait(mutex, 1, NULL) == FP_TIMED_OUT);
    CHECK(fp_mutex_unlock(mutex, NULL) == FP_OK);
    CHECK(fp_semaphore_give(places, NULL) == FP_OK);
    fp_semaphore_close(places);
    fp_mutex_close(mutex);
}

static void what_is_refused(void)
{
    fp_error error;
    fp_mutex *mutex = mutex_of("own");
    CHECK(fp_mutex_unlock(mutex, &error) == FP_DENIED);
    CHECK(strstr(error.message, "a lock is not this caller's") != NULL);
    fp_error_free(&error);
    CHECK(fp_mutex_consistent(mutex, NULL) == FP_DENIED);
    CHECK(fp_condition_wait(mutex, 0, NULL) == FP_DENIED);
    CHECK(fp_mutex_lock(mutex, 0, NULL) == FP_OK);
    CHECK(fp_mutex_lock(mutex, UINT64_MAX, NULL) == FP_DENIED);
    CHECK(fp_mutex_open(NULL, 1, NULL) == NULL);
    CHECK(fp_mutex_open("x", 3, &error) == NULL && error.code == FP_ARGUMENT);
    fp_error_free(&error);
    CHECK(fp_barrier_open("b", 0, 1, &error) == NULL && error.code == FP_ARGUMENT);
    fp_error_free(&error);
    fp_semaphore *two = fp_semaphore_open("two", 2, 1, NULL);
    CHECK(fp_semaphore_open("two", 3, 1, &error) == NULL && error.code == FP_CHANGED);
    fp_error_free(&error);
    CHECK(fp_semaphore_give(two, NULL) == FP_DENIED);
    CHECK(fp_semaphore_take(NULL, 0, NULL) == FP_ARGUMENT);
    fp_barrier *barrier = fp_barrier_open("b", 2, 1, NULL);
    CHECK(fp_barrier_wait(barrier, 1, NULL) == FP_BROKEN);
    CHECK(fp_barrier_reset(barrier, NULL) == FP_OK);
    fp_barrier *one = fp_barrier_open("one", 1, 1, NULL);
    CHECK(fp_barrier_wait(one, UINT64_MAX, NULL) == FP_OK);
    fp_barrier_close(one);
    fp_barrier_close(barrier);
    fp_barrier_close(NULL);
    fp_semaphore_close(two);
    fp_mutex_close(mutex);
}

int main(void)
{
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    count = (volatile long *)shared;
    one_at_a_time();
    a_killed_holder();
    what_is_refused();
    puts("done");
    return 0;
}
