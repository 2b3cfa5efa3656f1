/* What a program sees as the memory of the machine: in every way in which it can ask, what it is told by farpage run
   --memory. Argument: how many bytes that is. */
#include "check.h"
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/time.h>

#define MIB (1 << 20)
#define FAILS(call, with) CHECK((errno = 0, (call) == -1) && errno == (with))

static unsigned long total;
static char text[1 << 16];

static const char *read_all(int fd)
{
    size_t length = 0;
    ssize_t got;
    CHECK(fd >= 0);
    while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += got;
    CHECK(!got);
    text[length] = 0;
    return text;
}

/* The figure of a line that begins so. */
static unsigned long line(const char *all, const char *name)
{
    const char *at = strstr(all, name);
    CHECK(at && (at == all || at[-1] == '\n'));
    return strtoul(at + strlen(name), 0, 10);
}

static unsigned long free_bytes(void)
{
    struct sysinfo info;
    CHECK(!sysinfo(&info) && info.mem_unit == 1 && info.totalram == total);
    CHECK(info.freeram < total && !info.totalswap && !info.freeswap && !info.totalhigh);
    CHECK(info.uptime > 0 && info.procs > 0);
    return info.freeram;
}

static void by_calls(void)
{
    CHECK(free_bytes() > total - 64 * MIB);
    CHECK(sysconf(_SC_PHYS_PAGES) * 4096ul == total);
    unsigned long left = sysconf(_SC_AVPHYS_PAGES) * 4096ul;
    CHECK(left > total - 64 * MIB && left < total);
    FAILS(syscall(SYS_sysinfo, 8), EFAULT);
    FAILS(syscall(SYS_sysinfo, 0), EFAULT);
}

static void is_meminfo(int fd, int cloexec)
{
    const char *all = read_all(fd);
    unsigned long left = line(all, "MemAvailable:") << 10;
    CHECK(line(all, "MemTotal:") << 10 == total && left > total - 64 * MIB && left < total);
    CHECK(line(all, "SwapTotal:") == 0 && line(all, "Cached:") == 0 && strstr(all, "\nHugePages_Total:"));
    CHECK(!lseek(fd, 0, SEEK_SET) && line(read_all(fd), "MemTotal:") << 10 == total);
    CHECK(fcntl(fd, F_GETFD) == cloexec);
    FAILS(write(fd, "x", 1), EBADF);
    CHECK(!close(fd));
}

static void nothing(int number)
{
    (void)number;
}

static void by_files(void)
{
    const char *path = "/proc/meminfo";
    is_meminfo(open(path, O_RDONLY), 0);
    is_meminfo(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), FD_CLOEXEC);
    is_meminfo(syscall(SYS_open, path, O_RDONLY), 0);
    is_meminfo(open("/proc/.././proc//meminfo", O_RDONLY), 0);
    int folder = open("/proc", O_RDONLY | O_DIRECTORY);
    is_meminfo(openat(folder, "meminfo", O_RDONLY), 0);
    struct open_how how = {.flags = O_CLOEXEC | O_NONBLOCK, .resolve = RESOLVE_BENEATH};
    is_meminfo(syscall(SYS_openat2, folder, "meminfo", &how, sizeof how), FD_CLOEXEC);
    FAILS(syscall(SYS_openat2, folder, "/proc/meminfo", &how, sizeof how), EXDEV);
    FAILS(syscall(SYS_openat2, folder, "meminfo", 8, sizeof how), EFAULT);
    FAILS(syscall(SYS_openat2, folder, "meminfo", &how, 1), EINVAL);
    FAILS(openat(folder, "none/meminfo", O_RDONLY), ENOENT);
    FAILS(openat(-1, "meminfo", O_RDONLY), EBADF);
    FAILS(open(path, O_RDONLY | O_DIRECTORY), ENOTDIR);
    FAILS(syscall(SYS_open, 8, O_RDONLY), EFAULT);
    CHECK(!close(folder));
    FILE *stream = fopen(path, "r");
    unsigned long kib;
    CHECK(stream && fscanf(stream, "MemTotal: %lu kB", &kib) == 1 && kib << 10 == total && !fclose(stream));
    /* A file of that name somewhere else is what it is. */
    char name[64] = "/tmp/farpage-machine-XXXXXX";
    CHECK(mkdtemp(name) && !chdir(name));
    int own = open("meminfo", O_RDWR | O_CREAT, 0600);
    CHECK(own >= 0 && write(own, "MemTotal: 7 kB\n", 15) == 15 && !close(own));
    own = open("meminfo", O_RDONLY);
    CHECK(line(read_all(own), "MemTotal:") == 7 && !close(own));
    /* A pipe of that name is waited for as ever, and a signal ends that. */
    CHECK(!unlink("meminfo") && !mkfifo("meminfo", 0600));
    struct sigaction action = {.sa_handler = nothing};
    struct itimerval soon = {{0, 20000}, {0, 20000}}, never = {{0}};
    CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &soon, 0));
    FAILS(open("meminfo", O_RDONLY), EINTR);
    CHECK(!setitimer(ITIMER_REAL, &never, 0));
    CHECK(!unlink("meminfo") && !chdir("/") && !rmdir(name));
}

