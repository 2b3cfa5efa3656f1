/* Debuggers inside of farpage run. */
#include "check.h"
#include <sys/ptrace.h>

int main(void)
{
    /* As gdb starts a program: it is told that this does not go. */
    pid_t child = vfork();
    if (!child)
        _exit(ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && errno == EPERM ? 0 : 1);
    wait_for(child, 0);
    /* A child of fork may be traced, with its signals. */
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(!ptrace(PTRACE_TRACEME, 0, 0, 0));
        raise(SIGUSR1);
        use_memory();
        _exit(7);
    }
    int status, stops = 0;
    for (;;) {
        CHECK(waitpid(child, &status, 0) == child);
        if (!WIFSTOPPED(status))
            break;
        int signal = WSTOPSIG(status);
        stops += signal == SIGUSR1;
        CHECK(!ptrace(PTRACE_CONT, child, 0, signal == SIGUSR1 ? 0 : signal));
    }
    CHECK(stops == 1 && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return 0;
}
