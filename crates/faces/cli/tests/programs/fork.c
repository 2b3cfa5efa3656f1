/* Children have copies of the memory, whichever way they are made, and an agent of their own. */
#define BIG (8 << 20)
#include "check.h"

static unsigned char *memory;

static void child(int depth)
{
    CHECK(agent_active());
    for (size_t i = 0; i < BIG; i += 4096)
        CHECK(memory[i] == 7);
    memset(memory, 8, BIG);
    use_memory();
    if (depth) {
        pid_t next = fork();
        if (next == 0) {
            CHECK(memory[4096] == 8);
            _exit(6);
        }
        wait_for(next, 6);
    }
    _exit(5);
}

static void *from_thread(void *unused)
{
    pid_t pid = fork();
    if (pid == 0)
        child(1);
    wait_for(pid, 5);
    return unused;
}

int main(void)
{
    memory = malloc(BIG);
    memset(memory, 7, BIG);
    pid_t pid = fork();
    if (pid == 0)
        child(1);
    wait_for(pid, 5);
    pid = syscall(SYS_fork);
    if (pid == 0)
        child(0);
    wait_for(pid, 5);
    int id_seen_by_parent = 0;
    pid = syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, &id_seen_by_parent, 0, 0);
    if (pid == 0)
        child(0);
    CHECK(id_seen_by_parent == pid);
    wait_for(pid, 5);
    CHECK(syscall(SYS_clone, CLONE_THREAD | SIGCHLD, 0, 0, 0, 0) == -1 && errno == EINVAL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&threads[i], 0, from_thread, 0));
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_join(threads[i], 0));
    CHECK(memory[0] == 7);
    puts("ok");
}
