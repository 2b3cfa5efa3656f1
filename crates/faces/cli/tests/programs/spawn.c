/* vfork and posix_spawn: programs get the agent, and nothing is left in the parent's memory.
   argv[1]: what to execute; it exits with 3 when it has the agent. */
#include "check.h"

static void spawn_once(char *path)
{
    char *argv[] = { path, "active", 0 };
    char *env[] = { 0 };
    pid_t pid;
    CHECK(!posix_spawn(&pid, path, 0, 0, argv, env));
    wait_for(pid, 3);
    pid = vfork();
    if (pid == 0) {
        execve(path, argv, env);
        _exit(1);
    }
    wait_for(pid, 3);
    pid = vfork();
    if (pid == 0) {
        execve("/no/such/program", argv, env);
        _exit(errno == ENOENT ? 4 : 1);
    }
    wait_for(pid, 4);
}

static void *spawn_some(void *path)
{
    for (int i = 0; i < 5; i++)
        spawn_once(path);
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    for (int i = 0; i < 5; i++)
        spawn_once(argv[1]);
    int before = mappings_with("");
    for (int i = 0; i < 30; i++)
        spawn_once(argv[1]);
    CHECK(mappings_with("") <= before + 2);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], 0, spawn_some, argv[1]));
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_join(threads[i], 0));
    puts("ok");
}
