/* Programs that forbid themselves system calls. */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define ALLOW(number)                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1),  \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static volatile sig_atomic_t trapped;
static void on_trap(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    trapped = info->si_syscall;
}

/* Kills on anything but a few calls; rt_sigreturn is not among them. */
static void forbid(int with_seccomp)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(mmap), ALLOW(munmap), ALLOW(madvise), ALLOW(mremap), ALLOW(brk),
        ALLOW(mprotect), ALLOW(write), ALLOW(read), ALLOW(exit_group), ALLOW(futex),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = { LENGTH(code), code };
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (with_seccomp)
        CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    else
        CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static int ended(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static void *sleeper(void *pipe)
{
    char byte;
    CHECK(read(*(int *)pipe, &byte, 1) == 1);
    use_memory();
    trapped = 0;
    syscall(SYS_getppid);
    CHECK(trapped == SYS_getppid);
    return 0;
}

int main(void)
{
    CHECK(agent_active());
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 0) == -1 && errno == EFAULT);
    for (int way = 0; way < 2; way++) {
        pid_t pid = fork();
        if (pid == 0) {
            use_memory();
            forbid(way);
            use_memory();
            char *more = malloc(1 << 20);
            memset(more, 1, 1 << 20);
            free(more);
            CHECK(syscall(SYS_getppid) == -1 && errno == 77);
            use_memory();
            _exit(5);
        }
        CHECK(ended(pid) == 5 << 8);
        pid = fork();
        if (pid == 0) {
            forbid(way);
            syscall(SYS_getuid);
            _exit(5);
        }
        CHECK(WTERMSIG(ended(pid)) == SIGSYS);
    }
    /* So much memory makes the agent start a thread in each child, though none may open anything. */
    pid_t parent = fork();
    if (parent == 0) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { LENGTH(code), code };
        char *much = malloc(64 << 20);
        CHECK(much);
        memset(much, 1, 64 << 20);
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
        pid_t child = fork();
        if (child == 0) {
            use_memory();
            much[5]++;
            _exit(7);
        }
        CHECK(ended(child) == 7 << 8);
        _exit(8);
    }
    CHECK(ended(parent) == 8 << 8);
    /* Strict mode leaves no way but that to end: it must end the agent's threads, too. */
    pid_t pid = fork();
    if (pid == 0) {
        void *at = malloc(BIG);
        CHECK(at);
        CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
        CHECK(write(1, "", 0) == 0);
        syscall(SYS_exit, 6);
    }
    CHECK(ended(pid) == 6 << 8);
    pid = fork();
    if (pid == 0) {
        CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
        syscall(SYS_getpid);
        syscall(SYS_exit, 6);
    }
    CHECK(WIFSIGNALED(ended(pid)));
    /* Traps of its own, with threads, for all threads at once. So much memory makes the agent
       start a thread: that one is spared. */
    char *much = malloc(64 << 20);
    memset(much, 1, 64 << 20);
    int ends[2];
    pthread_t thread;
    CHECK(!pipe(ends) && !pthread_create(&thread, 0, sleeper, &ends[0]));
    struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
    CHECK(!sigaction(SIGSYS, &action, 0));
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | 3),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { LENGTH(code), code };
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    long set = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    CHECK(set == 0);
    syscall(SYS_getppid);
    CHECK(trapped == SYS_getppid);
    use_memory();
    CHECK(write(ends[1], "x", 1) == 1 && !pthread_join(thread, 0));
    puts("ok");
}
