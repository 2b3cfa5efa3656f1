/* A program that closes every descriptor it can name, by each of the ways there are, and goes on
 * using its memory. */
#include "job.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>

static void close_by_listing(void)
{
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        return;
    int fds[4096], n = 0;
    struct dirent *e;
    while ((e = readdir(dir)) != NULL && n < 4096)
        if (e->d_name[0] != '.' && atoi(e->d_name) > 2 && atoi(e->d_name) != dirfd(dir))
            fds[n++] = atoi(e->d_name);
    closedir(dir);
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv);
    char *mem = map_pages(pages);
    for (int round = 0; round < 5; round++) {
        for (size_t i = 0; i < pages; i++)
            page_fill(mem + i * PAGE, i + (uint64_t)round * pages);
        switch (round) {
        case 0:
            for (int fd = 3; fd < 4096; fd++)
                close(fd);
            break;
        case 1:
            syscall(SYS_close_range, 3, ~0U, 0);
            break;
        case 2:
            close_by_listing();
            break;
        case 3: { /* take over every low number, as daemons do */
            int null = open("/dev/null", O_RDWR);
            MUST(null >= 0);
            for (int fd = 3; fd < 1024; fd++)
                if (fd != null)
                    dup2(null, fd);
            break;
        }
        case 4:
            syscall(SYS_close_range, 3, ~0U, 0);
            break;
        }
        pid_t pid = fork();
        MUST(pid >= 0);
        for (size_t i = 0; i < pages; i++)
            page_check(mem + i * PAGE, i + (uint64_t)round * pages, pid ? "parent" : "child");
        if (pid == 0)
            _exit(0);
        wait_ok(pid);
        printf("round %d %016llx\n", round, (unsigned long long)digest(mem, pages * PAGE, 0));
    }
    return 0;
}