/* The number in a file of the cgroup that this process is in, or -1. */
static long in_cgroup(const char *folder, const char *of, const char *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s/%s", folder, of, file);
    int fd = open(path, O_RDONLY);
    if (fd < 0) {
        /* A container sees its own as the highest. */
        snprintf(path, sizeof path, "%s/%s", folder, file);
        fd = open(path, O_RDONLY);
    }
    if (fd < 0)
        return -1;
    long number = strtol(read_all(fd), 0, 10);
    CHECK(!close(fd));
    return number;
}

static int by_cgroups(void)
{
    char name[4096], own[4096];
    int found = 0;
    FILE *all = fopen("/proc/self/cgroup", "r");
    CHECK(all);
    while (fgets(name, sizeof name, all)) {
        name[strcspn(name, "\n")] = 0;
        char *of = strstr(name, ":memory:");
        strcpy(own, of ? of + 8 : strncmp(name, "0::", 3) ? "" : name + 3);
        if (!*own)
            continue;
        const char *folder = of ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
        long limit = in_cgroup(folder, own, of ? "memory.limit_in_bytes" : "memory.max");
        long used = in_cgroup(folder, own, of ? "memory.usage_in_bytes" : "memory.current");
        if (limit < 0)
            continue;
        CHECK((unsigned long)limit == total && used > 0 && used < 64 * MIB);
        if (of) {
            in_cgroup(folder, own, "memory.stat");
            CHECK(line(text, "hierarchical_memory_limit") == total && line(text, "total_inactive_file") == 0);
            CHECK(line(text, "total_rss") > 0 && line(text, "total_rss") < 64 * MIB);
        }
        found++;
    }
    CHECK(!fclose(all));
    return found;
}

/* What is used is no more free, in memory or paged out. */
static void is_used(unsigned long bytes)
{
    unsigned long before = free_bytes();
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    unsigned long seed = 1;
    for (unsigned long *word = (void *)at; word < (unsigned long *)(at + bytes); word++)
        *word = seed = seed * 6364136223846793005 + 1442695040888963407;
    unsigned long less = before - free_bytes();
    CHECK(less > bytes - bytes / 8 && less < bytes + bytes / 4);
    CHECK(!munmap(at, bytes));
}

static void under_a_filter(void)
{
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, allow};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    CHECK(free_bytes() > total - 64 * MIB);
    int fd = open("/proc/meminfo", O_RDONLY);
    CHECK(line(read_all(fd), "MemTotal:") > 0 && !close(fd));
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    total = strtoul(argv[1], 0, 10);
    by_calls();
    by_files();
    int cgroups = by_cgroups();
    if (argc == 2) {
        is_used(24 * MIB);
        is_used(96 * MIB);
        pid_t child = fork();
        if (!child) {
            by_calls();
            by_files();
            under_a_filter();
            _exit(7);
        }
        wait_for(child, 7);
        execl(argv[0], argv[0], argv[1], "again", (char *)0);
        CHECK(0);
    }
    printf("%d cgroups\n", cgroups);
    return 0;
}
