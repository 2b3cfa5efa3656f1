/* Shared memory in a program with a filter of its own, which allows everything: Farpage may add nothing to it. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>

#define BYTES (1 << 20)
#define NUMBER 700

int main(void)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    void *fixed = (void *)0x710000000000;
    char byte = 5;
    int fd = shm_open(own_name("/filtered"), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && !shm_unlink(own_name("/filtered")) && !ftruncate(fd, BYTES));
    char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    *at = 5;
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    CHECK(dup2(fd, NUMBER) == NUMBER);
    CHECK(read(NUMBER, &byte, 1) == -1 && errno == EBADF);
    CHECK(mmap(fixed, BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 5);
    return 0;
}
