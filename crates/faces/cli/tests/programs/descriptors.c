/* Programs that close everything. argv[1]: the program to execute at the end. */
#include "check.h"
#include <dirent.h>

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int end = limit.rlim_cur < 8192 ? limit.rlim_cur : 8192;
    for (int fd = 3; fd < end; fd++)
        CHECK(!close(fd) || errno == EBADF);
    use_memory();
    CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
    CHECK(!syscall(SYS_close_range, 3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */));
    CHECK(syscall(SYS_close_range, 9, 3, 0) == -1 && errno == EINVAL);
    use_memory();
    int ours = -1;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(dir));) {
        int fd = atoi(entry->d_name);
        if (fd > 100)
            ours = fd;
        if (fd > 2 && fd != dirfd(dir))
            fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    closedir(dir);
    CHECK(ours > 0);
    CHECK(dup2(0, ours) == -1 && errno == EBADF);
    CHECK(dup3(0, ours, O_CLOEXEC) == -1 && errno == EBADF);
    /* As many descriptors as there can be: none is one of ours. */
    int last = 0, count = 0;
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0 && count < 9000; count++) {
        CHECK(fd > last && (fd <= ours - 32 || fd > ours));
        last = fd;
    }
    use_memory();
    char *args[] = { argv[1], "active", 0 };
    execve(argv[1], args, 0);
    return 1;
}
