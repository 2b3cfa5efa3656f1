/* Children by every way: fork, vfork + exec, posix_spawn, system, a chain of execs, each while the
 * parent's memory is mostly paged out. The program executes itself with a share of the size. */
#include "job.h"
#include <fcntl.h>
#include <spawn.h>

extern char **environ;

static int role_child(size_t pages, int depth, char *self)
{
    char *mem = map_pages(pages), size[32], left[32];
    for (size_t i = 0; i < pages; i++)
        page_check_zero(mem + i * PAGE, "exec starts clean");
    for (size_t i = 0; i < pages; i++)
        page_fill(mem + i * PAGE, i + (uint64_t)depth);
    for (size_t i = 0; i < pages; i++)
        page_check(mem + i * PAGE, i + (uint64_t)depth, "exec'd");
    if (depth > 1) {
        snprintf(size, sizeof size, "%zu", pages * PAGE >> 20);
        snprintf(left, sizeof left, "%d", depth - 1);
        execl(self, self, size, left, (char *)NULL);
        DIE("exec");
    }
    return 0;
}

int main(int argc, char **argv)
{
    size_t pages = job_pages(argc, argv);
    if (argc > 2)
        return role_child(pages, atoi(argv[2]), argv[0]);
    char *mem = map_pages(pages), size[32], command[4096];
    for (size_t i = 0; i < pages; i++)
        page_fill(mem + i * PAGE, i);
    snprintf(size, sizeof size, "%zu", pages * PAGE / 2 >> 20);
    snprintf(command, sizeof command, "%s %s 2", argv[0], size);
    char *args[] = {argv[0], size, "3", NULL};
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        execve(argv[0], args, environ);
        _exit(9);
    }
    wait_ok(pid);
    puts("fork and exec");
    pid = vfork();
    MUST(pid >= 0);
    if (pid == 0) {
        execve(argv[0], args, environ);
        _exit(9);
    }
    wait_ok(pid);
    puts("vfork and exec");
    MUST(posix_spawn(&pid, argv[0], NULL, NULL, args, environ) == 0);
    wait_ok(pid);
    puts("posix_spawn");
    MUST(system(command) == 0);
    puts("system");
    FILE *p = popen("echo from a shell", "r");
    char line[64];
    MUST(p && fgets(line, sizeof line, p) && pclose(p) == 0);
    fputs(line, stdout);
    char *none[] = {"x", NULL}; /* an exec that fails leaves everything as it was */
    MUST(execve("/nonexistent", none, environ) == -1 && errno == ENOENT);
    for (size_t i = 0; i < pages; i++)
        page_check(mem + i * PAGE, i, "after all children");
    printf("memory %016llx\n", (unsigned long long)digest(mem, pages * PAGE, 0));
    return 0;
}
