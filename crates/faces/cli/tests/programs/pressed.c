/* A program that needs more memory than it may use only after it has forbidden itself whatever would
   be needed to manage it: any other call kills it. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define ALLOW(number)                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1),  \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define STEP (4 << 20)
#define ALL (64 << 20)

static void forbid(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(munmap), ALLOW(madvise), ALLOW(mprotect), ALLOW(write), ALLOW(exit_group),
        ALLOW(futex),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = { LENGTH(code), code };
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void fill(unsigned char *at, size_t seed)
{
    for (size_t i = 0; i < STEP; i += 64)
        *(size_t *)(at + i) = (i + seed) * 0x9e3779b97f4a7c15;
}

static void check(unsigned char *at, size_t seed)
{
    for (size_t i = 0; i < STEP; i += 64)
        CHECK(*(size_t *)(at + i) == (i + seed) * 0x9e3779b97f4a7c15);
}

int main(int argc, char **argv)
{
    CHECK(agent_active());
    /* Memory may be managed before. */
    int managed = argc > 1 && !strcmp(argv[1], "managed");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    unsigned char *all = mmap(0, ALL, PROT_NONE, flags, -1, 0);
    CHECK(all != MAP_FAILED);
    CHECK(!mprotect(all, STEP, PROT_READ | PROT_WRITE));
    if (managed) {
        unsigned char *before = mmap(0, ALL, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(before != MAP_FAILED);
        for (size_t at = 0; at < ALL; at += 64)
            before[at] = 1;
        CHECK(!munmap(before, ALL));
    }
    fill(all, 0);
    forbid();
    for (size_t at = STEP; at < ALL; at += STEP) {
        CHECK(!mprotect(all + at, STEP, PROT_READ | PROT_WRITE));
        fill(all + at, at + 1);
        CHECK(!madvise(all + at, STEP, MADV_DONTNEED));
        CHECK(all[at + 1000] == 0);
        fill(all + at, at);
    }
    for (size_t at = 0; at < ALL; at += STEP)
        check(all + at, at);
    CHECK(!madvise(all, ALL / 2, MADV_DONTNEED));
    for (size_t at = 0; at < ALL / 2; at += 64)
        CHECK(all[at] == 0);
    for (size_t at = ALL / 2; at < ALL; at += STEP)
        check(all + at, at);
    CHECK(!munmap(all, ALL));
    _exit(0);
}
