/* What others execute. "active": exits with 3 when the agent is here and works.
   "exec PATH": executes PATH "active" with no environment at all. */
#include "check.h"

static char *path;

static void *execute(void *unused)
{
    char *argv[] = { path, "active", 0 };
    execve(path, argv, 0);
    _exit(97);
    return unused;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    path = argv[argc - 1];
    if (!strcmp(argv[1], "active")) {
        sigset_t blocked;
        CHECK(!sigprocmask(SIG_BLOCK, 0, &blocked));
        for (int signal = 1; signal < 32; signal++)
            CHECK(sigismember(&blocked, signal) == 0);
        if (!agent_active())
            return 2;
        use_memory();
        brk((char *)sbrk(0) + (1 << 20));
        return 3;
    }
    if (!strcmp(argv[1], "exec"))
        execute(0);
    if (!strcmp(argv[1], "thread-exec")) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, 0, execute, 0));
        pthread_join(thread, 0);
    }
    if (!strcmp(argv[1], "fexec")) {
        char *args[] = { path, "active", 0 }, *env[] = { "A=B", "LD_PRELOAD=", 0 };
        int fd = open(path, O_PATH | O_CLOEXEC);
        fexecve(fd, args, env);
    }
    if (!strcmp(argv[1], "blocked-exec")) {
        sigset_t all;
        sigfillset(&all);
        CHECK(!sigprocmask(SIG_BLOCK, &all, 0));
        sigemptyset(&all);
        use_memory();
        CHECK(!sigprocmask(SIG_SETMASK, &all, 0));
        execute(0);
    }
    if (!strcmp(argv[1], "failing-exec")) {
        char *args[] = { "x", 0 }, *volatile wrong = (char *)8;
        for (int i = 0; i < 20; i++) {
            CHECK(execve("/etc", args, args) == -1 && errno == EACCES);
            CHECK(execve("/no/such", args, args) == -1 && errno == ENOENT);
            CHECK(execve(wrong, args, args) == -1 && errno == EFAULT);
            CHECK(execve(path, args, (char **)wrong) == -1 && errno == EFAULT);
            use_memory();
        }
        /* The kernel takes no argument of this length: it fails after the decision was made. */
        size_t length = 1 << 20;
        char *long_one = malloc(length + 1);
        memset(long_one, 'x', length);
        long_one[length] = 0;
        char *too_long[] = { path, long_one, 0 };
        CHECK(execve(path, too_long, 0) == -1 && errno == E2BIG);
        use_memory();
        execute(0);
    }
    return 96;
}
