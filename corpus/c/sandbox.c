/* A program that sandboxes itself with seccomp: a list of the few calls that it needs; one is
 * answered with EPERM, all others kill it. Its memory goes on working, old mappings, new ones, and
 * what was reserved before and is used afterwards. */
#include "job.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void allow_few(void)
{
    static const unsigned allowed[] = {SYS_read, SYS_write, SYS_mmap, SYS_munmap, SYS_brk,
                                       SYS_exit_group, SYS_exit, SYS_rt_sigreturn, SYS_futex,
                                       SYS_madvise, SYS_mprotect, SYS_fstat, SYS_gettid};
    enum { N = sizeof allowed / sizeof *allowed };
    struct sock_filter code[N + 5];
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                           offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < N; i++)
        code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
                                                   (uint8_t)(N - i + 2), 0);
    code[N + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1);
    code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    code[N + 3] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[N + 4] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = {.len = N + 5, .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0);
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv) / 4, later = 2 * pages;
    char *mem = map_pages(pages), text[64];
    for (size_t i = 0; i < pages; i++)
        page_fill(mem + i * PAGE, i);
    char *reserved = mmap(NULL, later * PAGE, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(reserved != MAP_FAILED);
    allow_few();
    for (size_t i = 0; i < later; i++) {
        if (i % 256 == 0) {
            size_t n = later - i < 256 ? later - i : 256;
            MUST(mprotect(reserved + i * PAGE, n * PAGE, PROT_READ | PROT_WRITE) == 0);
        }
        page_fill(reserved + i * PAGE, i + 3);
    }
    for (size_t i = 0; i < later; i++)
        page_check(reserved + i * PAGE, i + 3, "sandboxed, reserved before");
    MUST(madvise(reserved, later * PAGE, MADV_DONTNEED) == 0);
    for (size_t i = 0; i < later; i += 100)
        page_check_zero(reserved + i * PAGE, "sandboxed, dropped");
    MUST(syscall(SYS_getppid) == -1 && errno == EPERM);
    char *more = map_pages(pages);
    for (size_t i = 0; i < pages; i++)
        page_fill(more + i * PAGE, i + 5);
    for (size_t i = 0; i < pages; i++)
        page_check(mem + i * PAGE, i, "sandboxed");
    uint64_t sum = digest(more, pages * PAGE, digest(mem, pages * PAGE, 0));
    int n = snprintf(text, sizeof text, "sandboxed %016llx\n", (unsigned long long)sum);
    MUST(write(1, text, (size_t)n) == n);
    MUST(munmap(more, pages * PAGE) == 0);
    for (size_t i = 0; i < pages; i++)
        page_check(mem + i * PAGE, i, "sandboxed, after munmap");
    MUST(write(1, "done\n", 5) == 5);
    return 0;
}
