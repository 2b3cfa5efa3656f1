/* fork keeps copy-on-write meaning for memory that is paged out: each of parent, children,
 * grandchildren and an orphan sees its own version of every page and nobody else's. */
#include "job.h"

enum { CHILDREN = 3 };

static char *mem;
static size_t pages;

static void check_version(uint64_t who, size_t step, const char *name)
{
    for (size_t i = 0; i < pages; i++)
        page_check(mem + i * PAGE, i % step == 0 ? i + who * 1000000 : i, name);
}

static void write_version(uint64_t who, size_t step)
{
    for (size_t i = 0; i < pages; i += step)
        page_fill(mem + i * PAGE, i + who * 1000000);
}

/* A child writes every third page, forks a grandchild that must see just that, then writes on. */
static void child(uint64_t who, int out)
{
    check_version(0, 1, "child before its writes");
    write_version(who, 3);
    pid_t grandchild = fork();
    MUST(grandchild >= 0);
    if (grandchild == 0) {
        check_version(who, 3, "grandchild");
        write_version(who + 100, 3);
        check_version(who + 100, 3, "grandchild after its writes");
        _exit(0);
    }
    check_version(who, 3, "child while the grandchild writes");
    wait_ok(grandchild);
    check_version(who, 3, "child after the grandchild");
    uint64_t line[2] = {who, digest(mem, pages * PAGE, who)};
    MUST(write(out, line, sizeof line) == sizeof line);
    _exit(0);
}

/* The orphan's parent exits at once; the orphan still has every page. */
static void orphan(int out)
{
    pid_t middle = fork();
    MUST(middle >= 0);
    if (middle == 0) {
        pid_t last = fork();
        MUST(last >= 0);
        if (last != 0)
            _exit(0);
        while (getppid() == middle)
            usleep(1000);
        check_version(0, 1, "orphan");
        write_version(77, 2);
        check_version(77, 2, "orphan after its writes");
        uint64_t line[2] = {77, digest(mem, pages * PAGE, 77)};
        MUST(write(out, line, sizeof line) == sizeof line);
        _exit(0);
    }
    wait_ok(middle);
}

int main(int argc, char **argv)
{
    pages = job_pages(argc, argv);
    mem = map_pages(pages);
    for (size_t i = 0; i < pages; i++)
        page_fill(mem + i * PAGE, i);
    uint64_t sums[128] = {0};
    int fds[2];
    MUST(pipe(fds) == 0);
    orphan(fds[1]);
    pid_t pids[CHILDREN];
    for (int c = 0; c < CHILDREN; c++) {
        pids[c] = fork();
        MUST(pids[c] >= 0);
        if (pids[c] == 0)
            child(1 + (uint64_t)c, fds[1]);
    }
    for (size_t i = 0; i < pages; i += 5)
        page_fill(mem + i * PAGE, i + 9000000);
    for (int c = 0; c < CHILDREN; c++)
        wait_ok(pids[c]);
    close(fds[1]);
    uint64_t line[2];
    while (read(fds[0], line, sizeof line) == sizeof line)
        sums[line[0]] = line[1];
    for (size_t i = 0; i < pages; i++)
        page_check(mem + i * PAGE, i % 5 == 0 ? i + 9000000 : i, "parent");
    for (int c = 1; c <= CHILDREN; c++)
        printf("child %d %016llx\n", c, (unsigned long long)sums[c]);
    printf("orphan %016llx\n", (unsigned long long)sums[77]);
    printf("parent %016llx\n", (unsigned long long)digest(mem, pages * PAGE, 0));
    return 0;
}
